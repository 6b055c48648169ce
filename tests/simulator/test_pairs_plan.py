"""Plans whose samples are pairs of sequences: what runs, what it holds, and what is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from plan_tables import merged
from ways_agree import ways_agree

from joulecast.errors import InputError, NotYetError
from joulecast.model.architecture.model_flops import training_flops
from joulecast.simulator.instructions.footprints import footprint_of
from joulecast.simulator.instructions.program import plan_program
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.compared import compared_of
from joulecast.simulator.plan_file.implementation import implementation_of
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict

TABLES: dict[str, Any] = {
    "workload": {"model": "llama-3.2-1b", "layers": 4, "sequence_length": 1024, "global_batch_size": 2},
    "cluster": {"gpu": "h200-sxm", "gpus": 1},
    "implementation": {"modules": "transformers"},
}
LORA = {"lora": {"target_modules": "all-linear"}}


def plan(objective: str | None = "dpo", **tables: Any) -> Plan:
    found = merged(TABLES, tables)
    if objective is not None:
        found["workload"]["objective"] = objective
    return plan_from_dict(found)


def kernels(of: Plan, kind: str) -> Counter[str]:
    program = plan_program(of).ranks[0]
    launches = next(own for own, name in zip(program.types, program.names, strict=True) if name.startswith(kind))
    found: Counter[str] = Counter()
    for launch in launches:
        found[launch.operator.name] += launch.repeat
    return found


def test_a_sample_is_two_sequences() -> None:
    pairs, texts = plan(), plan(None, workload={"micro_batch_size": 2, "global_batch_size": 4})
    assert pairs.tokens == texts.tokens == 2 * 2 * 1024
    assert pairs.microbatches == 2
    assert pairs.workload.micro_batch_sequences == texts.workload.micro_batch_size
    assert kernels(plan("simpo"), "forward")["norm1.scale"] == kernels(texts, "forward")["norm1.scale"]


def test_the_reference_is_one_more_forward_without_a_backward() -> None:
    compared, alone = plan(), plan("simpo")
    twice, once = kernels(compared, "forward"), kernels(alone, "forward")
    assert all(twice[name] == 2 * count for name, count in once.items())
    assert kernels(compared, "backward") == kernels(alone, "backward") == kernels(precomputed(), "backward")
    assert kernels(precomputed(), "forward") == once


def precomputed() -> Plan:
    return plan(workload={"reference": "precomputed"})


def test_adapters_are_off_in_the_reference() -> None:
    adapted = plan(workload=LORA)
    assert adapted.workload.reference == "adapters-off"
    ((reader, reference),) = compared_of(adapted, implementation_of(adapted))
    assert reader is adapted and reference.lora is None
    twice, once = kernels(adapted, "forward"), kernels(plan("simpo", workload=LORA), "forward")
    assert twice["gate.lora_a"] == once["gate.lora_a"] > 0
    assert twice["gate"] == 2 * once["gate"]
    assert footprint_of(adapted, 0).parameters == footprint_of(plan("simpo", workload=LORA), 0).parameters


def test_a_copy_is_held_beside_the_model() -> None:
    copy, off = footprint_of(plan(), 0), footprint_of(precomputed(), 0)
    assert copy.parameters == 2 * off.parameters
    assert copy.optimizer == off.optimizer
    beside = plan(workload={**LORA, "reference": "copy"})
    more = footprint_of(beside, 0).parameters - footprint_of(plan(workload=LORA), 0).parameters
    assert more == off.parameters
    sharded = {"cluster": {"gpus": 2}, "parallelism": {"fsdp": True}}
    assert footprint_of(plan(**sharded), 0).parameters == pytest.approx(copy.parameters / 2)


def test_four_bits_stay_in_the_reference() -> None:
    small = plan(workload={"lora": {"base_precision": "nf4"}})
    twice = kernels(small, "forward")
    assert twice["gate.weight.nf4"] == twice["gate"] == 2 * small.workload.model.layers


def test_logits_in_tiles_are_of_scored_positions_alone() -> None:
    few, every = plan(workload={"completion_tokens": 256}), plan()
    vocab, hidden = every.workload.model.vocab, every.workload.model.hidden

    def products(of: Plan, kind: str) -> float:
        program = plan_program(of).ranks[0]
        at = next(i for i, name in enumerate(program.names) if name.startswith(kind))
        heads = [x for x in program.types[at] if x.operator.name.startswith("head") and hasattr(x.operator, "flops")]
        return sum(x.operator.flops * x.repeat for x in heads)

    scored = 2 * (1024 - 1)
    assert products(every, "forward") == 2 * 2.0 * scored * vocab * hidden
    assert products(every, "backward") == 3 * 2.0 * scored * vocab * hidden
    assert products(few, "backward") == 3 * 2.0 * 512 * vocab * hidden


def test_whole_logits_take_memory_that_tiles_do_not() -> None:
    whole = {"implementation": {"log_probabilities": "whole"}}
    logits = 2 * 1024 * 128256
    tiled, kept = footprint_of(plan("simpo"), 0), footprint_of(plan("simpo", **whole), 0)
    assert kept.activations - tiled.activations == pytest.approx(4.0 * logits, rel=1e-2)
    assert footprint_of(plan(**whole), 0).transient == 16.0 * logits


def test_a_sharded_copy_is_whole_outside_its_layers_beside_the_models() -> None:
    sharded = {
        "cluster": {"gpus": 2},
        "parallelism": {"fsdp": True},
        "implementation": {"log_probabilities": "whole"},
    }
    model = plan().workload.model
    outside = 2.0 * (model.vocab * model.hidden + model.hidden)
    copy, none = (footprint_of(plan(name, **sharded), 0) for name in ("dpo", "simpo"))
    logits = 4.0 * 2 * 1024 * model.vocab
    assert copy.transient + copy.gathered - none.transient - none.gathered == pytest.approx(2 * logits + outside)


def test_operations_count_the_reference_once() -> None:
    model = plan().workload.model
    once = training_flops(model, 1024, 1.0)
    assert training_flops(model, 1024, 1.0, further_forwards=1.0) == pytest.approx(4 / 3 * once)
    head = 6.0 * model.hidden * model.vocab
    assert training_flops(model, 1024, 1.0, scored=0.25) == pytest.approx(once - 0.75 * head)
    a, b = forecast(plan()), forecast(precomputed())
    assert a.tokens == b.tokens == 4096
    assert a.model_flops_per_s * a.time_s == pytest.approx(4 / 3 * b.model_flops_per_s * b.time_s)


def test_the_forecast_says_what_a_sample_and_the_reference_are() -> None:
    said = " ".join(forecast(plan()).assumptions)
    assert "a sample is a pair of sequences of 1024 tokens" in said
    assert "a second model" in said
    assert "computed before" in " ".join(forecast(precomputed()).assumptions)


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"workload": LORA},
        {"cluster": {"gpus": 2}, "parallelism": {"fsdp": True}},
        {"cluster": {"gpus": 2}, "parallelism": {"distributed_optimizer": True}},
        {"workload": LORA, "cluster": {"gpus": 2}, "parallelism": {"fsdp": True}},
        {"implementation": {"parameter_precision": "fp32", "log_probabilities": "whole"}},
        {"schedule": {"recompute": "full"}},
    ],
)
def test_closed_form_and_simulation_agree(tables: dict[str, Any]) -> None:
    one = plan(**tables)
    ways_agree(one, time=5e-3, energy=5e-3)


def test_a_sharded_reference_is_gathered_in_its_forward() -> None:
    sharded = {"cluster": {"gpus": 2}, "parallelism": {"fsdp": True}}
    twice, once = kernels(plan(**sharded), "forward"), kernels(plan("simpo", **sharded), "forward")
    assert twice["layer.all_gather"] == 2 * once["layer.all_gather"] > 0


def test_what_is_outside_a_references_layers_is_never_gathered_again() -> None:
    """No backward frees it; adapters that are off leave the model's own, which its backward needs whole."""
    sharded = {"cluster": {"gpus": 2}, "parallelism": {"fsdp": True}}
    for tables in ({}, {"workload": LORA}):
        twice, once = (kernels(plan(name, **tables, **sharded), "forward") for name in ("dpo", "simpo"))
        assert twice["root.all_gather"] == once["root.all_gather"] == 1


