"""A plan that does not fit memory is answered with the nearest that does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import joulecast as jc
from joulecast.command_line.predict_lines import memory_line
from joulecast.errors import DoesNotFitError, InputError
from joulecast.simulator.instructions.footprints import footprints
from joulecast.simulator.iteration.nearest_fit import nearest_fit
from joulecast.simulator.plan_file.gpu import gpu_of
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict


def finetuning(model: str, gpu: str, gpus: int, **more: Any) -> dict[str, Any]:
    """Full finetuning in transformers under FSDP, in mixed precision."""
    return {
        "workload": {"model": model, "sequence_length": 2048, "global_batch_size": 4 * gpus},
        "cluster": {"gpu": gpu, "gpus": gpus},
        "parallelism": {"fsdp": True},
        "implementation": {"modules": "transformers", "parameter_precision": "fp32"},
        **more,
    }


@pytest.mark.parametrize(
    ("tables", "settings"),
    [
        (finetuning("llama-3.1-8b", "rtx-4090", 4), ("schedule.recompute=full", "cluster.gpus=8")),
        (finetuning("llama-3.2-1b", "a10", 1, parallelism={}), ("parallelism.fsdp=true", "cluster.gpus=2")),
        (finetuning("llama-3.1-8b", "a10", 1), ("schedule.recompute=full", "cluster.gpus=8", "batch")),
        # One GPU splits nothing, but its node has others that can.
        (
            {
                "workload": {"model": "llama-3.1-8b", "sequence_length": 2**17, "global_batch_size": 8},
                "cluster": {"gpu": "h200-sxm", "gpus": 1},
            },
            ("schedule.recompute=full", "parallelism.tensor_model_parallel_size=2", "cluster.gpus=2"),
        ),
    ],
)
def test_the_nearest_plan_fits_and_the_error_names_it(tables: dict[str, Any], settings: tuple[str, ...]) -> None:
    with pytest.raises(DoesNotFitError) as caught:
        jc.predict(tables)
    found = re.search(r"fits has in its file: (.+), which takes", str(caught.value))
    assert found is not None
    named = tuple(found[1].split())
    assert named == tuple("workload.global_batch_size=32" if one == "batch" else one for one in settings)
    fitting = jc.predict(tables, named)
    capacity = gpu_of(fitting.plan).number("memory_bytes")
    stated = re.search(r"which takes ([\d.]+) GB", str(caught.value))
    assert stated is not None
    most = max(one.total_bytes for one in footprints(fitting.plan, gpu_of(fitting.plan)))
    assert most <= capacity
    assert float(stated[1]) == pytest.approx(most / 1e9, abs=0.05)
    reserving = re.search(r"\(([\d.]+) GB with what PyTorch would reserve", str(caught.value))
    assert (reserving is not None) == any("would reserve" in one for one in fitting.assumptions)


def test_the_error_says_where_the_nearest_plan_fits_but_by_what_pytorch_reserves() -> None:
    tight = finetuning("llama-3.1-8b", "rtx-4090", 4)
    with pytest.raises(DoesNotFitError, match=r"takes 23\.7 GB \(26\.8 GB with what PyTorch would reserve: it may run"):
        jc.predict(tight)
    with pytest.raises(DoesNotFitError, match=r"takes 18\.6 GB\. Otherwise"):
        jc.predict(finetuning("llama-3.2-1b", "a10", 1, parallelism={}))


def test_what_pytorch_reserves_is_told_on_the_basis_of_what_a_gpu_has() -> None:
    tight = jc.predict(finetuning("llama-3.1-8b", "rtx-4090", 8, schedule={"recompute": "full"}))
    line = memory_line(tight.to_dict()["stages"][0])
    held = footprints(tight.plan, gpu_of(tight.plan))[0]
    capacity = line["total"] + line["margin"]
    assert line["with reserved"] == pytest.approx((held.total_bytes + held.cached) / 1e9)
    assert line["total"] < capacity < line["with reserved"]
    assert any(
        f"holds {line['with reserved']:.1f} GB, more than its {capacity:.1f}" in one for one in tight.assumptions
    )


def test_no_plan_on_fewer_gpus_and_none_with_fewer_changes_would_do() -> None:
    tables = finetuning("llama-3.1-8b", "rtx-4090", 4)
    for fewer in ((), ("schedule.recompute=full",), ("cluster.gpus=8",)):
        with pytest.raises(DoesNotFitError):
            jc.predict(tables, fewer)


def test_changes_that_no_plan_may_have_are_passed_over() -> None:
    """40 heads and 5 sequences: sizes of eight divide neither."""
    tables = finetuning("qwen2.5-32b", "h100-sxm", 1)
    tables["workload"]["global_batch_size"] = 5
    found = nearest_fit(plan_from_dict(tables), lambda more: plan_from_dict(tables, overrides=more))
    assert found is not None
    plan_from_dict(tables, overrides=found[0])


def tried(tables: dict[str, Any]) -> list[tuple[str, ...]]:
    """All settings that are tried, in their order, where no plan can be but those on more GPUs, which do not fit."""
    tables = {**tables, "workload": {**tables["workload"], "sequence_length": 2**22}}
    asked: list[tuple[str, ...]] = []

    def refuse(settings: Sequence[str]) -> Plan:
        asked.append(tuple(settings))
        if all(one.startswith(("cluster.gpus=", "workload.global_batch_size=")) for one in settings):
            return plan_from_dict(tables, overrides=settings)
        raise InputError("no such plan")

    assert nearest_fit(plan_from_dict(tables), refuse) is None
    # For each number of GPUs it is asked first how many of them a node has.
    more = [times_as_many(settings, tables["cluster"]["gpus"]) for settings in asked]
    return [one for at, one in enumerate(asked) if at and more[at] == more[at - 1]]


def times_as_many(settings: tuple[str, ...], gpus: int) -> int:
    """GPUs of settings, in multiples of the plan's."""
    (found,) = [one for one in settings if one.startswith("cluster.gpus=")] or [f"cluster.gpus={gpus}"]
    return int(found.partition("=")[2]) // gpus


