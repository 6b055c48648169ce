"""Distributed optimizer, FSDP, and communication beside whole instructions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_tables import merged

from joulecast.errors import InputError, NotYetError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.operators import Collective
from joulecast.simulator.fluid.prepared import prepare
from joulecast.simulator.instructions.clock_columns import mean_power_w
from joulecast.simulator.instructions.footprints import footprint_of
from joulecast.simulator.instructions.kernel_segments import MARKER
from joulecast.simulator.instructions.overlapped_buckets import OverlappedBuckets, exposed_s
from joulecast.simulator.instructions.program import plan_program, stage_parameters
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict
from joulecast.simulator.traces.breakdown import breakdown
from joulecast.simulator.traces.kernel_timeline import kernel_timeline

ONE_NODE = {"model": "llama-3.2-1b", "sequence_length": 4096, "global_batch_size": 32}


def plan(**tables: Any) -> Plan:
    usual: dict[str, Any] = {
        "workload": ONE_NODE,
        "cluster": {"gpu": "h200-sxm", "gpus": 8},
        "implementation": {"framework": "megatron"},
    }
    return plan_from_dict(merged(usual, tables), "PLAN.toml")


def communicated(plan: Plan, rank: int = 0) -> dict[str, float]:
    """Bytes of each kind of collective in one iteration of a rank, those beside its instructions included."""
    program, found = plan_program(plan).ranks[rank], {}
    for kind in program.order:
        for launch in program.types[kind]:
            if isinstance(launch.operator, Collective):
                found[launch.operator.kind] = found.get(launch.operator.kind, 0.0) + launch.operator.bytes
    for item in program.overlapped:
        one = item.operator
        found[one.kind] = found.get(one.kind, 0.0) + one.bytes * item.buckets
    return found


def elements(plan: Plan, rank: int = 0) -> int:
    return sum(p.elements for p in stage_parameters(plan, rank))


def test_fully_sharded_gradients_of_pytorch_are_new_in_every_backward() -> None:
    """Shards are added, whole gradients are not; nor is anything set to zero, or more copied than each unit needs."""
    split = plan(parallelism={"fsdp": True}, implementation={"framework": "pytorch-eager"})
    rank = plan_program(split).ranks[0]
    names = [x.operator.name for kind in rank.order for x in rank.types[kind] for _ in range(x.repeat)]
    assert not [name for name in names if name.endswith("weight.accumulate") or "zero_grad" in name]
    units = split.workload.model.layers + 1
    assert names.count("shards.accumulate") == names.count("reduce_scatter.copy") == units * split.microbatches
    assert names.count("all_gather.shards.copy") == (2 * units - 1) * split.microbatches


# Distributed optimizer

ZERO = {"distributed_optimizer": True}
BOTH = {"grad_reduce": "overlapped", "param_gather": "overlapped"}


@pytest.mark.parametrize("overlap", [{}, {"grad_reduce": "overlapped"}, BOTH], ids=str)
def test_a_distributed_optimizer_scatters_gradients_and_gathers_parameters(overlap: dict[str, str]) -> None:
    chosen = plan(parallelism=ZERO, overlap=overlap)
    n = elements(chosen)
    assert communicated(chosen) == pytest.approx({"reduce_scatter": 4.0 * n, "all_gather": 2.0 * n})
    assert communicated(plan(overlap={"grad_reduce": overlap.get("grad_reduce", "after")})) == {"all_reduce": 4.0 * n}


def test_buckets_of_eager_gradients_are_scattered() -> None:
    chosen = plan(
        parallelism=ZERO, overlap={"grad_reduce": "overlapped"}, implementation={"framework": "pytorch-eager"}
    )
    assert communicated(chosen) == pytest.approx(
        {"reduce_scatter": 2.0 * elements(chosen), "all_gather": 2.0 * elements(chosen)}
    )


def test_fp8_weights_are_gathered_in_fp8() -> None:
    chosen = plan(parallelism=ZERO, workload={"precision": "fp8", "fp8_param_gather": True})
    tensors = stage_parameters(chosen, 0)
    expected = sum(p.elements * (1 if p.linear else 2) for p in tensors)
    assert communicated(chosen)["all_gather"] == pytest.approx(expected)


@pytest.mark.parametrize("overlap", [{}, BOTH], ids=str)
def test_gradients_in_bf16_halve_their_reduction(overlap: dict[str, str]) -> None:
    narrow = {"framework": "megatron", "gradient_precision": "bf16"}
    wide, half = (plan(parallelism=ZERO, overlap=overlap, implementation=run) for run in ({}, narrow))
    assert communicated(half)["reduce_scatter"] == pytest.approx(communicated(wide)["reduce_scatter"] / 2)
    assert communicated(half)["all_gather"] == communicated(wide)["all_gather"]
    a, b = footprint_of(wide, 0), footprint_of(half, 0)
    assert b.gradients == pytest.approx(a.gradients / 2)
    assert b.optimizer == a.optimizer  # a shard of them is copied to fp32 for the step alone
    assert forecast(half).time_s < forecast(wide).time_s


def test_the_ends_of_a_pipeline_sum_a_tied_matrix() -> None:
    """In Megatron; llama-3.2-1b has one matrix for embedding and head."""
    split = {"pipeline_model_parallel_size": 4}
    cluster = {"gpus": 4}
    table = next(p for p in stage_parameters(plan(), 0) if p.name == "embedding.weight").elements
    ends = [communicated(plan(parallelism=split, cluster=cluster), rank).get("all_reduce", 0.0) for rank in range(4)]
    assert ends == [4.0 * table, 0.0, 0.0, 4.0 * table]
    across = plan(parallelism=split, cluster={"gpus": 16, "gpus_per_node": 8})
    sums = [x.operator for x in plan_program(across).ranks[3].types[-1] if x.operator.name == "gradients.all_reduce"]
    assert [(one.gpus, one.fabric.domains if one.fabric else 1) for one in sums] == [(4, 1), (2, 2)]  # 12 ranks apart
    inside = plan(parallelism=split, cluster={"gpus": 8, "gpus_per_node": 8})  # ranks 0 and 6 of one node
    sums = [x.operator for x in plan_program(inside).ranks[3].types[-1] if x.operator.name == "gradients.all_reduce"]
    assert [one.fabric.domains if one.fabric else 1 for one in sums] == [1, 1]
    untied = {"framework": "megatron", "tie_embeddings": False}
    assert communicated(plan(parallelism=split, cluster=cluster, implementation=untied)) == {}


def test_gradients_in_another_type_are_not_offered() -> None:
    with pytest.raises(NotYetError) as error:
        plan(implementation={"gradient_precision": "fp16"})
    assert error.value.key == "implementation.gradient_precision"


def test_states_are_split_and_their_step_is_shorter() -> None:
    whole, split = plan(), plan(parallelism=ZERO)
    a, b = footprint_of(whole, 0), footprint_of(split, 0)
    assert b.optimizer == pytest.approx(a.optimizer / 8)
    assert (b.parameters, b.gradients) == (a.parameters, a.gradients)
    assert forecast(split).time_s < forecast(whole).time_s


@pytest.mark.parametrize("stages", [1, 4])
def test_overlap_hides_most_of_it(stages: int) -> None:
    split = ZERO | {"pipeline_model_parallel_size": stages}
    cluster = {"gpus": 64, "gpu": "h100-sxm"}
    work = {"global_batch_size": 256, "model": "llama-3.1-8b"}
    large = {**BOTH, "grad_bucket_mb": 400.0}  # each bucket has its latency
    after, beside = (
        forecast(plan(parallelism=split, overlap=o, cluster=cluster, workload=work), must_fit=False).ranks[0]
        for o in ({}, large)
    )
    both = [r.exposed_communication_s + r.overlapped_communication_s for r in (after, beside)]
    assert both[1] == pytest.approx(both[0], rel=0.1)  # the same communication, elsewhere
    assert beside.exposed_communication_s < after.exposed_communication_s
    assert beside.overlapped_communication_s > 0.5 * (both[1] - beside.exposed_communication_s)
    assert beside.compute_s > after.compute_s  # it loses the SMs that communication holds


@pytest.mark.parametrize("stages", [1, 2])
def test_the_timeline_has_the_time_and_energy_of_the_forecast(stages: int) -> None:
    split = ZERO | {"pipeline_model_parallel_size": stages}
    chosen = plan(parallelism=split, overlap=BOTH, power={"clock_mhz": 1200.0})
    timeline, iteration = kernel_timeline(chosen), forecast(chosen)
    assert timeline.time_s == pytest.approx(iteration.time_s, rel=1e-6)
    drawn = sum(one.energy_j * rank.gpus for one, rank in zip(timeline.timelines, iteration.ranks, strict=True))
    assert drawn == pytest.approx(iteration.energy_j, rel=1e-6)


def test_hidden_communication_draws_its_power_over_the_whole_iteration() -> None:
    """Not within the optimizer, which would seem to draw kilowatts."""
    gpu = gpu_model(load_gpu("h200-sxm"))
    highest = []
    for overlap in ({}, BOTH):
        prepared = prepare(plan(parallelism=ZERO, overlap=overlap), gpu)
        highest.append(float(mean_power_w(prepared.tables[0])[:, -1].max()))
    assert highest[1] < 1.05 * highest[0]


# Communication beside instructions: the closed form against a simulation


def simulated(items: list[OverlappedBuckets], bucket_s: list[float], lengths: list[float]) -> float:
    """Buckets one after the other on a stream of their own, ready and needed at equal shares of an instruction."""
    begin = np.cumsum([0.0, *lengths])
    finish = reduced = gathered = late = 0.0
    finish = begin[-1]
    reduced = 0.0
    for item, one in zip(items, bucket_s, strict=True):
        start, length = begin[item.position], lengths[item.position]
        for bucket in range(item.buckets):
            if item.gathers:
                gathered += one
                late = max(late, gathered - (start + length * bucket / item.buckets))
            else:
                reduced = max(reduced, start + length * (bucket + 1) / item.buckets) + one
    return float(max(reduced - finish, 0.0) + late)


@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.integers(0, 4), st.booleans(), st.floats(1e-3, 2.0)), min_size=1, max_size=5
    ),
    st.lists(st.floats(1e-3, 5.0), min_size=5, max_size=5),
)
def test_exposed_communication_is_that_of_a_simulation(raw: list[Any], lengths: list[float]) -> None:
    one = Collective("all_reduce", 1e6, 8)
    items = [
        (OverlappedBuckets(one, n, position, gathers), t) for n, position, gathers, t in sorted(raw, key=lambda r: r[1])
    ]
    got = exposed_s([i for i, _ in items], [np.array([t]) for _, t in items], np.array(lengths)[:, None])
    assert got[0] == pytest.approx(simulated([i for i, _ in items], [t for _, t in items], lengths), abs=1e-9)


def chunked(**implementation: Any) -> Plan:
    """Two chunks of equal layers on a rank, whose buckets are alike."""
    return plan(
        workload={"model": "llama-3.1-8b"},
        cluster={"gpu": "h100-sxm", "gpus": 16},
        parallelism={
            **ZERO,
            "tensor_model_parallel_size": 2,
            "pipeline_model_parallel_size": 2,
            "virtual_pipeline_model_parallel_size": 4,
        },
        schedule={"name": "interleaved-1f1b"},
        overlap=BOTH,
        implementation={"generation": "megatron-core"} | implementation,
    )


def test_every_bucket_is_counted_where_chunks_share_a_kernel() -> None:
    one = chunked()
    prepared = prepare(one, gpu_model(load_gpu("h100-sxm")))
    for rank, table in zip(prepared.program.ranks, prepared.tables, strict=True):
        sent = {item.operator: 0 for item in rank.overlapped}
        for item in rank.overlapped:
            sent[item.operator] += item.buckets
        assert len(sent) < len(rank.overlapped)
        index = {operator: i for i, operator in enumerate(prepared.kernels[0].operators)}
        own = {launch.operator for launch in rank.types[rank.order[-1]]}
        for operator, buckets in sent.items():
            assert operator in own or table.counts[rank.order[-1], index[operator]] == buckets


def test_parameters_are_gathered_ahead_of_first_forwards_and_gradients_reduced_behind_last_backwards() -> None:
    one = chunked()
    for rank in plan_program(one).ranks:
        names = [rank.names[i] for i in rank.order]
        by_kind = {gathers: [item for item in rank.overlapped if item.gathers is gathers] for gathers in (True, False)}
        assert {item.operator.kind for item in by_kind[True]} == {"all_gather"}
        assert {item.operator.kind for item in by_kind[False]} == {"reduce_scatter"}
        assert all(names[item.position].startswith("forward") for item in by_kind[True])
        assert all(names[item.position].startswith("backward") for item in by_kind[False])


def test_launches_that_nobody_waits_for_leave_the_energy_as_sure() -> None:
    """Buckets of five chunks counted as one's left an optimizer of less than no time, and energies beyond the limit."""
    ends = []
    for graphs in (False, True):
        found = forecast(
            plan(
                workload={"model": "llama-3.1-70b", "sequence_length": 8192, "global_batch_size": 64},
                cluster={"gpu": "h100-sxm", "gpus": 64},
                parallelism={
                    **ZERO,
                    "tensor_model_parallel_size": 4,
                    "pipeline_model_parallel_size": 4,
                    "virtual_pipeline_model_parallel_size": 5,
                    "context_parallel_size": 2,
                    "sequence_parallel": True,
                },
                schedule={"name": "interleaved-1f1b"},
                overlap=BOTH,
                implementation={"generation": "megatron-bridge-2025", "cuda_graphs": graphs},
            )
        )
        ends.append(found.energy_j_p95 / found.energy_j)
    assert ends[0] == pytest.approx(ends[1], rel=0.02)


