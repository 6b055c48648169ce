"""Remedies of plans that do not fit name what their code takes, and nothing that it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from plan_tables import changed

from joulecast.errors import InputError, NotYetError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.simulator.instructions.footprints import memory_remedy
from joulecast.simulator.plan_file.plan import plan_from_dict
from joulecast.simulator.plan_file.ways_out import smaller_trainings, splitting_sizes, splitting_states

SIZES = ("tensor", "pipeline", "expert")
TRANSFORMERS = {"implementation__framework": "pytorch-eager", "implementation__modules": "transformers"}
TITAN = {"implementation__framework": "pytorch-eager", "implementation__modules": "torchtitan"}
JOINT = {"implementation__framework": "pytorch-eager"}
KINDS: dict[str, dict[str, Any]] = {
    "megatron": {},
    "megatron's experts": {"workload__model": "mixtral-8x7b", "parallelism__sequence_parallel": True},
    "megatron's hybrid": {"workload__model": "nemotron-h-8b"},
    "megatron's windows": {"workload__model": "mistral-7b", "parallelism__cp_comm_type": "a2a"},
    "joint": JOINT,
    "joint experts": {**JOINT, "workload__model": "mixtral-8x7b", "parallelism__sequence_parallel": True},
    "ALiBi": {**JOINT, "workload__model": "mpt-7b"},
    "transformers": TRANSFORMERS,
    "transformers' experts": {**TRANSFORMERS, "workload__model": "qwen3-30b-a3b"},
    "transformers' hybrid": {**TRANSFORMERS, "workload__model": "granite-4.0-h-micro"},
    "norms of all heads": {**TRANSFORMERS, "workload__model": "olmo-2-7b"},
    "adapters": {**TRANSFORMERS, "workload__lora": {"rank": 8}},
    "pairs": {**TRANSFORMERS, "workload__objective": "dpo"},
    "Liger": {**TRANSFORMERS, "implementation__liger_kernel": True},
    "8 bits": {**TRANSFORMERS, "implementation__optimizer": "adamw-8bit"},
    "SGD": {**TRANSFORMERS, "implementation__optimizer": "sgd"},
    "Muon": {**TRANSFORMERS, "implementation__optimizer": "muon"},
    "torchtitan": TITAN,
}


def tables(kind: str, **more: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "workload": {"model": "llama-3.1-8b", "sequence_length": 2048, "global_batch_size": 32},
        "cluster": {"gpu": "h100-sxm", "gpus": 16},
        "implementation": {"framework": "megatron"},
    }
    return changed(usual, {**KINDS[kind], **more})


def refused(kind: str, **more: Any) -> bool:
    try:
        plan_from_dict(tables(kind, **more))
    except InputError:
        return True
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_that_are_named_can_be_raised_and_others_cannot(kind: str) -> None:
    named = splitting_sizes(plan_from_dict(tables(kind)))
    split = {"parallelism__pipeline_model_parallel_size": 2}
    if KINDS[kind].get("implementation__modules") == "transformers":
        assert named == []  # what finetunes with this code splits no layers; a plan that does so already may go on
        named = [] if refused(kind, **split) else splitting_sizes(plan_from_dict(tables(kind, **split)))
    for size in SIZES:
        key = f"{size}_model_parallel_size"
        assert refused(kind, **{f"parallelism__{key}": 2}) == (key not in named), key
    assert refused(kind, parallelism__context_parallel_size=2) == ("context_parallel_size" not in named)


@pytest.mark.parametrize("kind", KINDS)
def test_states_that_are_named_can_be_split_and_others_cannot(kind: str) -> None:
    named = splitting_states(plan_from_dict(tables(kind)))
    for key in ("distributed_optimizer", "fsdp"):
        assert refused(kind, **{f"parallelism__{key}": True}) == (key not in named), key


ADAPTERS, FOUR_BITS = "train adapters", "keep frozen weights in 4 bits"
LORA, BASE = {"workload__lora": {"rank": 8}}, {"workload__lora": {"rank": 8, "base_precision": "nf4"}}


@pytest.mark.parametrize("kind", KINDS)
def test_smaller_trainings_that_are_named_can_be_and_others_cannot(kind: str) -> None:
    named = smaller_trainings(plan_from_dict(tables(kind)))
    if KINDS[kind].get("implementation__modules") != "transformers":
        assert named == []
    elif "workload__lora" in KINDS[kind]:
        assert named[0].startswith(FOUR_BITS) and not refused(kind, **BASE)
        assert smaller_trainings(plan_from_dict(tables(kind, parallelism__fsdp=True))) == []
        assert refused(kind, **BASE, parallelism__fsdp=True)
    else:
        assert refused(kind, **LORA) == (named == [])


def test_finetuning_is_offered_what_its_tools_can_do() -> None:
    most = load_gpu("h100-sxm").number("memory_bytes")

    def remedy(kind: str, **more: Any) -> str:
        return memory_remedy(plan_from_dict(tables(kind, **more)), most)

    whole = remedy("transformers", workload__model="llama-3.1-70b", workload__micro_batch_size=2)
    assert whole == (
        'Lower micro_batch_size, set schedule.recompute = "full", split states with distributed_optimizer or fsdp or '
        "train adapters ([workload.lora])."
    )
    one = {"workload__model": "llama-3.1-70b", "schedule__recompute": "full", "cluster__gpus": 1}
    assert remedy("transformers", **one) == (
        "Raise cluster.gpus with parallelism.fsdp = true or train adapters ([workload.lora])."
    )
    assert remedy("adapters", **one).endswith('keep frozen weights in 4 bits (workload.lora.base_precision = "nf4").')
    looped = remedy("transformers", implementation__training_loop="trainer", workload__model="llama-3.1-70b")
    assert "model_parallel_size" not in looped
    assert "tensor_model_parallel_size" in remedy("joint", workload__model="llama-3.1-70b")


def test_a_remedy_says_what_is_left() -> None:
    most = load_gpu("h100-sxm").number("memory_bytes")
    muon = plan_from_dict(tables("Muon", schedule__recompute="full"))
    assert memory_remedy(muon, most) == "Take GPUs with more memory."
    adapted = plan_from_dict(tables("adapters", schedule__recompute="full", parallelism__fsdp=True))
    assert memory_remedy(adapted, most) == "Split states over more GPUs."
    paired = plan_from_dict(tables("pairs", schedule__recompute="full", implementation__optimizer="adamw-8bit"))
    assert memory_remedy(paired, most) == "Train adapters ([workload.lora])."


@pytest.mark.parametrize(
    ("kind", "key", "value", "words"),
    [
        ("joint", "parameter_precision", "fp32", "not known of modules with joint products"),
        ("megatron", "parameter_precision", "fp32", "not known of Megatron"),
        ("megatron", "gradient_clipping", False, "the norm of gradients that it clips by"),
        ("megatron", "zero_grad_set_to_none", True, "Megatron zeroes a buffer of gradients"),
        ("megatron", "main_parameters", False, "main parameters in fp32"),
        ("transformers", "gradient_precision", "fp16", "where PyTorch has them in bf16"),
        ("transformers", "optimizer_precision", "fp32", 'set it to "bf16"'),
    ],
)
def test_types_and_steps_that_are_not_known_say_what_is(kind: str, key: str, value: Any, words: str) -> None:
    with pytest.raises(NotYetError, match=words) as caught:
        plan_from_dict(tables(kind, **{f"implementation__{key}": value}))
    assert caught.value.key == f"implementation.{key}"