def test_what_is_outside_a_references_layers_stays_whole_in_a_layers_backward() -> None:
    """One micro-batch of long sequences whose layers are computed again is fullest there."""
    tables = {
        "cluster": {"gpus": 2},
        "parallelism": {"fsdp": True},
        "schedule": {"recompute": "full"},
        "implementation": {"zero_grad_set_to_none": True},
    }
    model = plan().workload.model
    outside = 2.0 * (model.vocab * model.hidden + model.hidden)
    copy, none = (footprint_of(plan(name, **tables), 0) for name in ("dpo", "simpo"))
    more = (copy.gathered + copy.transient + copy.gradients) - (none.gathered + none.transient + none.gradients)
    assert more == pytest.approx(outside)


def test_ligers_kernels_of_layers_run_in_both_models() -> None:
    """Norms, rotation and gate are swapped in either; the loss stays as it is, without a kernel of Liger."""
    swapped = {"implementation": {"liger_kernel": ["rms_norm", "rope", "swiglu"]}}
    twice, once = kernels(plan(**swapped), "forward"), kernels(plan("simpo", **swapped), "forward")
    assert {name: twice[name] / count for name, count in once.items()} == dict.fromkeys(once, 2.0)
    assert {name for name in once if name.endswith("liger")} == {
        "gate.liger", "norm.liger", "norm1.liger", "norm2.liger", "rotary.liger"
    }  # fmt: skip
    own = kernels(plan("simpo"), "forward")
    assert all(once[name] == own[name] for name in ("log_probs.fold", "log_probs.select"))


