"""Adapters beside frozen weights: what is computed, kept and stepped."""

from __future__ import annotations

import pytest
from launched import names

from joulecast.model.architecture.hf import load_model, parse_config
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.architecture.model_flops import training_flops
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch
from joulecast.model.framework.lora import Lora
from joulecast.model.kernels.operators import Gemm
from joulecast.model.memory.footprint import MemoryFootprint, memory_footprint
from joulecast.model.memory.pipeline_rank import PipelineRank
from joulecast.model.training import step
from joulecast.model.training.parameters import parameters_of_stage, trained

LLAMA, QWEN = load_model("llama-3.1-8b"), load_model("qwen3-0.6b")
ALL = ("query", "key", "value", "output", "gate", "up", "down")
TOKENS = 2048
FULL = Implementation(modules="transformers", drops_gradients=True, added_share=0.0)


def run(*targets: str, rank: int = 16, dropout: float = 0.0, dtype: str = "bf16", **options: object) -> Implementation:
    lora = Lora(rank, targets or ALL, dropout, dtype)
    return Implementation(modules="transformers", drops_gradients=True, added_share=0.0, lora=lora, **options)  # type: ignore[arg-type]


def flops(launches: tuple[Launch, ...]) -> float:
    return sum(2.0 * x.m * x.n * x.k for x in (one.operator for one in launches) if isinstance(x, Gemm))


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_products_are_the_models_and_the_adapters(dtype: str) -> None:
    size = (LLAMA, run(dtype=dtype), 1, TOKENS)
    adapters = 16 * (4 * 4096 + 2 * 1024 + 2 * 4096 + 3 * (4096 + 14336))
    whole, frozen = (flops(step.layer_forward(LLAMA, of, 1, TOKENS)) for of in (FULL, size[1]))
    assert frozen - whole == 2.0 * TOKENS * adapters
    backward = flops(step.layer_backward(LLAMA, FULL, 1, TOKENS))
    assert backward == 2.0 * whole
    # Of the frozen products the input's gradient alone, of the adapters' both.
    assert flops(step.layer_backward(*size)) == whole + 2.0 * 2.0 * TOKENS * adapters


def test_head_and_embedding_are_frozen() -> None:
    size = (LLAMA, run(), 1, TOKENS)
    assert step.embedding_backward(*size) == ()
    head = step.head_backward(*size)
    assert flops(head) == flops(step.head_forward(*size))
    assert not [one.completes for one in head if one.completes]
    assert not any(name.startswith("norm.gamma") for name in names(head))


def test_what_completes_is_what_is_trained() -> None:
    size = (QWEN, run("query", "down"), 1, TOKENS)
    done = [one.completes for one in step.layer_backward(*size) if one.completes]
    stepped = trained(parameters_of_stage(QWEN, size[1], 1, first=True, last=True))
    assert sorted(f"layers.0.{name}" for name in done) == sorted(p.name for p in stepped)


@pytest.mark.parametrize(
    ("model", "rank", "targets", "count"),
    [  # as PEFT's print_trainable_parameters says of them
        ("llama-3.1-8b", 8, ("query", "value"), 3_407_872),
        ("llama-3.1-8b", 8, ALL, 20_971_520),
        ("llama-2-7b", 8, ("query", "value"), 4_194_304),
        ("qwen2.5-7b", 8, ALL, 20_185_088),
    ],
)
def test_trained_parameters_are_pefts(model: str, rank: int, targets: tuple[str, ...], count: int) -> None:
    config = load_model(model)
    of = parameters_of_stage(config, run(*targets, rank=rank), config.layers, first=True, last=True)
    assert sum(p.elements for p in trained(of)) == count
    assert sum(p.elements for p in of) == config.parameters + count