#: Two GPUs of nodes of eight, 16 layers, nothing split yet.
PLAIN = {
    "workload": {"model": "llama-3.2-1b", "sequence_length": 2048, "global_batch_size": 8, "micro_batch_size": 2},
    "cluster": {"gpu": "h200-sxm", "gpus": 2},
}


@pytest.mark.parametrize(("batch", "offered"), [(2, False), (4, True)])
def test_gradients_may_be_split_in_each_of_several_backwards(batch: int, offered: bool) -> None:
    seen = tried(
        {
            **PLAIN,
            "workload": {"model": "llama-3.2-1b", "sequence_length": 2048, "global_batch_size": batch},
            "parallelism": {"fsdp": True, "fsdp_sync_each_batch": False},
            "implementation": {"framework": "pytorch-eager"},
        }
    )
    assert (("parallelism.fsdp_sync_each_batch=true",) in seen) == offered


def test_gpus_are_added_last_and_few_keys_are_changed_first() -> None:
    seen = tried(PLAIN)
    more = [times_as_many(settings, 2) for settings in seen]
    assert more == sorted(more) and sorted(set(more)) == [1, 2, 4, 8, 16, 32, 64]
    assert seen[:6] == [
        ("schedule.recompute=full",),
        ("workload.micro_batch_size=1",),
        ("parallelism.distributed_optimizer=true",),
        ("parallelism.fsdp=true",),
        ("parallelism.tensor_model_parallel_size=2",),
        ("parallelism.pipeline_model_parallel_size=2",),
    ]
    # Two states to split make seven pairs with the other keys' eight changes, and the others make six of their own.
    assert [len(settings) for settings in seen[:20]] == [1] * 6 + [2] * 14
    assert seen[20:22] == [("cluster.gpus=4",), ("cluster.gpus=4", "workload.global_batch_size=16")]
    # On four GPUs both sizes may be 2 or 4: no change, eight single ones and 25 pairs, each at both batches.
    on_four = seen[20 : 20 + 2 * (1 + 8 + 25)]
    assert more[20:89] == [2] * 68 + [4]
    assert sum("workload.global_batch_size=16" in settings for settings in on_four) == 34
    assert all(len({one.partition("=")[0] for one in settings}) == len(settings) for settings in seen)


