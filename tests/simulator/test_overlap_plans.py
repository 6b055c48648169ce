"""The [overlap] table of plans: forecasts of nano-batches against those of recorded rows, conservation, bad input."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memoised import simulate_memoised
from plan_evaluator import iteration_evaluator
from plan_tables import changed

from joulecast.calibrate.rows.measured import parse_rows
from joulecast.calibrate.rows.overlap import launches_of
from joulecast.errors import InputError
from joulecast.model.framework.launches import Launch
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.model.kernels.operators import Collective
from joulecast.plan.fronts.forecast_front import problem_from_plan
from joulecast.plan.knobs.front_space import load_space
from joulecast.plan.knobs.overlap_space import overlap_variants
from joulecast.simulator.instructions import overlap_steady
from joulecast.simulator.instructions.overlap import contended
from joulecast.simulator.instructions.overlap_steady import contended_stack, contended_stacks, repeating
from joulecast.simulator.instructions.program import instruction_launches, plan_program
from joulecast.simulator.instructions.repeated import Conditions, predict_repeated
from joulecast.simulator.instructions.tables import kernels_of
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.implementation import implementation_of
from joulecast.simulator.plan_file.plan import Plan, load_plan, plan_from_dict
from joulecast.simulator.schedules import FORWARD, Instruction
from joulecast.simulator.traces.kernel_timeline import kernel_timeline

GPU: GpuModel = replace(gpu_model(load_gpu("h200-sxm-rows")), description=None)


def tables(**changes: Any) -> dict[str, Any]:
    """A plan of tensor parallelism 2 with ``table__key=value`` changes."""
    whole: dict[str, Any] = {
        "workload": {
            "model": "llama-3.1-8b",
            "layers": 4,
            "sequence_length": 4096,
            "micro_batch_size": 4,
            "global_batch_size": 8,
        },
        "cluster": {"gpu": "h200-sxm-rows", "gpus": 2},
        "parallelism": {"tensor_model_parallel_size": 2},
    }
    return changed(whole, changes)


def plan_of(**changes: Any) -> Plan:
    return plan_from_dict(tables(**changes))


def rows(**wanted: Any) -> list[Any]:
    folder = files("joulecast.validate").joinpath("recorded", "h200_sxm")
    every = parse_rows(folder.joinpath("overlap.jsonl").read_text(encoding="utf-8"), "overlap.jsonl")
    return [row for row in every if all(row.configuration.get(key) == value for key, value in wanted.items())]


#: Models of the recorded rows by their names in the catalogue.
MODELS = {"llama8b": "llama-3.1-8b", "llama3b": "llama-3.2-3b", "llama70b": "llama-3.1-70b"}


@pytest.mark.parametrize("mode", ["sequential", "nanobatch"])
@pytest.mark.parametrize("tp", [2, 4])
def test_a_layer_of_a_plan_is_forecast_as_the_recorded_row_is(tp: int, mode: str) -> None:
    found = rows(part="layer", mode=mode, tp=tp)
    assert found
    for row in found:
        parts = 2 if mode == "nanobatch" else 1
        plan = plan_of(
            cluster__gpus=4 * tp,
            parallelism__tensor_model_parallel_size=tp,
            parallelism__pipeline_model_parallel_size=4,
            implementation__rotary=False,
            workload__model=MODELS[row.configuration["model"]],
            workload__micro_batch_size=row.configuration["B"],
            workload__sequence_length=row.configuration["S"],
            overlap__nanobatches=parts,
            **({"overlap__comm_ctas": row.configuration["ctas"]} if parts == 2 else {}),
        )
        layer = plan_program(plan).ranks[1].types[0]
        recorded = launches_of(row.configuration)
        ending = layer[-parts - (parts > 1) :]  # the second residual additions and the copy, which rows leave out
        assert {one.operator.name for one in ending} <= {"residual2", "parts.cat"}
        conditions = Conditions(tp, settle_s=row.settle_s, window_s=row.window_s)
        both = predict_repeated([layer, (*recorded, *ending)], GPU, conditions)
        assert both.time_s[0] == pytest.approx(both.time_s[1], rel=1e-9)
        assert both.energy_j[0] == pytest.approx(both.energy_j[1], rel=1e-9)
        assert both.time_s[0] > predict_repeated([recorded], GPU, conditions).time_s[0]


SHAPES: list[dict[str, Any]] = [
    {},
    {"implementation__framework": "megatron"},
    {"parallelism__sequence_parallel": True},
    {"implementation__framework": "megatron", "parallelism__sequence_parallel": True},
    {"schedule__recompute": "full"},
    {"cluster__gpus": 4, "overlap__grad_reduce": "overlapped"},
    {"cluster__gpus": 4, "overlap__grad_reduce": "overlapped", "implementation__framework": "megatron"},
    {"cluster__gpus": 4, "parallelism__pipeline_model_parallel_size": 2, "schedule__name": "zb-h1"},
    {
        "cluster__gpus": 8,
        "parallelism__pipeline_model_parallel_size": 2,
        "overlap__grad_reduce": "overlapped",
        "workload__global_batch_size": 32,
    },
    {"overlap__window": ["qkv", "attention"], "overlap__comm_ctas": 8},
    {"overlap__window": [1, 3], "overlap__launch": "asap"},
    {"overlap__window": {"mlp": ["up", "down"]}, "implementation__framework": "megatron"},
]


def every_launch(plan: Plan) -> list[Launch]:
    return [one for rank in plan_program(plan).ranks for kind in rank.order for one in rank.types[kind]]


def without_nanobatches(changes: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in changes.items() if key not in ("overlap__window", "overlap__launch")}


@pytest.mark.parametrize("changes", SHAPES, ids=str)
def test_work_is_that_of_the_plain_plan_and_less_communication_is_exposed(changes: dict[str, Any]) -> None:
    plain, cut = plan_of(**without_nanobatches(changes)), plan_of(**changes, overlap__nanobatches=2)
    whole, parts = every_launch(plain), every_launch(cut)
    sent = [sum(x.operator.bytes for x in each if isinstance(x.operator, Collective)) for each in (whole, parts)]
    assert sent[1] == pytest.approx(sent[0], rel=1e-12)
    flops = [sum(getattr(one.operator, "flops", 0.0) * one.repeat for one in each) for each in (whole, parts)]
    assert flops[1] == pytest.approx(flops[0], rel=1e-12)
    before, after = forecast(plain, must_fit=False), forecast(cut, must_fit=False)
    for a, b in zip(before.ranks, after.ranks, strict=True):
        assert b.exposed_communication_s < 0.9 * a.exposed_communication_s
        assert b.overlapped_communication_s > a.overlapped_communication_s
        assert b.memory_bytes == a.memory_bytes
    assert after.energy_j == pytest.approx(after.power_w * after.time_s, rel=1e-9)


@pytest.mark.parametrize("changes", SHAPES, ids=str)
def test_the_timeline_keeps_its_guards_and_the_evaluator_its_time(changes: dict[str, Any]) -> None:
    plan = plan_of(**changes, overlap__nanobatches=2)
    timeline = kernel_timeline(plan, GPU, clock_mhz=1500.0)  # causality, streams, energy, shares
    evaluator = iteration_evaluator(plan, GPU, wait_clock_mhz=1500.0)
    index = int(np.flatnonzero(GPU.clocks_mhz == 1500.0)[0])
    time, energy = evaluator.evaluate(np.full((evaluator.instructions, 1), index, dtype=np.uint8))
    assert time[0] == timeline.result.time_ns == simulate_memoised(timeline.program).time_ns
    assert energy[0] * plan.tp * plan.dp == pytest.approx(timeline.energy_j, rel=1e-9)


@pytest.mark.parametrize("framework", ["pytorch-eager", "megatron"])
def test_overlapped_communication_is_when_both_streams_of_the_timeline_run(framework: str) -> None:
    plan = plan_of(overlap__nanobatches=2, implementation__framework=framework, power__clock_mhz=900)
    rank, timeline = forecast(plan).ranks[0], kernel_timeline(plan, clock_mhz=900.0)
    shown = timeline.timelines[0]
    busy_s = [float((shown.end_ns - shown.start_ns)[shown.stream == stream].sum()) * 1e-9 for stream in (0, 1)]
    assert rank.overlapped_communication_s == pytest.approx(sum(busy_s) - timeline.time_s, rel=1e-4)
    assert rank.exposed_communication_s == pytest.approx(timeline.time_s - busy_s[0], rel=1e-4)


def test_overlap_pays_where_communication_is_long() -> None:
    long = {"cluster__gpus": 4, "parallelism__tensor_model_parallel_size": 4, "workload__layers": 8}
    plain, cut = (forecast(plan_of(**long, overlap__nanobatches=parts)) for parts in (1, 2))
    assert cut.time_s < 0.98 * plain.time_s
    assert cut.energy_j < 0.98 * plain.energy_j


def test_a_narrow_window_exposes_more_and_few_threads_take_longer() -> None:
    cut = {"overlap__nanobatches": 2, "overlap__comm_ctas": 8}
    wide = forecast(plan_of(**cut))
    narrow = forecast(plan_of(**cut, overlap__window={"attention": ["norm1", "norm1"], "mlp": ["norm2", "norm2"]}))
    assert narrow.ranks[0].exposed_communication_s > 1.5 * wide.ranks[0].exposed_communication_s
    threads = forecast(plan_of(**cut, overlap__comm_threads=128))
    assert threads.time_s > 1.02 * wide.time_s
    assert forecast(plan_of(**cut, overlap__comm_threads=1024)).time_s == wide.time_s
    assert any("threads" in text for text in threads.assumptions) and "threads" not in " ".join(wide.assumptions)


SPLIT = {"parallelism__sequence_parallel": True, "overlap__nanobatches": 2, "workload__layers": 4}


def test_copy_engines_move_what_is_gathered_and_leave_the_sms_to_compute() -> None:
    """Sums stay on SMs; every byte is sent either way."""
    by_sm, by_copy = (forecast(plan_of(**SPLIT, overlap__comm_engine=engine)) for engine in ("sm", "copy"))
    assert by_copy.time_s < 0.996 * by_sm.time_s
    assert by_copy.energy_j < by_sm.energy_j
    assert any("copy engines" in text for text in by_copy.assumptions)
    collectives = {
        engine: [
            launch.operator
            for launch in instruction_launches(plan, implementation_of(plan), Instruction(FORWARD), 0, False)
            if isinstance(launch.operator, Collective)
        ]
        for engine in ("sm", "copy")
        for plan in [plan_of(**SPLIT, overlap__comm_engine=engine)]
    }
    for one, other in zip(collectives["sm"], collectives["copy"], strict=True):
        assert not one.copy_engine
        assert other == replace(one, copy_engine=one.kind == "all_gather")
    assert {one.kind for one in collectives["copy"]} >= {"all_gather", "reduce_scatter"}


def test_communication_that_comes_first_need_not_wait_for_a_product() -> None:
    cut = {"overlap__nanobatches": 2, "overlap__window": {"attention": ["qkv", "qkv"], "mlp": ["up", "up"]}}
    behind, first = (forecast(plan_of(**cut, overlap__comm_first=way)) for way in (False, True))
    assert first.time_s < 0.995 * behind.time_s
    assert first.ranks[0].exposed_communication_s < behind.ranks[0].exposed_communication_s


@pytest.mark.parametrize("framework", ["pytorch-eager", "megatron"])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_the_middle_of_a_stack_is_not_walked_through_and_comes_out_the_same(
    framework: str, sequence_parallel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked: list[int] = []

    def counting(launches: Any, *rest: Any) -> Any:
        walked.append(len(launches))
        return contended(launches, *rest)

    monkeypatch.setattr(overlap_steady, "contended", counting)
    for layers in (12, 24):
        plan = plan_of(
            workload__layers=layers,
            overlap__nanobatches=2,
            implementation__framework=framework,
            parallelism__sequence_parallel=sequence_parallel,
        )
        for launches in plan_program(plan).ranks[0].types[:2]:
            kernels = kernels_of([[launches]], GPU.clocks_mhz[::8], GPU)
            index = {operator: i for i, operator in enumerate(kernels.operators)}
            alone = kernels.alone([index[one.operator] for one in launches])
            np.testing.assert_allclose(contended_stack(launches, alone, GPU), contended(launches, alone, GPU), 1e-9)
    assert walked[:2] == walked[2:]


def test_stacks_side_by_side_take_what_each_takes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more and fewer layers, and of other shapes: one walk for each direction."""
    lists = [
        launches
        for layers, micro in ((12, 4), (24, 4), (12, 2))
        for launches in plan_program(
            plan_of(overlap__nanobatches=2, workload__layers=layers, workload__micro_batch_size=micro)
        )
        .ranks[0]
        .types[:2]
    ]
    kernels = kernels_of([lists], GPU.clocks_mhz[::8], GPU)
    index = {operator: i for i, operator in enumerate(kernels.operators)}
    alone = [kernels.alone([index[one.operator] for one in launches]) for launches in lists]
    expected = [contended(launches, one, GPU) for launches, one in zip(lists, alone, strict=True)]
    walks: list[int] = []

    def counting(launches: Any, *rest: Any) -> Any:
        walks.append(len(launches))
        return contended(launches, *rest)

    monkeypatch.setattr(overlap_steady, "contended", counting)
    for got, one in zip(contended_stacks(lists, alone, GPU), expected, strict=True):
        np.testing.assert_allclose(got, one, 1e-9)
    assert len(walks) == 2


