"""Linear layers of PyTorch in FP8, compiled layers and operators on experts' rows: what is launched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from plan_tables import changed, merged

import joulecast as jc
from joulecast.errors import InputError
from joulecast.model.architecture.experts import Experts
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch, issued
from joulecast.model.framework.layer_shard import shard
from joulecast.model.framework.narrow import Narrow
from joulecast.model.kernels.operators import Collective, Gemm, Streaming
from joulecast.model.memory.activations import layer_bytes
from joulecast.model.training.step import layer_backward, layer_forward
from joulecast.model.transformer import row_operators
from joulecast.simulator.instructions.footprints import footprint_of
from joulecast.simulator.instructions.program import plan_program, stage_parameters
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import plan_from_dict

MODEL = ModelConfig("tiny", 1024, 4, 8, 4, 128, 2048, 4096, rotary=False)
MOE = replace(MODEL, experts=Experts(16, 8, 512))
EAGER = Implementation()
NARROW = replace(EAGER, narrow=Narrow("tensorwise"))
TOKENS = 2048


def layer(run: Implementation, model: ModelConfig = MODEL) -> tuple[Launch, ...]:
    return (*layer_forward(model, run, 1, TOKENS), *layer_backward(model, run, 1, TOKENS, accumulate=False))


def products(launches: tuple[Launch, ...]) -> list[Gemm]:
    return [x.operator for x in launches if isinstance(x.operator, Gemm)]


def moved(launches: tuple[Launch, ...]) -> float:
    return sum(x.operator.bytes_read + x.operator.bytes_written for x in launches if isinstance(x.operator, Streaming))


def named(launches: tuple[Launch, ...], part: str) -> list[Launch]:
    return [x for x in launches if part in x.operator.name]


def test_all_products_of_a_layer_are_fp8_and_only_the_forward_sums_in_the_matrix_units() -> None:
    for run in (NARROW, replace(NARROW, compiled=True), replace(NARROW, narrow=Narrow("rowwise"))):
        found = products(layer(run))
        assert sorted((g.m, g.n, g.k) for g in found) == sorted((g.m, g.n, g.k) for g in products(layer(EAGER)))
        assert {(g.dtype, g.layout, g.out_dtype) for g in found} == {("fp8", "tn", "bf16")}
        assert {g.name.partition(".")[2] for g in found if g.fast_accumulation} == {""}
        assert sum(g.fast_accumulation for g in found) == 4


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_layers_with_biases_run_the_same_products_and_sum_each_bias_once(recipe: str, compiled: bool) -> None:
    biased = replace(MODEL, qkv_bias=True, output_bias=True, mlp_bias=True)
    run = replace(EAGER, narrow=Narrow(recipe), compiled=compiled)
    launches = layer(run, biased)
    assert products(launches) == products(layer(run))
    assert [x.operator.name for x in launches if x.operator.name.endswith(".bias.grad")] == [
        x.operator.name for x in layer(EAGER, biased) if x.operator.name.endswith(".bias.grad")
    ]


def test_bytes_of_an_eager_cast_by_hand() -> None:
    """2 + 2 for the absolute value, 2 for the greatest, 2 + 4 widened, 4 + 4 twice, 4 + 1: 33; a copy turns 1 + 1."""
    values = TOKENS * 1024
    cast = named(layer(NARROW), "output.input")
    turned = [x for x in cast if x.operator.name.endswith(".turn")]
    scalars = [x for x in cast if x.operator.name.endswith(".scale")]
    assert moved(tuple(x for x in cast if x not in scalars)) == pytest.approx(2 * 33 * values + 2 * values)
    assert len(turned) == 1 and [x.repeat for x in scalars] == [6, 6]


def test_compiling_moves_fewer_bytes_and_leaves_every_product_as_it_is() -> None:
    fused = replace(EAGER, compiled=True)
    assert products(layer(fused)) == products(layer(EAGER))
    assert moved(layer(fused)) < 0.75 * moved(layer(EAGER))
    assert moved(layer(replace(NARROW, compiled=True))) < 0.4 * moved(layer(NARROW))


def test_a_kernel_bound_by_instructions_follows_the_clock_and_draws_more_than_one_that_waits() -> None:
    gpu = jc.gpu("h200-sxm")
    values = 2**26
    bound = issued("embedding", "rows", values, 2.0 * values).operator
    fast, slow = (gpu.predict(bound, clock_mhz=clock) for clock in (1980, 990))
    assert fast.time_s == pytest.approx(2.0 * values / (132 * 1.98e9), rel=0.05)
    assert slow.time_s == pytest.approx(2 * fast.time_s, rel=0.05)
    assert fast.power_w > 1.2 * gpu.predict(replace(bound, activity=1.0), clock_mhz=1980).power_w
    assert gpu.predict(replace(bound, sm_cycles=0.0)).time_s < 0.3 * fast.time_s


def test_what_a_token_chooses_costs_a_block_of_as_many_threads_as_there_are_experts() -> None:
    cycles = [row_operators.choice(1000, experts).operator.sm_cycles for experts in (8, 32, 64, 1024, 2048)]
    assert cycles[0] == cycles[1] < cycles[2] < cycles[3]
    assert cycles[4] == pytest.approx(2 * cycles[3], rel=0.05)


def test_each_operator_on_rows_brings_its_own_gradient() -> None:
    plain = replace(EAGER, fused_permutation=False)
    runs = {name: replace(plain, row_operator=name) for name in ("scatter_add", "index_add", "index_put")}
    times = {}
    for name, run in runs.items():
        launches = layer(run, MOE)
        gpu = jc.gpu("h200-sxm")
        times[name] = sum(gpu.predict(x.operator).time_s for x in launches if "permute" in x.operator.name)
        assert len(named(launches, "router.order")) == 1
    assert times["index_put"] < times["scatter_add"] < times["index_add"]
    assert not named(layer(plain, MOE), "router.order")
    assert named(layer(runs["index_put"], MOE), "permute.grad.sort")


def test_a_product_that_sums_in_the_matrix_units_costs_less_energy() -> None:
    gpu = jc.gpu("h200-sxm")
    slow = jc.Gemm(4096, 4096, 4096, "fp8", out_dtype="bf16")
    one, other = (gpu.predict(g, clock_mhz=1200) for g in (slow, replace(slow, fast_accumulation=True)))
    assert other.time_s == pytest.approx(one.time_s) and 0.8 * one.energy_j < other.energy_j < 0.97 * one.energy_j
    rows = gpu.predict(replace(slow, block_scaled=True, row_scaled=True), clock_mhz=1200)
    assert rows.time_s > gpu.predict(replace(slow, block_scaled=True), clock_mhz=1200).time_s > one.time_s


def plan(**tables: dict[str, Any]) -> dict[str, Any]:
    base: dict[str, Any] = {
        "workload": {"model": "llama-3.2-1b", "sequence_length": 2048, "global_batch_size": 8, "precision": "fp8"},
        "cluster": {"gpu": "h200-sxm", "gpus": 1},
        "implementation": {},
        "parallelism": {},
    }
    return merged(base, tables)


TITAN = replace(NARROW, modules="torchtitan", compiled=True)
TITAN_SPLIT = replace(TITAN, tensor_parallel=2, sequence_parallel=True)


def titan(run: Implementation) -> tuple[Launch, ...]:
    return layer(run, replace(MODEL, rotary=True))


def collectives(launches: tuple[Launch, ...]) -> list[Collective]:
    return [x.operator for x in launches if isinstance(x.operator, Collective)]


def test_a_graph_casts_what_products_share_once_in_each_direction_and_eager_layers_for_each() -> None:
    """Inputs of attention, the output, gate with up, and down: four forward and four backward; eager seven each."""
    for run, casts in ((TITAN, 4), (replace(TITAN, narrow=Narrow("rowwise")), 4)):
        inputs = [x for x in named(titan(run), ".input.") if x.operator.name.endswith((".cast", ".columns"))]
        assert len(inputs) == 2 * casts
    eager = named(titan(replace(TITAN, compiled=False)), ".input.")
    assert sum(x.operator.name.endswith(".round") for x in eager) == 2 * 7
    assert {g.dtype for g in products(titan(TITAN))} == {"fp8"} and len(products(titan(TITAN))) == 3 * 7


@pytest.mark.parametrize("compiled", [False, True])
def test_ranks_gather_the_sequence_in_fp8_and_scatter_sums_in_bf16(compiled: bool) -> None:
    """What norms give and the gradients of what both blocks give: one byte a value where bf16 has two."""
    run = replace(TITAN_SPLIT, compiled=compiled)
    narrow, wide = (collectives(titan(r)) for r in (run, replace(run, narrow=None)))
    gathered, scattered = ([c.bytes for c in narrow if c.kind == k] for k in ("all_gather", "reduce_scatter"))
    assert gathered == [TOKENS * 1024] * 4 and scattered == [2 * TOKENS * 1024] * 4
    assert [c.bytes for c in wide if c.kind == "all_gather"] == [2 * TOKENS * 1024] * 4


def test_every_greatest_value_is_that_of_all_ranks() -> None:
    """Forward two gathered tensors, two inputs and seven weights; backward seven gradients: 18 numbers."""
    reduced = [c for c in collectives(titan(TITAN_SPLIT)) if c.kind == "all_reduce"]
    assert len(reduced) == 2 + 2 + 7 + 7 and {c.bytes for c in reduced} == {4.0}
    assert not [c for c in collectives(titan(replace(TITAN_SPLIT, narrow=None))) if c.kind == "all_reduce"]


def test_what_ranks_gathered_in_fp8_is_turned_and_not_cast_again() -> None:
    """Turned for the weights' gradients: both norms' results, and the gradients that both blocks' sums came with."""
    turns = [x.operator.name for x in titan(TITAN_SPLIT) if x.operator.name.endswith(".turn")]
    assert sorted(turns) == ["down.grad.turn", "output.grad.turn", "up.input.turn", "value.input.turn"]
    casts = [x.operator.name for x in titan(TITAN_SPLIT) if ".input.cast" in x.operator.name]
    assert sorted(casts) == ["down.input.cast"] * 2 + ["output.input.cast"] * 2