def test_sizes_grow_to_a_node_the_layers_and_the_experts() -> None:
    def sizes(tables: dict[str, Any], name: str) -> list[int]:
        found = {one for settings in tried(tables) for one in settings if name in one}
        return sorted(int(one.partition("=")[2]) for one in found)

    assert sizes(PLAIN, "tensor_model_parallel_size") == [2, 4, 8]
    assert sizes(PLAIN, "pipeline_model_parallel_size") == [2, 4, 8, 16]
    assert sizes(PLAIN, "expert_model_parallel_size") == []
    experts = {
        **PLAIN,
        "workload": {"model": "mixtral-8x7b", "sequence_length": 2048, "global_batch_size": 16},
        "cluster": {"gpu": "h200-sxm", "gpus": 16},
        "parallelism": {
            "expert_model_parallel_size": 2,
            "tensor_model_parallel_size": 4,
            "sequence_parallel": True,
        },
    }
    assert sizes(experts, "expert_model_parallel_size") == [4, 8]
    assert sizes(experts, "tensor_model_parallel_size") == [8]


def test_what_a_plan_has_already_is_not_tried() -> None:
    def keys(tables: dict[str, Any]) -> set[str]:
        return {settings[0] for settings in tried(tables) if len(settings) == 1}

    computed_again = {**finetuning("llama-3.2-1b", "a10", 2), "schedule": {"recompute": "full"}}
    assert keys(computed_again) == {*(f"cluster.gpus={2 * 2**power}" for power in range(1, 7))}
    optimizer = {**computed_again, "parallelism": {"distributed_optimizer": True}}
    assert keys(optimizer) - keys(computed_again) == {"parallelism.fsdp=true"}
    alone = {**finetuning("llama-3.2-1b", "a10", 1), "parallelism": {}}
    assert {one for one in keys(alone) if "cluster" not in one} == {"schedule.recompute=full"}


def test_the_fullest_stage_of_a_pipeline_must_fit() -> None:
    """The last stage, with the head, holds most: on eight A10s it alone would be too large."""
    tables = finetuning("llama-3.1-8b", "a10", 8, parallelism={"fsdp": True, "pipeline_model_parallel_size": 4})
    found = nearest_fit(plan_from_dict(tables), lambda more: plan_from_dict(tables, overrides=more))
    assert found is not None
    settings, most, reserved = found
    assert settings == ("schedule.recompute=full", "cluster.gpus=16")
    plan = plan_from_dict(tables, overrides=settings)
    stages = footprints(plan, gpu_of(plan))
    assert most == stages[-1].total_bytes > 1.2 * stages[0].total_bytes
    assert reserved == stages[-1].total_bytes + stages[-1].cached


def test_on_one_gpu_nothing_is_said_of_splitting() -> None:
    tables = finetuning("llama-3.1-405b", "a10", 1)
    plan = plan_from_dict(tables)
    assert nearest_fit(plan, lambda more: plan_from_dict(tables, overrides=more)) is None
    with pytest.raises(DoesNotFitError) as caught:
        jc.predict(plan)
    assert str(caught.value.remedy) == (
        'Raise cluster.gpus, set schedule.recompute = "full" or train adapters ([workload.lora]).'
    )


def test_a_plan_file_is_searched_from_too(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(
        '[workload]\nmodel = "llama-3.1-8b"\nsequence_length = 2048\nglobal_batch_size = 8\n'
        '[cluster]\ngpu = "a100-sxm-40gb"\ngpus = 4\n'
    )
    with pytest.raises(DoesNotFitError, match=r"in its file: parallelism\.fsdp=true, which takes"):
        jc.predict(file)
    assert jc.predict(file, "parallelism.fsdp=true").time_s > 0