# FSDP

FSDP = {"fsdp": True}


@pytest.mark.parametrize("framework", ["pytorch-eager", "megatron"])
@pytest.mark.parametrize("prefetch", [True, False])
def test_fsdp_gathers_twice_and_scatters_once_a_micro_batch(framework: str, prefetch: bool) -> None:
    chosen = plan(parallelism=FSDP, overlap={"fsdp_prefetch": prefetch}, implementation={"framework": framework})
    n, layers = elements(chosen), 16
    layer = sum(p.elements for p in stage_parameters(chosen, 0) if p.name.startswith("layers."))
    width = 4 if framework == "megatron" else 2
    found = communicated(chosen)
    assert found["all_gather"] == pytest.approx(4 * 2.0 * (n + layer))  # the root's parameters stay for the backward
    assert found["reduce_scatter"] == pytest.approx(4 * width * n)
    forward = plan_program(chosen).ranks[0].types[0]
    assert sum(x.operator.name == "layer.all_gather" for x in forward) == layers


@pytest.mark.parametrize("framework", ["pytorch-eager", "megatron"])
def test_a_layer_waits_for_its_own_parameters_only(framework: str) -> None:
    """When a layer starts, its gathering has ended and the next one's is under way."""
    forward = plan_program(plan(parallelism=FSDP, implementation={"framework": framework})).ranks[0].types[0]
    communications, waits = 0, []
    for launch in forward:
        communications += launch.stream == "communication"
        if launch.stream == "compute" and launch.waits:
            waits.append(communications - 1 - launch.outstanding)
    assert waits == list(range(17))  # the root, then every layer in order
    # The first layer is gathered beside the embedding; only the last layer has nothing ahead.
    assert sum(x.outstanding == 1 for x in forward) == (16 if framework == "megatron" else 15)


