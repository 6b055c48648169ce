"""Tensors kept in fewer bits until the backward, and tokens sent to experts in FP8: bytes and kernels, by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from plan_tables import changed

from joulecast.errors import InputError
from joulecast.model.architecture.experts import Experts, LatentAttention
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.layer_shard import shard
from joulecast.model.framework.narrow import Narrow
from joulecast.model.kernels.operators import Collective, Streaming
from joulecast.model.memory.activations import layer_bytes
from joulecast.model.memory.layer_transients import layer_transient_bytes
from joulecast.model.training.step import layer_backward, layer_forward
from joulecast.simulator.plan_file.plan import plan_from_dict

DENSE = ModelConfig("tiny", 512, 4, 8, 4, 64, 1024, 4096)
MOE = replace(DENSE, experts=Experts(16, 2, 256, shared_ffn=256))
LATENT = replace(DENSE, head_dim=80, kv_heads=8, latent=LatentAttention(192, 128, 64, 32, 64))
TOKENS = 2048
FP8 = Implementation(framework="megatron", expert_parallel=8, expert_dispatcher="flex", narrow=Narrow("blockwise"))
#: Bytes of a value in FP8 and in E5M6, each with a share of a scale of four bytes for 128 values.
EIGHT, TWELVE = 1 + 4 / 128, 1.5 + 4 / 128


def saved(config: ModelConfig, run: Implementation, **options: Any) -> float:
    """Bytes of a layer that options save."""
    return layer_bytes(shard(config, run, 2, 1024)) - layer_bytes(shard(config, replace(run, **options), 2, 1024))


def more(config: ModelConfig, run: Implementation, **options: Any) -> Counter[str]:
    """Kernels of a layer's forward and backward that options add, less those that they take away."""
    found: Counter[str] = Counter()
    for sign, how in ((1, replace(run, **options)), (-1, run)):
        for launch in (*layer_forward(config, how, 2, 1024), *layer_backward(config, how, 2, 1024)):
            found[launch.operator.name] += sign
    return Counter({name: count for name, count in found.items() if count})


def kernel(config: ModelConfig, run: Implementation, name: str) -> Streaming:
    launches = (*layer_forward(config, run, 2, 1024), *layer_backward(config, run, 2, 1024))
    found = [x.operator for x in launches if x.operator.name == name]
    assert len(found) == 1 and isinstance(found[0], Streaming)
    return found[0]


def test_an_activations_input_takes_a_byte_and_its_scale():
    stored = {"stores_activation_input": True}
    rows, up, shared = 2 * TOKENS, 2 * 256, 2 * 256
    assert saved(DENSE, FP8, **stored) == pytest.approx((2 - EIGHT) * TOKENS * 2 * 1024)
    assert saved(DENSE, replace(FP8, narrow=None), **stored) == TOKENS * 2 * 1024
    assert saved(MOE, FP8, **stored) == pytest.approx((2 - EIGHT) * (rows * up + TOKENS * shared))
    of_all = replace(FP8, recompute="selective", recompute_modules=("moe",))
    assert saved(MOE, of_all, **stored) == pytest.approx(0)
    casts = {f"{part}.input.{way}": 1 for part in ("experts", "shared") for way in ("store", "restore")}
    assert more(MOE, FP8, **stored) == casts
    one = kernel(MOE, replace(FP8, **stored), "experts.input.store")
    assert (one.bytes_read, one.bytes_written) == pytest.approx((2 * rows * up, EIGHT * rows * up))
    one = kernel(MOE, replace(FP8, **stored), "experts.input.restore")
    assert (one.bytes_read, one.bytes_written) == pytest.approx((EIGHT * rows * up, 2 * rows * up))


def test_its_gradient_has_it_whole_again():
    plain, stored = (shard(MOE, replace(FP8, stores_activation_input=on), 2, 1024) for on in (False, True))
    assert layer_transient_bytes(stored) - layer_transient_bytes(plain) == 2 * (2 * TOKENS) * 2 * 256