def test_torchtitans_compiled_layer_makes_norms_and_activations_again_and_keeps_what_was_gathered() -> None:
    """Of bf16's: both norms' results (2 bytes a value) and the activation's; gathered ones stay, in FP8."""
    whole, split = (
        tuple(layer_bytes(shard(MODEL, r, 1, TOKENS)) for r in (replace(run, narrow=None), run))
        for run in (TITAN, TITAN_SPLIT)
    )
    assert whole[0] - whole[1] == 2 * TOKENS * (2 * 1024 + 2048)
    assert split[0] - split[1] == TOKENS * (2 * 1024 + 2 * 2048 / 2)


def test_torchtitans_full_recomputation_runs_products_again() -> None:
    again = replace(TITAN, recompute="full")
    assert not again.keeps_products and replace(again, modules="joint").keeps_products
    assert layer_bytes(shard(MODEL, again, 1, TOKENS)) == 2 * TOKENS * 1024


def test_recipes_belong_to_frameworks() -> None:
    read = plan_from_dict
    assert read(plan()).workload.narrow == Narrow("tensorwise", one_layout=True)
    megatron = {"implementation": {"framework": "megatron"}}
    assert read(plan(**megatron)).workload.narrow == Narrow("delayed", one_layout=True)
    assert read(plan(workload={"fp8_recipe": "rowwise"})).workload.narrow == Narrow("rowwise", one_layout=True)