def test_fsdp_gathers_fp8_weights_in_fp8() -> None:
    chosen = plan(parallelism=FSDP, workload={"precision": "fp8", "fp8_param_gather": True})
    tensors = stage_parameters(chosen, 0)
    twice = [p for p in tensors if p.name.startswith("layers.")]
    expected = sum(p.elements * (1 if p.linear else 2) for p in (*tensors, *twice))
    assert communicated(chosen)["all_gather"] == pytest.approx(4 * expected)


def test_prefetching_hides_communication() -> None:
    """At a locked clock: at the power limit a wait for the slowest board is exposed communication too."""
    run, locked = {"framework": "pytorch-eager"}, {"clock_mhz": 1200.0}
    beside, waiting = (
        forecast(plan(parallelism=FSDP, overlap={"fsdp_prefetch": p}, implementation=run, power=locked)).ranks[0]
        for p in (True, False)
    )
    assert waiting.overlapped_communication_s == 0.0
    assert beside.overlapped_communication_s > 3 * beside.exposed_communication_s
    assert beside.exposed_communication_s < 0.5 * waiting.exposed_communication_s


def test_waiting_for_the_slowest_is_told_from_communication() -> None:
    """At the power limit most of what FSDP exposes is waiting, as the timeline says."""
    cluster = {"gpus": 64}
    limited = plan(
        parallelism=FSDP, cluster=cluster, workload={"global_batch_size": 256}, power={"power_limit_w": 600.0}
    )
    rank, timeline = forecast(limited).ranks[0], kernel_timeline(limited).timelines[0]
    marked = np.array([name == MARKER for name in timeline.names])[timeline.name]
    waited_s = 1e-9 * (timeline.end_ns - timeline.start_ns)[marked].sum()
    communicating_s = breakdown(timeline).exposed_communication_s - waited_s
    assert rank.exposed_communication_s - rank.group_waiting_s == pytest.approx(communicating_s, rel=0.01)
    assert rank.group_waiting_s == pytest.approx(waited_s, rel=0.2)  # the clock of one iteration is not the mean's
    assert rank.group_waiting_s > communicating_s
    locked = plan(parallelism=FSDP, cluster=cluster, workload={"global_batch_size": 256}, power={"clock_mhz": 1200.0})
    assert forecast(locked).ranks[0].group_waiting_s == 0.0