def test_what_does_not_repeat_is_walked_through_whole() -> None:
    launches = plan_program(plan_of(overlap__nanobatches=2)).ranks[0].types[0]
    assert repeating(launches) == (0, len(launches), 1)
    assert repeating(()) == (0, 0, 1)


BAD = [
    ({"overlap__nanobatches": 3}, "nanobatches", "nearest is 2"),
    ({"overlap__nanobatches": 9}, "nanobatches", "nearest is 4"),
    ({"overlap__nanobatches": 0}, "nanobatches", "above 0"),
    ({"overlap__nanobatches": 2, "workload__micro_batch_size": 1}, "nanobatches", "along tokens is not offered"),
    ({"overlap__nanobatches": 2, "parallelism__tensor_model_parallel_size": 1}, "nanobatches", "one rank has none"),
    ({"overlap__window": ["qkv", "output"]}, "window", "nothing independent"),
    ({"overlap__window": ["qkv", "outputs"]}, "window", "Did you mean 'output'"),
    ({"overlap__nanobatches": 2, "overlap__window": ["qkv", "outputs"]}, "window", "Did you mean 'output'"),
    ({"overlap__nanobatches": 2, "overlap__window": ["qkv", "down"]}, "window", "within one half"),
    ({"overlap__nanobatches": 2, "overlap__window": ["output", "qkv"]}, "window", "before it begins"),
    ({"overlap__nanobatches": 2, "overlap__window": [0, 5]}, "window", "mlp half, which has 0 to 4. The nearest is 4"),
    ({"overlap__nanobatches": 2, "overlap__window": [-1, 2]}, "window", "The nearest is 0"),
    (
        {"overlap__nanobatches": 2, "overlap__window": {"mlp": ["qkv", "down"]}},
        "window.mlp",
        "operator of the mlp half",
    ),
    ({"overlap__nanobatches": 2, "overlap__window": {"mpl": ["up", "down"]}}, "window.mpl", "'mlp'"),
    ({"overlap__nanobatches": 2, "overlap__window": ["qkv"]}, "window", "is no window"),
    ({"overlap__nanobatches": 2, "overlap__window": [True, False]}, "window", "is no window"),
    ({"overlap__nanobatches": 2, "overlap__window": "attention"}, "window", "is no window"),
    ({"overlap__nanobatches": 2, "overlap__launch": "window"}, "launch", "no window"),
    ({"overlap__nanobatches": 2, "overlap__launch": "late"}, "launch", "asap"),
    ({"overlap__comm_ctas": 133}, "comm_ctas", "132 SMs. The nearest is 132"),
    ({"overlap__comm_engine": "copy"}, "comm_engine", "sums always take SMs"),
    ({"overlap__comm_engine": "dma"}, "comm_engine", "sm, copy"),
    ({"overlap__comm_first": True}, "comm_first", "overlap.nanobatches to 2"),
    ({"overlap__comm_threads": 500}, "comm_threads", "nearest is 512"),
    ({"overlap__comm_threads": 4096}, "comm_threads", "nearest is 1024"),
]