@pytest.mark.parametrize(
    ("tables", "key", "words"),
    [
        ({"workload": {"fp8_recipe": "delayed"}}, "workload.fp8_recipe", "megatron"),
        (
            {"workload": {"fp8_recipe": "rowwise"}, "implementation": {"framework": "megatron"}},
            "workload.fp8_recipe",
            "pytorch-eager",
        ),
        ({"workload": {"fp8_param_gather": True}}, "workload.fp8_param_gather", "parallelism.fsdp = true"),
        (
            {
                "workload": {"fp8_param_gather": True, "fp8_recipe": "rowwise"},
                "cluster": {"gpus": 2},
                "parallelism": {"fsdp": True},
            },
            "workload.fp8_param_gather",
            "tensorwise",
        ),
        ({"workload": {"model": "mixtral-8x7b", "layers": 2}}, "workload.precision", "megatron"),
        ({"cluster": {"gpus": 2}, "parallelism": {"tensor_model_parallel_size": 2}}, "workload.precision", "megatron"),
        ({"implementation": {"attention_precision": "fp8"}}, "workload.precision", "megatron"),
        ({"implementation": {"compile": True, "framework": "megatron"}}, "implementation.compile", "pytorch-eager"),
        (
            {
                "workload": {"model": "mixtral-8x7b", "layers": 2, "precision": "bf16"},
                "implementation": {"compile": True},
            },
            "implementation.compile",
            "Leave",
        ),
        ({"implementation": {"moe_row_operator": "scatter_add"}}, "implementation.moe_row_operator", "false"),
    ],
)
def test_what_is_not_known_is_refused(tables: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        plan_from_dict(plan(**tables))
    assert error.value.key == key and words in (error.value.remedy or "")


def test_weights_in_fp8_are_kept_by_megatron_alone() -> None:
    """PyTorch casts them in every layer: what it keeps is what it keeps in bf16."""
    assert layer_bytes(shard(MODEL, NARROW, 1, TOKENS)) == layer_bytes(shard(MODEL, EAGER, 1, TOKENS))
    megatron = replace(NARROW, framework="megatron")
    assert layer_bytes(shard(MODEL, megatron, 1, TOKENS)) < layer_bytes(
        shard(MODEL, replace(megatron, narrow=None), 1, TOKENS)
    )
    whole, fused = (forecast(plan_from_dict(plan(implementation={"compile": on}))) for on in (False, True))
    assert fused.time_s < whole.time_s


def sent(tables: dict[str, Any]) -> float:
    program = plan_program(plan_from_dict(tables)).ranks[0]
    launches = [launch for kind in program.order for launch in program.types[kind]]
    return sum(x.operator.bytes * x.repeat for x in launches if isinstance(x.operator, Collective))


@pytest.mark.parametrize("split", [{}, {"distributed_optimizer": True}, {"fsdp": True}])
def test_gradients_are_kept_and_reduced_in_bf16(split: dict[str, Any]) -> None:
    """Only products are FP8: ranks exchange the same bytes as in bf16 and hold the same states."""
    narrow = plan(cluster={"gpus": 2}, parallelism=split)
    wide = plan(cluster={"gpus": 2}, parallelism=split, workload={"precision": "bf16"})
    assert sent(narrow) == sent(wide) > 0
    one, other = (footprint_of(plan_from_dict(tables), 0) for tables in (narrow, wide))
    assert one.states_bytes == other.states_bytes and one.gathered == other.gathered
    said = {"gradient_precision": "bf16", "optimizer_precision": "bf16"}
    assert sent({**narrow, "implementation": said}) == sent(narrow)


@pytest.mark.parametrize("compiled", [False, True])
def test_weights_that_arrive_in_fp8_are_only_turned(compiled: bool) -> None:
    """The forward takes them as they are, the input's gradient a transposed copy; all else stands."""
    plain = replace(NARROW, compiled=compiled)
    run = replace(plain, gathered=True, narrow=Narrow("tensorwise", parameters=True))
    assert products(layer(run)) == products(layer(plain))
    weights = [x.operator.name for x in named(layer(run), ".weight.")]
    assert sorted(weights) == sorted(f"{name}.weight.turn" for name in ("qkv", "output", "up", "down"))
    others = [[x for x in layer(way) if ".weight." not in x.operator.name] for way in (run, plain)]
    assert others[0] == others[1]


def test_fsdp_gathers_in_fp8_and_finds_scales_once_a_step() -> None:
    """Linear layers' weights in one byte instead of two; each rank reads its shards once for the greatest values."""
    sharded = plan(cluster={"gpus": 4}, parallelism={"fsdp": True}, workload={"fp8_param_gather": True})
    of, wide = (plan_from_dict(one) for one in (sharded, changed(sharded, {"workload__fp8_param_gather": None})))
    sent = [
        sum(x.operator.bytes for x in plan_program(way).ranks[0].types[0] if x.operator.name.endswith("all_gather"))
        for way in (of, wide)
    ]
    linear = sum(p.elements for p in stage_parameters(of, 0) if p.linear)
    assert sent[1] - sent[0] == linear
    step = [x.operator for x in plan_program(of).ranks[0].types[-1]]
    found = next(one for one in step if one.name == "weights.greatest")
    assert found.elements == linear / 4
    assert sum(one.name == "weights.greatest.all_reduce" for one in step) == 1
    assert not any(x.operator.name.startswith("weights.") for x in plan_program(wide).ranks[0].types[-1])
    gathered = [footprint_of(one, 0).cached for one in (of, wide)]
    assert gathered[0] < gathered[1]
    assert forecast(of).time_s < forecast(wide).time_s