def test_waits_of_tensor_parallel_communication_survive() -> None:
    """With and without FSDP a launch waits for the same communications of its layer."""
    split = {"tensor_model_parallel_size": 2, "sequence_parallel": True}

    def awaited(chosen: Plan) -> list[tuple[str, str]]:
        program, found = plan_program(chosen).ranks[0], []
        for kind in program.types:
            names: list[str] = []
            for launch in kind:
                if launch.stream == "communication":
                    names.append(launch.operator.name)
                elif launch.waits and len(names) > launch.outstanding:
                    found.append((launch.operator.name, names[len(names) - 1 - launch.outstanding]))
        return [pair for pair in found if not pair[1].startswith(("layer.", "root."))]

    whole, sharded = awaited(plan(parallelism=split)), awaited(plan(parallelism=split | FSDP))
    assert sharded == whole


def test_hybrid_sharding_keeps_gathering_within_a_node() -> None:
    cluster = {"gpus": 32, "gpu": "h100-sxm"}
    all_of_them, hybrid = (plan(parallelism=FSDP | size, cluster=cluster) for size in ({}, {"fsdp_shard_size": 8}))
    fabrics = {
        (x.operator.kind, x.operator.fabric.domains if x.operator.fabric else 1, x.operator.gpus)
        for kind in plan_program(hybrid).ranks[0].types
        for x in kind
        if isinstance(x.operator, Collective)
    }
    assert fabrics == {("all_gather", 1, 8), ("reduce_scatter", 1, 8), ("all_reduce", 4, 4)}
    assert communicated(hybrid)["all_reduce"] == pytest.approx(communicated(hybrid)["reduce_scatter"] / 8)
    assert footprint_of(hybrid, 0).parameters == pytest.approx(4 * footprint_of(all_of_them, 0).parameters)


