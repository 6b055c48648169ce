"""Plans with images: their tokens, what of the tower is trained, what is refused, and jobs that they are read from."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from plan_tables import merged
from ways_agree import ways_agree

import joulecast as jc
from joulecast.errors import InputError, NotYetError
from joulecast.simulator.instructions.eager_launches import WHOLE
from joulecast.simulator.instructions.program import plan_program
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict

FROZEN = {"freeze_vision_tower": True, "freeze_multi_modal_projector": True}


def plan(model: str = "qwen3-vl-4b", images: dict[str, Any] | None = None, **tables: dict[str, Any]) -> Plan:
    usual: dict[str, dict[str, Any]] = {
        "workload": {
            "model": model,
            "layers": 4,
            "sequence_length": 2048,
            "global_batch_size": 8,
            "images": {} if images is None else images,
        },
        "cluster": {"gpu": "h100-sxm", "gpus": 1},
        "implementation": {"framework": "pytorch-eager", "modules": "transformers"},
    }
    return plan_from_dict(merged(usual, tables))


def test_without_images_the_text_model_runs_alone() -> None:
    alone = plan_from_dict(
        {
            "workload": {"model": "qwen3-vl-4b", "layers": 4, "sequence_length": 2048, "global_batch_size": 8},
            "cluster": {"gpu": "h100-sxm", "gpus": 1},
        }
    )
    assert alone.workload.model.vision is None and alone.workload.images is None
    assert any("reads text is trained, alone" in one for one in forecast(alone).assumptions)


def test_images_have_a_usual_size_that_is_said() -> None:
    said = forecast(plan()).assumptions
    assert any("768 x 768 pixels, which are 576 of its 2048 tokens" in one for one in said)
    rounded = plan("qwen2.5-vl-3b", {"height": 1000, "width": 500}).workload.images
    assert rounded is not None and (rounded.rows, rounded.columns) == (72, 36)  # 1,008 x 504


def test_freezing_saves_the_towers_backward_and_memory() -> None:
    trained, frozen = (forecast(plan(images={"per_sequence": 3, **extra})) for extra in ({}, FROZEN))
    parts = [one.ranks[0].memory_by_part_bytes for one in (trained, frozen)]
    # Tower and projector in bf16 have two bytes of gradients and four of moments beside their two.
    assert parts[0]["optimizer"] - parts[1]["optimizer"] == pytest.approx(4 * 415_347_712, rel=1e-6)
    assert parts[0]["parameters"] == parts[1]["parameters"]
    assert parts[0]["activations"] > 1.5 * parts[1]["activations"]
    assert trained.time_s > 1.15 * frozen.time_s
    assert trained.model_flops_per_s * trained.time_s > 1.2 * frozen.model_flops_per_s * frozen.time_s


@pytest.mark.parametrize("model", ["qwen2.5-vl-3b", "gemma-3-4b", "llava-1.5-7b"])
@pytest.mark.parametrize(
    "tables",
    [
        {"implementation": {"host_launch_us": 36.0}},
        {"implementation": {"cuda_graphs": True}},
        {"cluster": {"gpus": 4}, "parallelism": {"pipeline_model_parallel_size": 2}},
        {"cluster": {"gpus": 4}, "parallelism": {"distributed_optimizer": True}},
        {
            "cluster": {"gpus": 4},
            "overlap": {"grad_reduce": "overlapped"},
            "implementation": {"cuda_graphs": True},
        },
        {"cluster": {"gpus": 4}, "parallelism": {"fsdp": True}, "implementation": {"cuda_graphs": True}},
        {"schedule": {"recompute": "full"}},
    ],
)
def test_closed_form_is_the_simulation_at_a_set_clock(model: str, tables: dict[str, Any]) -> None:
    one = plan(model, power={"clock_mhz": 1500}, **tables)
    ways_agree(one, time=1e-9, energy=1e-9, must_fit=False)


def test_a_pipeline_whose_gradients_are_reduced_beside_the_backward() -> None:
    """The first stage has the more gradients to reduce, and the more work to reduce them beside."""
    split = {"pipeline_model_parallel_size": 2}
    one = plan(cluster={"gpus": 4}, parallelism=split, overlap={"grad_reduce": "overlapped"}, power={"clock_mhz": 1500})
    ways_agree(one, time=0.01, must_fit=False)


def test_the_tower_stands_in_the_first_stage() -> None:
    split = {"pipeline_model_parallel_size": 2}
    first, last = forecast(plan(cluster={"gpus": 2}, parallelism=split), must_fit=False).ranks
    towers = 2 * 415_347_712
    assert first.memory_by_part_bytes["parameters"] - last.memory_by_part_bytes["parameters"] > 0.95 * towers


@pytest.mark.parametrize("frozen", [{}, FROZEN])
def test_sharding_gathers_and_reduces_the_towers_layers_one_by_one(frozen: dict[str, Any]) -> None:
    """24 layers of the tower and 4 of the text model, and the root; a frozen tower's gradients are not reduced."""
    sharded = plan(images=frozen, cluster={"gpus": 4}, parallelism={"fsdp": True})
    types = plan_program(sharded).ranks[0].types
    names = [Counter(one.operator.name for one in launches) for launches in types]
    backward = 4 + (0 if frozen else 24)
    assert names[0]["layer.all_gather"] == 28 and names[1]["layer.all_gather"] == backward
    assert names[1]["layer.reduce_scatter"] == backward and names[1]["root.reduce_scatter"] == 1
    whole, shard = (
        forecast(one, must_fit=False).ranks[0].memory_by_part_bytes for one in (plan(images=frozen), sharded)
    )
    assert shard["parameters"] == pytest.approx(whole["parameters"] / 4)
    # Embedding, patches and projectors are gathered, and two of the text model's layers.
    assert shard["gathered"] < 0.9 * whole["parameters"]