@pytest.mark.parametrize("config", [DENSE, LATENT])
def test_attentions_output_is_kept_once(config):
    packed = {"packs_attention_output": True}
    width = shard(config, FP8, 2, 1024).attention_width
    assert saved(config, FP8, **packed) == pytest.approx((2 - TWELVE) * TOKENS * width)
    delayed = replace(FP8, narrow=Narrow("delayed"))
    assert saved(config, delayed, **packed) == pytest.approx((2 + 1 - TWELVE) * TOKENS * width)
    assert more(config, FP8, **packed) == {"attention.output.pack": 1, "attention.output.unpack": 1}
    one = kernel(config, replace(FP8, **packed), "attention.output.unpack")
    assert (one.bytes_read, one.bytes_written) == pytest.approx((TWELVE * TOKENS * width, (2 + EIGHT) * TOKENS * width))
    copies = [kernel(config, run, "output.input.quantise").bytes_written for run in (FP8, replace(FP8, **packed))]
    assert copies == pytest.approx([2 * EIGHT * TOKENS * width, EIGHT * TOKENS * width])


def exchanged(run: Implementation) -> dict[str, float]:
    launches = (*layer_forward(MOE, run, 2, 1024), *layer_backward(MOE, run, 2, 1024))
    of = [x.operator for x in launches if isinstance(x.operator, Collective)]
    return {one.name: one.bytes for one in of if one.name.endswith("all_to_all")}


def test_tokens_go_to_experts_in_half_of_the_bytes():
    """Tokens and gradients of results go in FP8; results and gradients of tokens come back in bf16."""
    sent = replace(FP8, narrow_dispatch=True)
    wide, narrow = exchanged(FP8), exchanged(sent)
    share = {name: narrow[name] / wide[name] for name in wide}
    there, back = EIGHT / 2, 1.0
    assert share == pytest.approx(
        {
            "dispatch.all_to_all": there,
            "combine.all_to_all": back,
            "combine.grad.all_to_all": there,
            "dispatch.grad.all_to_all": back,
        }
    )
    assert more(MOE, FP8, narrow_dispatch=True) == {
        "dispatch.input.quantise": 1,
        "experts.up.input.quantise": -1,
        "dispatch.rows.turn": 1,
        "combine.grad.input.quantise": 1,
        "experts.down.grad.quantise": -1,
        "combine.grad.rows.turn": 1,
    }
    assert kernel(MOE, sent, "dispatch.input.quantise").bytes_read == 2 * TOKENS * 512  # before tokens are copied
    rows = [kernel(MOE, run, "dispatch.sort") for run in (FP8, sent)]
    assert rows[1].bytes_written / rows[0].bytes_written == pytest.approx(EIGHT / 2)
    assert saved(MOE, FP8, narrow_dispatch=True) == 0


TABLES: dict[str, Any] = {
    "workload": {
        "model": "deepseek-v3",
        "layers": 8,
        "sequence_length": 4096,
        "global_batch_size": 64,
        "precision": "fp8",
        "fp8_recipe": "blockwise",
    },
    "cluster": {"gpu": "h800-sxm", "gpus": 64},
    "parallelism": {"expert_model_parallel_size": 64, "distributed_optimizer": True},
    "implementation": {"framework": "megatron", "moe_token_dispatcher_type": "flex"},
}
STORE, OUTPUT = (
    {"implementation__activation_func_fp8_input_store": True},
    {"implementation__attention_output_store": "e5m6"},
)
DISPATCH = {"implementation__moe_dispatch_precision": "fp8"}
#: A dense model in bf16.
WIDE = {
    "workload": {"model": "llama-3.1-8b", "sequence_length": 2048, "global_batch_size": 64},
    "parallelism": {},
    "implementation__moe_token_dispatcher_type": None,
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (DISPATCH | {"implementation__moe_token_dispatcher_type": "alltoall"}, "moe_dispatch_precision.*DeepEP.*flex"),
        (DISPATCH | {"workload__fp8_recipe": "delayed"}, "moe_dispatch_precision.*1 x 128.*blockwise"),
        (DISPATCH | {"workload__model": "llama-3.1-8b"}, "no experts"),
        (OUTPUT | {"workload__precision": "bf16", "workload__fp8_recipe": None}, "attention_output_store.*FP8"),
        (OUTPUT | {"implementation__attention_output_store": "e4m3"}, "attention_output_store.*e5m6"),
        (STORE | WIDE | {"workload__model": "gpt3-175b"}, "activation_func_fp8_input_store.*SwiGLU"),
        (STORE | WIDE | {"implementation__framework": "pytorch-eager"}, "activation_func_fp8_input_store.*Megatron"),
    ],
)
def test_what_is_not_known_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        plan_from_dict(changed(TABLES, changes))


def test_all_three_together_are_a_plan():
    plan = plan_from_dict(changed(TABLES, STORE | OUTPUT | DISPATCH))
    assert plan.implementation.moe_dispatch_precision == "fp8"
