"""PyTorch's deterministic algorithms: tensors that are filled, and attention's backward in rounds."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.errors import InputError
from joulecast.model.architecture.hf import load_model
from joulecast.model.framework.deterministic import filled_values
from joulecast.model.framework.implementation import Implementation
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.attention import AttentionShapes, attention_work
from joulecast.model.kernels.operators import Attention
from joulecast.model.training.step import layer_backward, layer_forward
from joulecast.simulator.plan_file.plan import plan_from_dict

RUN = Implementation(framework="megatron", attention_backend="flash-attn-2", tensor_parallel=8, recompute="full")
LLAMA = load_model("llama-3.2-3b")
ORDERS = ("attention.order", "attention.chunks.order", "attention.into", "attention.result.order")


def work(batch, heads, *, sequence=4096, keys=4096, deterministic=1, direction="backward"):
    fields = (batch, heads, heads, sequence, 128, 1.0, keys, 0, 0)
    shapes = AttentionShapes(*(np.array([float(field)]) for field in fields))
    gpu = gpu_model(load_gpu("a100-sxm-40gb"))
    return attention_work(shapes, "flash-attn-2", direction, "bf16", gpu, "", deterministic)


def test_only_filling_is_added_to_a_layer():
    plain, filled = (layer_forward(LLAMA, replace(RUN, deterministic=on), 8, 4096) for on in (False, True))
    added = [one.operator for one in filled if one.operator.name.endswith(".empty")]
    assert [one for one in filled if one.operator not in added] == list(plain)
    # Norms' and row-parallel products' results are as wide as the residual stream.
    stream = 2.0 * 8 * 4096 * LLAMA.hidden
    assert [one.name for one in added if one.bytes_written == stream] == [
        *("norm1.empty", "output.empty", "norm2.empty", "down.empty")
    ]
    assert all(one.bytes_read == 0.0 for one in added)


def test_what_adds_into_a_buffer_is_not_filled():
    launches = layer_backward(LLAMA, replace(RUN, deterministic=True), 8, 4096)
    names = {one.operator.name for one in launches}
    assert "up.dgrad.empty" in names
    assert not {"up.wgrad.empty", "norm1.grad.join.empty", "gate.silu.grad.empty", "up.grad.all_reduce.empty"} & names
    assert all(filled_values(one.operator) == 0.0 for one in launches if one.operator.name.endswith(".wgrad"))


def test_attention_fills_its_result_or_gradients_and_what_they_are_summed_from():
    """In two-byte values: dQ and its sums in fp32; dK and dV, of shared keys also one for each head of queries."""
    forward = Attention(2, 8, 2, 1024, 64, kv_sequence=4096, direction="forward")
    queries, keys = 2 * 1024 * 8 * 64, 2 * 2 * 4096 * 64
    assert filled_values(forward) == queries
    shared = replace(forward, direction="backward")
    assert filled_values(shared) == queries + 2 * queries + keys * 2 + keys * 8
    assert filled_values(replace(shared, kv_heads=8)) == queries + 2 * queries + keys * 8


def test_flash_attention_of_gathered_sequences_is_handed_copies():
    """Of several sequences, and not with cuDNN, which takes positions first."""
    split = replace(RUN, context_parallel=2, cp_comm_type="all_gather", tensor_parallel=4)

    def copies(run, batch):
        return [one.operator for one in layer_forward(LLAMA, run, batch, 4096) if one.operator.name in ORDERS]

    assert [one.name for one in copies(split, 8)] == list(ORDERS)
    assert not copies(split, 1)
    assert not copies(replace(split, attention_backend="cudnn"), 8)
    # Six heads of queries and two of keys and values on half of the positions; chunks see 5/4 of all keys and values.
    values = 8 * 2048 * 128
    sizes = [one.elements / values for one in copies(split, 8)]
    assert sizes == [6 + 2 * 4, 6 + 1.25 * 2 * 4, 6, 6]
    filled = replace(split, deterministic=True)
    assert not any(one.operator.name == "attention.into.empty" for one in layer_forward(LLAMA, filled, 8, 4096))


def test_one_block_too_many_takes_a_second_round():
    """Of 24 heads 5 thread blocks each are 120, of 27 heads 4 are 108: as many as an A100 has SMs."""
    two, one = work(8, 3), work(9, 3)
    assert two.busy_share[0] < 0.6
    assert one.busy_share[0] > 0.85
    assert two.cycles[0] > 1.3 * one.cycles[0]


@pytest.mark.parametrize("heads", [16, 24, 32, 48, 64, 96, 200])
def test_rounds_never_end_before_the_work_is_done(heads):
    alone, pair = work(heads, 1), [work(heads, 1, sequence=1024, keys=keys, deterministic=2) for keys in (1024, 4096)]
    assert 0.4 < alone.busy_share[0] <= 1.0
    assert all(0.3 < one.busy_share[0] <= 1.0 for one in pair)
    assert alone.cycles[0] >= work(heads, 1, deterministic=0).cycles[0] * 0.8
    after = [work(heads, 1, sequence=1024, keys=keys) for keys in (1024, 4096)]  # one after the other
    assert sum(one.cycles[0] for one in pair) <= sum(one.cycles[0] for one in after)
    assert pair[0].busy_share[0] == 1.0  # the shorter one fills what the longer one leaves


@pytest.mark.parametrize("sequence", [27 * 128, 27 * 128 - 1])
def test_the_first_of_so_many_thread_blocks_has_most_to_do(sequence):
    """Four heads of 27 blocks on 108 SMs: the first block of keys meets all 27 of queries, the mean 14."""
    begins = gpu_model(load_gpu("a100-sxm-40gb"))["kernel.attention.flash-attention-2.backward.block_overhead"]
    found = work(1, 4, sequence=sequence, keys=sequence)
    assert found.busy_share[0] == pytest.approx((14 + begins) / (27 + begins))


def test_forwards_are_as_fast_as_ever():
    assert work(8, 3, direction="forward").cycles == work(8, 3, deterministic=0, direction="forward").cycles


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({"framework": "pytorch-eager"}, "known in megatron"),
        ({"framework": "megatron"}, "known of flash-attn-2, not of cudnn"),
    ],
)
def test_where_it_is_not_known_it_is_refused(run, said):
    tables = {
        "workload": {"model": "llama-3.2-1b", "sequence_length": 2048, "global_batch_size": 8},
        "cluster": {"gpu": "a100-sxm-80gb", "gpus": 8},
        "implementation": {**run, "deterministic": True},
    }
    with pytest.raises(InputError, match=said) as caught:
        plan_from_dict(tables)
    assert caught.value.key == "implementation.deterministic"