def test_the_host_waits_between_tower_and_text_model() -> None:
    """A tower of small kernels is as long as its launches take, however long those of the text model are."""
    images = {"per_sequence": 1, **FROZEN}
    work = {"layers": 16, "micro_batch_size": 4, "global_batch_size": 4, "sequence_length": 1024, "images": images}
    slow, fast = (
        forecast(
            plan("llava-1.5-7b", workload=work, implementation={"host_launch_us": us}, power={"clock_mhz": 1500}),
            must_fit=False,
        )
        for us in (50.0, 0.0)
    )
    # 421 launches of a whole program in place of the 6 ms of their kernels, and 42 that the GPU waits for.
    assert slow.time_s - fast.time_s == pytest.approx((421 * WHOLE + 42) * 50e-6 - 6e-3, rel=0.02)


def test_windows_called_one_by_one_wait_for_the_host_whether_or_not_its_pace_is_said() -> None:
    images = {"per_sequence": 2, "height": 1008, "width": 1008, **FROZEN}
    work = {"sequence_length": 3072, "global_batch_size": 1, "images": images}
    called, together = (
        forecast(plan("qwen2.5-vl-3b", workload=work, implementation={"attention_backend": backend}))
        for backend in ("cudnn", "flash-attn-2")
    )
    assert called.time_s > 1.5 * together.time_s
    assert any("each image or window alone" in one for one in called.assumptions)
    assert not any("window alone" in one for one in together.assumptions)


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        ({"implementation": {"modules": "joint"}}, "implementation.modules"),
        ({"cluster": {"gpus": 2}, "parallelism": {"tensor_model_parallel_size": 2}}, "parallelism"),
        (
            {"cluster": {"gpus": 4}, "parallelism": {"fsdp": True, "pipeline_model_parallel_size": 2}},
            "parallelism.fsdp",
        ),
        ({"implementation": {"compile": True}}, "implementation.compile"),
        ({"implementation": {"optimizer": "muon"}}, "workload.images.freeze_vision_tower"),
    ],
)
def test_what_is_not_known_of_images_is_refused(tables: dict[str, Any], key: str) -> None:
    with pytest.raises(NotYetError, match=r"images .* are not known") as caught:
        plan(**tables)
    assert caught.value.key == key