def test_casts_come_with_adapters_wider_than_the_model() -> None:
    plain, cast = (names(step.layer_forward(LLAMA, run("query", dtype=dtype), 1, TOKENS)) for dtype in ("bf16", "fp32"))
    added = [name for name in cast if name not in plain]
    assert added == [
        "query.lora.widen",
        "query.lora.round",
        "query.lora_a.weight.round",
        "query.lora_b.weight.round",
    ]
    back = [names(step.layer_backward(LLAMA, run("query", dtype=dtype), 1, TOKENS)) for dtype in ("bf16", "fp32")]
    assert [name for name in back[1] if name not in back[0]] == [
        "query.lora_b.wgrad.widen",
        "query.lora_a.wgrad.widen",
        "query.lora.grad.widen",
        "query.lora.grad.round",
    ]


def test_gradients_that_add_up_are_the_adapters() -> None:
    twice = Implementation(modules="transformers", drops_gradients=True, added_share=0.5, lora=Lora(16, ("value",)))
    added = [name for name in names(step.layer_backward(LLAMA, twice, 1, TOKENS)) if name.endswith(".accumulate")]
    assert added == ["value.lora_b.weight.accumulate", "value.lora_a.weight.accumulate"]


def first_layer(*targets: str) -> list[str]:
    lora = Lora(16, targets, dropout=0.1, input_gradient=False)
    alone = Implementation(modules="transformers", drops_gradients=True, added_share=0.0, lora=lora)
    return names(step.layer_backward(QWEN, alone, 1, TOKENS))


@pytest.mark.parametrize(
    ("targets", "there", "gone"),
    [
        (("query", "value"), ("attention.backward", "query_norm.grad.root"), ("rotary.key.grad.cos", "key.dgrad")),
        (("key",), ("rotary.key.grad.clone", "key_norm.grad.root"), ("value.dgrad", "rotary.query.grad.cos")),
        (("output", "down"), ("output.lora_a.wgrad", "norm2.grad.join"), ("output.dgrad", "attention.backward")),
        (
            ("up",),
            ("gate.product.grad_up", "up.lora_a.wgrad"),
            ("gate.product.grad_gate", "gate.silu.grad", "up.dgrad"),
        ),
        (("gate",), ("gate.silu.grad",), ("gate.product.grad_up", "norm2.grad.root", "gate.dgrad")),
        (("down",), ("down.lora_a.wgrad",), ("gate.product.grad_up", "down.dgrad")),
    ],
)
def test_the_first_layers_input_takes_no_gradient(
    targets: tuple[str, ...], there: tuple[str, ...], gone: tuple[str, ...]
) -> None:
    left = first_layer(*targets)
    assert set(there) <= set(left)
    assert not set(gone) & set(left)
    assert not any(name.startswith("norm1.") for name in left)
    entered = [name for name in left if name.endswith((".lora_a.dgrad", ".lora.dropout.grad", ".lora.grad.sum"))]
    later = {"output": ("down",)}.get(targets[0], ())
    assert {name.partition(".")[0] for name in entered} <= set(later)


def test_blocks_that_share_a_norm_both_begin_at_the_first_layers_input() -> None:
    lora = Lora(16, ("query", "up", "down"), dtype="bf16", input_gradient=False)
    alone = Implementation(modules="transformers", drops_gradients=True, lora=lora)
    left = names(step.layer_backward(load_model("phi-2"), alone, 1, TOKENS))
    assert {"up.lora_a.wgrad", "down.dgrad", "query.lora_a.wgrad"} <= set(left)
    assert not {"up.dgrad", "up.lora_a.dgrad", "query.dgrad", "norm1.grad"} & set(left)


def test_a_checkpoint_stops_once_the_last_adapter_has_its_input() -> None:
    again = names(step.layer_backward(LLAMA, run(recompute="full"), 1, TOKENS))
    assert again.index("down.lora_a") < again.index("down.lora.grad.scale")
    assert "down.lora_b" not in again and "down" in again
    assert "down" not in names(step.layer_backward(LLAMA, run("query", recompute="full"), 1, TOKENS))