def test_memory_of_fsdp() -> None:
    whole, sharded = footprint_of(plan(), 0), footprint_of(plan(parallelism=FSDP), 0)
    for part in ("parameters", "gradients", "optimizer"):
        assert getattr(sharded, part) == pytest.approx(getattr(whole, part) / 8)
    assert whole.gathered == 0.0
    layer = elements(plan()) - sum(
        p.elements for p in stage_parameters(plan(), 0) if not p.name.startswith("layers.0.")
    )
    root = sum(p.elements for p in stage_parameters(plan(), 0) if not p.name.startswith("layers."))
    assert sharded.gathered == pytest.approx(6.0 * (2 * layer + root))  # bf16 weights and fp32 gradients


@pytest.mark.parametrize("stages", [2, 4])
def test_fsdp_with_a_pipeline(stages: int) -> None:
    chosen = plan(parallelism=FSDP | {"pipeline_model_parallel_size": stages})
    assert forecast(chosen).time_s > 0
    assert kernel_timeline(chosen).result.time_ns > 0


# Bad input


@pytest.mark.parametrize(
    ("tables", "key", "says"),
    [
        ({"overlap": {"param_gather": "overlapped"}}, "overlap.param_gather", "distributed_optimizer"),
        (
            {
                "overlap": {"param_gather": "overlapped"},
                "parallelism": ZERO,
                "implementation": {"framework": "pytorch-eager"},
            },
            "overlap.param_gather",
            "megatron",
        ),
        ({"overlap": {"param_gather": "overlaped"}}, "overlap.param_gather", "overlapped"),
        ({"parallelism": {"fsdp_shard_size": 4}}, "parallelism.fsdp_shard_size", "fsdp = true"),
        ({"parallelism": FSDP | {"fsdp_shard_size": 3}}, "parallelism.fsdp_shard_size", "1, 2, 4, 8"),
        ({"parallelism": FSDP | {"fsdp_shard_size": 0}}, "parallelism.fsdp_shard_size", "above 0"),
        ({"parallelism": {"fsdp": "yes"}}, "parallelism.fsdp", "true or false"),
        ({"parallelism": {"distributed_optimizer": 1}}, "parallelism.distributed_optimizer", "true or false"),
        ({"parallelism": FSDP, "overlap": {"fsdp_prefetch": 2}}, "overlap.fsdp_prefetch", "true or false"),
        ({"parallelism": FSDP | ZERO}, "parallelism.distributed_optimizer", "leave this key out"),
        ({"parallelism": FSDP, "overlap": {"grad_reduce": "overlapped"}}, "overlap.grad_reduce", "fsdp_prefetch"),
        (
            {"parallelism": FSDP | {"pipeline_model_parallel_size": 2}, "schedule": {"name": "zb-h1"}},
            "schedule.name",
            "another schedule",
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_together_is_refused(tables: dict[str, Any], key: str, says: str) -> None:
    with pytest.raises(InputError) as error:
        plan(**tables)
    assert (error.value.file, error.value.key) == ("PLAN.toml", key)
    assert says in str(error.value)