def test_adapters_stand_beside_a_frozen_tower() -> None:
    work: dict[str, Any] = {"lora": {"target_modules": "all-linear"}, "images": {}}
    found = plan(workload=work)
    assert found.workload.images is not None and not found.workload.images.trains_tower
    memory = forecast(found).ranks[0].memory_by_part_bytes
    assert memory["optimizer"] < 0.2e9 < memory["parameters"]
    with pytest.raises(NotYetError, match="trained beside adapters"):
        plan(workload={**work, "images": {"freeze_vision_tower": False}})


@pytest.mark.parametrize(
    ("model", "images", "key", "message"),
    [
        ("llama-3.1-8b", {}, "workload.images", "sees no images"),
        ("qwen3-vl-4b", {"per_sequence": 4}, "workload.images.per_sequence", "take 2304 tokens, a sequence has 2048"),
        ("gemma-3-4b", {"height": 448}, "workload.images.height", "resizes every image to 896 x 896"),
    ],
)
def test_images_that_cannot_be(model: str, images: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        plan(model, images)
    assert caught.value.key == key


JOB = """
model_name_or_path: Qwen/Qwen2.5-VL-7B-Instruct
image_max_pixels: 262144
stage: sft
do_train: true
finetuning_type: full
freeze_vision_tower: true
freeze_language_model: false
dataset: mllm_demo
template: qwen2_vl
cutoff_len: 2048
per_device_train_batch_size: 1
bf16: true
pure_bf16: true
"""


def converted(tmp_path: Path, text: str) -> Any:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    return jc.convert(str(file), gpu="h100-sxm", gpus=8)


def test_llama_factorys_jobs_say_what_is_frozen(tmp_path: Path) -> None:
    """262,144 pixels are 512 x 512; the projector is frozen unless said."""
    found = converted(tmp_path, JOB)
    images = plan_from_dict(tomllib.loads(found.text)).workload.images
    assert images is not None and (images.rows, images.columns) == (36, 36)
    assert not images.trains_tower and not images.trains_projector
    assert any("have one image" in one for one in found.warnings)
    trained = converted(tmp_path, JOB.replace("freeze_vision_tower: true", "freeze_vision_tower: false"))
    assert "freeze_vision_tower = false" in trained.text
    adapted = converted(tmp_path, JOB.replace("finetuning_type: full", "finetuning_type: lora"))
    assert "[workload.images]" in adapted.text and "freeze_vision_tower" not in adapted.text.partition("\n# Not")[0]


def test_a_job_that_says_nothing_of_images_is_of_text(tmp_path: Path) -> None:
    said = ("image_max_pixels", "freeze_vision_tower", "freeze_language_model")
    text = "\n".join(line for line in JOB.splitlines() if not line.startswith(said))
    found = converted(tmp_path, text)
    assert "[workload.images]" not in found.text
    assert any("its text is forecast alone" in one for one in found.warnings)


def test_a_frozen_text_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="frozen beside a trained tower"):
        converted(tmp_path, JOB.replace("freeze_language_model: false", "freeze_language_model: true"))


def test_ms_swifts_words_for_the_same(tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text(
        "swift sft --model Qwen/Qwen3-VL-4B-Instruct --tuner_type full --dataset x --max_length 4096 \\\n"
        "  --freeze_vit false --freeze_aligner false --torch_dtype bfloat16 --per_device_train_batch_size 1\n"
    )
    text = jc.convert(str(file), gpu="h100-sxm", gpus=1).text
    assert "freeze_vision_tower = false" in text and "freeze_multi_modal_projector = false" in text
    assert "height = 768" in text