def footprint(of: Implementation, layers: int = 1) -> MemoryFootprint:
    return memory_footprint(LLAMA, of, 1, TOKENS, PipelineRank([layers]))


def kept_by_a_layer(of: Implementation) -> float:
    return footprint(of, 3).activations - footprint(of, 2).activations


def test_states_are_the_adapters() -> None:
    adapters = 16 * (4 * 4096 + 2 * 1024 + 2 * 4096 + 3 * (4096 + 14336))
    for dtype, size in (("bf16", 2.0), ("fp32", 4.0)):
        more, less = (footprint(run(dtype=dtype), layers) for layers in (3, 2))
        assert more.parameters - less.parameters == 2.0 * LLAMA.layer_parameters() + size * adapters
        assert more.optimizer - less.optimizer == 2.0 * size * adapters
        assert less.optimizer == 2 * 2.0 * size * adapters


def test_frozen_weights_keep_no_inputs() -> None:
    whole, attention, both = (kept_by_a_layer(of) for of in (FULL, run("query", rank=1), run("query", "up", rank=1)))
    narrow = 2.0 * TOKENS  # bytes of a column of values
    # Of norms the rounded results, which their weights multiplied; the second one's result, the last product's input.
    assert whole - attention == narrow * (2 * 4096 + 4096 + 14336) - narrow
    assert both - attention == narrow * 4096 + narrow
    assert kept_by_a_layer(run("query", "down", rank=1)) - attention == narrow * 14336 + narrow
    assert kept_by_a_layer(run("query", "key", "value", rank=1)) - attention == 2 * narrow


def test_the_first_layer_keeps_nothing_of_its_first_norm() -> None:
    whole, ends, again = (
        footprint(of).activations - kept_by_a_layer(of) for of in (FULL, run("query"), run("query", recompute="full"))
    )
    results = 2 * 2.0 * TOKENS * 4096  # of the final norm, which weights that are frozen do not need
    assert again == whole - results
    assert ends == again - 4.0 * TOKENS * (4096 + 1)


def test_inputs_that_were_dropped_or_cast_are_each_adapters_own() -> None:
    narrow, rank = 2.0 * TOKENS, 4
    one, two = run("query", rank=rank), run("query", "key", rank=rank)
    shared = kept_by_a_layer(two) - kept_by_a_layer(one)
    assert shared == narrow * rank
    dropped = [kept_by_a_layer(run(*names, rank=rank, dropout=0.1)) for names in (("query",), ("query", "key"))]
    assert dropped[1] - dropped[0] == narrow * (rank + 4096) + TOKENS * 4096
    cast = [kept_by_a_layer(run(*names, rank=rank, dtype="fp32")) for names in (("query",), ("query", "key"))]
    assert cast[1] - cast[0] == narrow * (rank + 4096) + 2.0 * rank * (4096 + 1024)


#: A Llama so small that transformers 5.23 and PEFT 0.21 run it on a CPU, where every operation of a further layer was
#: counted as PyTorch 2.13 dispatched it, and every byte that autograd kept: see the two tests below.
TINY = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 96}
WIDE_BASE = {"parameters": "fp32"}


def tiny(keys: int, ffn: int) -> ModelConfig:
    sizes = {"num_key_value_heads": keys, "intermediate_size": ffn, "max_position_embeddings": 64}
    return parse_config(TINY | sizes, name="tiny", file="tiny")


@pytest.mark.parametrize(
    ("of", "forward", "backward", "casts"),
    [
        (FULL, 38, 71, (4, 4)),
        (run("query", "value", rank=4), 46, 72, (4, 4)),
        (run(rank=4, dtype="fp32"), 94, 130, (32, 32)),
        (run(rank=4, recompute="full"), 66, 164, (4, 8)),
        (run(rank=4, dtype="fp32", **WIDE_BASE), 99, 134, (37, 36)),
        (run("query", "value", rank=4, dtype="fp32", **WIDE_BASE), 62, 87, (20, 19)),
    ],
)
def test_kernels_are_the_operations_that_peft_dispatches(
    of: Implementation, forward: int, backward: int, casts: tuple[int, int]
) -> None:
    size = (tiny(2, 128), of, 2, 32)
    ways = names(step.layer_forward(*size)), names(step.layer_backward(*size))
    # The gradients of four slices, of the rotation, are each one operation of two kernels.
    assert (len(ways[0]), len(ways[1]) - 4) == (forward, backward)
    assert tuple(sum(name.endswith((".round", ".widen")) for name in way) for way in ways) == casts