@pytest.mark.parametrize(("changes", "key", "says"), BAD, ids=[f"{key} {says}" for _, key, says in BAD])
def test_bad_input_gets_one_named_error(changes: dict[str, Any], key: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        plan_from_dict(tables(**changes), file="plan.toml")
    assert caught.value.key == f"overlap.{key}"
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_example_is_forecast(examples: Path) -> None:
    file = examples / "llama-3.1-8b-4xh200-nanobatches.toml"
    cut, plain = (forecast(load_plan(file, [f"overlap.nanobatches={parts}"])) for parts in (2, 1))
    assert cut.ranks[0].exposed_communication_s < 0.5 * plain.ranks[0].exposed_communication_s
    assert plain.ranks[0].overlapped_communication_s == 0.0


def test_variants_are_all_sensible_combinations() -> None:
    choices = {
        "nanobatches": [1, 2, 4],
        "window": ["all", ["qkv", "output"], {"mlp": [1, 2]}],
        "launch": ["asap", "window"],
    }
    found = overlap_variants(plan_of(), choices)
    # In one piece there is no window; without a window communication is launched as soon as possible.
    assert len(found) == 1 + 2 * (1 + 2 * 2)
    assert len({plan for _, plan in found}) == len(found)
    assert dict(found[-1][0]) == {"nanobatches": 4, "window": "mlp:1-2", "launch": "window"}
    with pytest.raises(InputError, match="nearest is 2"):
        overlap_variants(plan_of(), {"nanobatches": [2, 3]})
    whole = plan_of(workload__micro_batch_size=1)
    with pytest.raises(InputError, match="a micro-batch of 1 sequence cannot be cut into 2"):  # not: there is no window
        overlap_variants(
            whole, {"nanobatches": [1, 2], "window": ["all", ["qkv", "output"]], "launch": choices["launch"]}
        )


def test_one_piece_stays_beside_windows_of_several() -> None:
    """Whether to overlap at all is a choice too; it was refused unless the windows held "all"."""
    found = overlap_variants(
        plan_of(), {"nanobatches": [1, 2], "window": [["qkv", "output"], [1, 2]], "comm_ctas": [8]}
    )
    assert [dict(knobs) for knobs, _ in found] == [
        {"nanobatches": 1, "comm_ctas": 8},
        {"nanobatches": 2, "window": "qkv-output", "comm_ctas": 8},
        {"nanobatches": 2, "window": "1-2", "comm_ctas": 8},
    ]
    assert [plan.overlap.windows == () for _, plan in found] == [True, False, False]
    with pytest.raises(InputError, match="nothing independent to run beside its communication"):
        overlap_variants(plan_of(), {"nanobatches": [1], "window": [["qkv", "output"]]})


def test_engines_and_order_are_knobs_too(tmp_path: Path) -> None:
    file = tmp_path / "space.toml"
    file.write_text('[overlap]\nnanobatches = [1, 2]\ncomm_engine = ["sm", "copy"]\ncomm_first = [false, true]\n')
    chosen = dict(load_space(file).overlap)
    found = overlap_variants(plan_of(parallelism__sequence_parallel=True), chosen)
    assert len(found) == 2 + 4  # in one piece nothing can come first
    assert {(dict(knobs)["comm_engine"], plan.overlap.comm_engine) for knobs, plan in found} == {
        ("sm", "sm"),
        ("copy", "copy"),
    }
    for line in ('comm_engine = ["sm", "dma"]', "comm_first = [1]", "comm_engine = []"):
        file.write_text(f"[overlap]\n{line}\n")
        with pytest.raises(InputError, match=r"is no list of values\. Write a list of"):
            load_space(file)


def test_a_front_chooses_among_overlaps(tmp_path: Path) -> None:
    file = tmp_path / "space.toml"
    file.write_text(
        "[power]\nclock_mhz = [1200, 1980]\n[overlap]\nnanobatches = {min = 1, max = 2, step = 1}\n"
        'window = ["all", ["qkv", "output"]]\nlaunch = "window"\ncomm_ctas = [8]\ncomm_threads = [256, 512]\n'
    )
    with pytest.raises(InputError, match="no window"):  # nothing can have "all" and launch = "window"
        problem_from_plan(
            plan_of(), GPU, replace(load_space(file), overlap=(("window", ("all",)), ("launch", ("window",))))
        )
    space = load_space(file)
    assert dict(space.overlap)["nanobatches"] == (1, 2)
    file.write_text(file.read_text().replace('launch = "window"\n', ""))
    problem = problem_from_plan(plan_of(), GPU, load_space(file))
    knobs = [{**dict(option.knobs)} for option in problem.sets[0].options]
    chosen = {name: {knob[name] for knob in knobs} for name in knobs[0]}
    assert chosen["comm_ctas"] == {8}
    assert chosen["nanobatches"] == {1, 2} and 512 in chosen["comm_threads"]
    assert chosen["window"] == {"all", "qkv-output"}
