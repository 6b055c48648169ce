"""Plans of reward models, KTO and distillation: what runs, what it holds, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from ways_agree import ways_agree

from joulecast.errors import InputError
from joulecast.model.architecture.hf import load_model
from joulecast.model.architecture.model_flops import training_flops
from joulecast.simulator.instructions.footprints import footprint_of
from joulecast.simulator.instructions.program import stage_parameters
from joulecast.simulator.iteration.forecast import forecast
from tests.simulator.test_pairs_plan import LORA, kernels, plan

TEACHER = {"workload": {"teacher": "llama-3.2-3b"}}


def test_a_reward_model_reads_pairs_and_gives_each_position_one_value() -> None:
    reward, simpo = plan("reward"), plan("simpo")
    assert reward.tokens == simpo.tokens
    own = kernels(reward, "forward")
    assert own["head"] == 1 and not any(name.startswith("log_probs") for name in own)
    layers = {name: count for name, count in kernels(simpo, "forward").items() if name.startswith(("gate", "norm1"))}
    assert {name: own[name] for name in layers} == layers


def test_its_head_is_a_row_of_its_own_beside_a_tied_embedding() -> None:
    model = plan().workload.model
    assert model.tied_embeddings
    sizes = {p.name: p.elements for p in stage_parameters(plan("reward"), 0)}
    assert (sizes["head.weight"], sizes["embedding.weight"]) == (model.hidden, model.vocab * model.hidden)
    assert "head.weight" not in {p.name for p in stage_parameters(plan("simpo"), 0)}
    whole = plan("simpo", implementation={"log_probabilities": "whole"})
    logits = footprint_of(whole, 0).activations - footprint_of(plan("reward"), 0).activations
    assert logits == pytest.approx(4.0 * 2 * 1024 * model.vocab)


def test_a_reward_models_operations_have_no_head() -> None:
    model, a = plan().workload.model, forecast(plan("reward"))
    assert a.model_flops_per_s * a.time_s == pytest.approx(training_flops(model, 1024, 4096.0, scored=0.0))


def test_a_reward_model_holds_no_logits_under_autocast() -> None:
    """Where layers are computed again its peak was that of a forward with logits."""
    again = {"schedule": {"recompute": "full"}, "implementation": {"parameter_precision": "fp32"}}
    long = {"workload": {"sequence_length": 16384, "micro_batch_size": 2, "global_batch_size": 4}}
    held = footprint_of(plan("reward", **again, **long), 0)
    assert held.transient < 4.0 * 4 * 16384 * plan().workload.model.vocab


def test_kto_reads_mismatched_completions_by_both_models() -> None:
    four, texts = kernels(plan("kto"), "forward"), plan(None, implementation={"log_probabilities": "chunked"})
    once = kernels(texts, "forward")
    assert all(four[name] == 4 * count for name, count in once.items())
    assert kernels(plan("kto"), "backward") == kernels(texts, "backward")
    twice = kernels(plan("kto", workload={"reference": "precomputed"}), "forward")
    assert all(twice[name] == 2 * count for name, count in once.items())
    assert plan("kto").tokens == texts.tokens
    assert footprint_of(plan("kto"), 0).parameters == 2 * footprint_of(texts, 0).parameters


def test_adapters_are_on_in_ktos_own_forwards_alone() -> None:
    adapted = kernels(plan("kto", workload=LORA), "forward")
    assert adapted["gate.lora_a"] * 2 == adapted["gate"] == 4 * plan().workload.model.layers


def test_a_teachers_layers_run_behind_the_students_and_are_held_beside_them() -> None:
    one = plan("distillation", **TEACHER)
    teacher = load_model("llama-3.2-3b")
    forward, backward = kernels(one, "forward"), kernels(one, "backward")
    assert forward["gate"] == one.workload.model.layers + teacher.layers
    assert forward["head"] == forward["teacher.head"] == backward["teacher.head"] == 4
    assert backward["gate.dgrad"] == one.workload.model.layers
    more = footprint_of(one, 0).parameters - footprint_of(plan("simpo"), 0).parameters
    assert more == pytest.approx(2.0 * teacher.parameters)


@pytest.mark.parametrize(
    ("student", "teacher"), [("llama-3.2-1b", "llama-3.1-8b"), ("granite-4.0-micro", "granite-4.0-h-micro")]
)
def test_a_teacher_is_held_as_it_is_itself(student: str, teacher: str) -> None:
    """With a head of its own, and with layers of every kind."""
    own, both = {"model": student}, {"model": student, "teacher": teacher}
    more = footprint_of(plan("distillation", workload=both), 0).parameters
    more -= footprint_of(plan("simpo", workload=own), 0).parameters
    assert more == pytest.approx(2.0 * load_model(teacher).parameters)


def test_a_sharded_teacher_is_whole_outside_its_layers() -> None:
    teacher = load_model("llama-3.1-70b")
    sharded = {"cluster": {"gpus": 2}, "parallelism": {"fsdp": True}, "workload": {"teacher": teacher.name}}
    held = footprint_of(plan("distillation", **sharded), 0)
    assert held.transient + held.gathered > 2.0 * 2 * teacher.vocab * teacher.hidden


def test_a_distillations_operations_count_the_teachers_forward() -> None:
    a, model, teacher = forecast(plan("distillation", **TEACHER)), plan().workload.model, load_model("llama-3.2-3b")
    both = training_flops(model, 1024, 2048.0) + training_flops(teacher, 1024, 2048.0) / 3.0
    assert a.model_flops_per_s * a.time_s == pytest.approx(both)


@pytest.mark.parametrize(
    ("objective", "tables"),
    [
        ("reward", {}),
        ("reward", {"cluster": {"gpus": 2}, "parallelism": {"fsdp": True}}),
        ("reward", {"workload": LORA}),
        ("kto", {}),
        ("kto", {"workload": LORA}),
        ("kto", {"cluster": {"gpus": 2}, "parallelism": {"fsdp": True}}),
        ("kto", {"implementation": {"log_probabilities": "whole"}}),
        ("distillation", TEACHER),
        ("distillation", {**TEACHER, "schedule": {"recompute": "full"}}),
        ("distillation", {**TEACHER, "cluster": {"gpus": 2}, "parallelism": {"fsdp": True}}),
    ],
)
def test_closed_form_and_simulation_agree(objective: str, tables: dict[str, Any]) -> None:
    one = plan(objective, **tables)
    ways_agree(one, time=5e-3, energy=5e-3)


def test_the_forecast_says_what_else_reads() -> None:
    assert "mismatched completions" in " ".join(forecast(plan("kto")).assumptions)
    assert "that of the teacher" in " ".join(forecast(plan("distillation", **TEACHER)).assumptions)
    assert "a pair of sequences" in " ".join(forecast(plan("reward")).assumptions)


@pytest.mark.parametrize(
    ("objective", "tables", "key", "words"),
    [
        ("distillation", {}, "workload.teacher", "Name a model"),
        ("distillation", {"workload": {"teacher": "llama-3.2-4b"}}, "workload.teacher", "llama-3.2-3b"),
        ("distillation", {"workload": {"teacher": "qwen2.5-3b"}}, "workload.teacher", "same vocabulary"),
        ("dpo", TEACHER, "workload.teacher", "has no teacher"),
        ("reward", {"workload": {"completion_tokens": 9}}, "workload.completion_tokens", "scores no tokens"),
        ("reward", {"workload": {"reference": "copy"}}, "workload.reference", "no reference"),
        ("reward", {"implementation": {"log_probabilities": "whole"}}, "implementation.log_probabilities", "takes no"),
        ("kto", {"implementation": {"compile": True}}, "workload.objective", "losses as kto's"),
    ],
)
def test_what_is_wrong_is_one_message(objective: str, tables: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(InputError) as raised:
        plan(objective, **tables)
    assert raised.value.key == key
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