@pytest.mark.parametrize(
    ("objective", "tables", "key", "words"),
    [
        ("ppo", {}, "workload.objective", "a model of values"),
        ("gkd", {}, "workload.objective", "all logits of model and teacher"),
        ("rloo", {}, "workload.objective", '"grpo"'),
        ("dop", {}, "workload.objective", "dpo"),
        ("ipo", {}, "workload.objective", 'runs the kernels of dpo. Set it to "dpo"'),
        ("cpo", {}, "workload.objective", '"simpo"'),
        ("orpo", {"workload": {"reference": "copy"}}, "workload.reference", "no reference"),
        (None, {"workload": {"reference": "copy"}}, "workload.reference", 'objective = "dpo"'),
        (None, {"workload": {"completion_tokens": 3}}, "workload.completion_tokens", "have logits"),
        ("dpo", {"workload": {"completion_tokens": 2000}}, "workload.completion_tokens", "at most 1024"),
        ("dpo", {"workload": {"reference": "adapters-off"}}, "workload.reference", "[workload.lora]"),
        (
            "dpo",
            {"workload": {"completion_tokens": 9}, "implementation": {"log_probabilities": "whole"}},
            "workload.completion_tokens",
            "chunked",
        ),
        ("dpo", {"implementation": {"modules": "joint"}}, "workload.objective", '"transformers"'),
        ("dpo", {"implementation": {"modules": "joint", "framework": "megatron"}}, "workload.objective", "Megatron"),
        ("dpo", {"implementation": {"compile": True}}, "workload.objective", "compile = false"),
        ("dpo", {"cluster": {"gpus": 2}, "parallelism": {"tensor_model_parallel_size": 2}}, "workload.objective", "1"),
        ("dpo", {"workload": {"document_tokens": 100}}, "workload.objective", "document_tokens"),
        ("dpo", {"implementation": {"liger_kernel": True}}, "implementation.liger_kernel", "in losses on pairs"),
    ],
)
def test_what_is_wrong_is_one_message(objective: str | None, tables: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(InputError) as raised:
        plan(objective, **tables)
    assert raised.value.key == key
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_is_not_known_yet_says_so() -> None:
    with pytest.raises(NotYetError):
        plan("ppo")


SHARDED: dict[str, Any] = {
    "workload": {"model": "llama-3.1-8b", "layers": None, "global_batch_size": 8},
    "cluster": {"gpu": "h100-sxm", "gpus": 8},
    "parallelism": {"fsdp": True},
}
WIDE = {**TABLES["implementation"], "parameter_precision": "fp32"}


def test_a_reference_in_half_the_type_takes_half_the_memory() -> None:
    """DeepSpeed's ZeRO-3 has an fp32 copy of what it trains alone: 2 bytes a parameter over 8 GPUs."""
    alike, narrow = (plan(**SHARDED, implementation=WIDE | more) for more in ({}, {"reference_precision": "bf16"}))
    less = footprint_of(alike, 0).parameters - footprint_of(narrow, 0).parameters
    assert less == pytest.approx(2 * 8.03e9 / 8, rel=0.01)
    assert footprint_of(narrow, 0).gradients == footprint_of(alike, 0).gradients


def test_a_reference_in_the_type_of_products_is_not_cast() -> None:
    """Beside a model whose weights ``torch.autocast`` casts."""
    alike, narrow = (plan(implementation=WIDE | more) for more in ({}, {"reference_precision": "bf16"}))
    copied, kept = (sum(kernels(of, "forward").values()) for of in (alike, narrow))
    assert kept < copied
    assert kernels(alike, "backward") == kernels(narrow, "backward")


@pytest.mark.parametrize(
    ("objective", "more", "message"),
    [
        ("simpo", {}, "no second model"),
        (None, {}, "no second model"),
        ("dpo", {"workload": {**TABLES["workload"], **LORA}}, "no second model"),
        ("dpo", {"workload": {**TABLES["workload"], "reference": "precomputed"}}, "no second model"),
        ("dpo", {"implementation": {**TABLES["implementation"], "reference_precision": "fp32"}}, "not known here"),
    ],
)
def test_a_type_of_a_reference_that_is_not_there_or_not_known(
    objective: str | None, more: dict[str, Any], message: str
) -> None:
    run = {"implementation": {**TABLES["implementation"], "reference_precision": "bf16"}}
    with pytest.raises(InputError, match=rf"implementation.reference_precision\]: .*{message}"):
        plan(objective, **{**run, **more})