@pytest.mark.parametrize(
    ("of", "kept"),
    [
        (FULL, 181_760),
        (run("query", "value", rank=4), 137_728),
        (run("output", rank=4), 129_024),
        (run(rank=4), 168_960),
        (run(rank=4, dtype="fp32"), 211_200),
        (run("down", rank=4, dtype="fp32"), 151_296),
        (run(rank=4, dtype="fp32", **WIDE_BASE), 305_408),
        (run("query", "value", rank=4, dtype="fp32", **WIDE_BASE), 242_176),
    ],
)
def test_a_layer_keeps_the_bytes_that_autograd_keeps(of: Implementation, kept: int) -> None:
    config = tiny(4, 160)
    stacks = [memory_footprint(config, of, 2, 32, PipelineRank([layers])).activations for layers in (2, 3)]
    assert stacks[1] - stacks[0] == kept


def test_operations_of_the_model_leave_out_gradients_of_frozen_weights() -> None:
    whole, frozen = training_flops(LLAMA, TOKENS, 1.0), training_flops(LLAMA, TOKENS, 1.0, 1000)
    weights = LLAMA.parameters - LLAMA.embedding_parameters - (2 * LLAMA.layers + 1) * LLAMA.hidden
    assert whole - frozen == pytest.approx(2.0 * weights - 6000.0)


def test_autocast_takes_layer_norms_in_fp32() -> None:
    """As ``torch.autocast`` does beside adapters in fp32: what a norm reads is widened, what it gives is rounded."""
    config = parse_config(
        {
            "model_type": "gpt_neox",
            "hidden_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 1024,
            "vocab_size": 512,
            "use_parallel_residual": True,
        },
        name="neox",
        file="config.json",
    )
    cast, plain = (run("qkv", "up", dtype=dtype) for dtype in ("fp32", "bf16"))
    forward, backward = (
        {one.operator.name: one.operator for one in of(config, cast, 1, TOKENS)}
        for of in (step.layer_forward, step.layer_backward)
    )
    assert {"norm1.widen", "norm2.widen", "qkv.round", "up.round"} <= set(forward)
    assert forward["norm1"].dtype == "fp32" and "qkv.lora.widen" not in forward
    assert {"norm1.grad.round", "qkv.dgrad.widen"} <= set(backward) and "qkv.lora.grad.round" not in backward
    assert not any("norm1.widen" in name for name in names(step.layer_forward(config, plain, 1, TOKENS)))
    assert "query.lora.widen" in names(step.layer_forward(LLAMA, run(dtype="fp32"), 1, TOKENS))  # RMSNorm gives bf16


def test_autocast_squares_in_fp32_what_the_last_product_then_rounds() -> None:
    """``torch.square`` is a power, which autocast takes in fp32 though Nemotron's norms give the products' type."""
    config = load_model("nemotron-4-15b")
    for targets in (("query",), ("query", "down")):
        size = (config, run(*targets, dtype="fp32"), 1, TOKENS)
        forward, backward = names(step.layer_forward(*size)), names(step.layer_backward(*size))
        assert "down.round" in forward and "down.lora.widen" not in forward
        assert "down.dgrad.widen" in backward and "down.lora.grad.round" not in backward
        assert "query.lora.widen" in forward and "up.round" not in forward
    assert "down.round" not in names(step.layer_forward(config, run("query"), 1, TOKENS))
