"""Plans whose next tokens' loss takes logits in tiles, as TRL's supervised finetuning: what runs, and what it holds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from plan_tables import merged
from ways_agree import ways_agree

from joulecast.errors import InputError
from joulecast.model.transformer.log_probabilities import CAPPED, FOLDED, TILE_TOKENS, TILE_WORDS, TURNED
from joulecast.simulator.instructions.footprints import footprint_of
from joulecast.simulator.instructions.program import plan_program
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict

BATCH, LENGTH = 2, 1024
TABLES: dict[str, Any] = {
    "workload": {
        "model": "llama-3.2-1b",
        "layers": 4,
        "sequence_length": LENGTH,
        "micro_batch_size": BATCH,
        "global_batch_size": BATCH,
    },
    "cluster": {"gpu": "h200-sxm", "gpus": 1},
    "implementation": {"modules": "transformers", "log_probabilities": "chunked"},
}
WHOLE = {"implementation": {"log_probabilities": "whole"}}
ADAPTERS = {"lora": {"target_modules": "all-linear"}}


def plan(**tables: Any) -> Plan:
    return plan_from_dict(merged(TABLES, tables))


def launches(of: Plan, kind: str) -> list[Any]:
    program = plan_program(of).ranks[0]
    return list(program.types[next(i for i, name in enumerate(program.names) if name.startswith(kind))])


def names(of: Plan, kind: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for launch in launches(of, kind):
        found[launch.operator.name] += launch.repeat
    return found


def head_flops(of: Plan, kind: str) -> float:
    heads = [x for x in launches(of, kind) if x.operator.name.startswith("head") and hasattr(x.operator, "flops")]
    return sum(x.operator.flops * x.repeat for x in heads)


def test_the_loss_is_folded_tile_by_tile() -> None:
    tiles = -(-BATCH * (LENGTH - 1) // TILE_TOKENS) * -(-plan().workload.model.vocab // TILE_WORDS)
    forward, backward = names(plan(), "forward"), names(plan(), "backward")
    assert forward["log_probs.fold"] == backward["log_probs.turn"] == forward["head"] == tiles == 4
    assert not any(name.startswith("loss.") for name in (*forward, *backward))
    assert names(plan(**WHOLE), "forward")["loss.log_softmax"] == 1
    assert plan(**WHOLE).implementation.log_probabilities == ""


def test_caps_on_logits_are_taken_while_they_are_folded() -> None:
    capped, plain = plan(workload={"model": "gemma-2-9b"}), plan(workload={"model": "gemma-7b"})

    def cycles(of: Plan, kind: str, name: str) -> float:
        found = next(x.operator for x in launches(of, kind) if x.operator.name == name)
        return found.sm_cycles / found.elements

    assert plain.workload.model.vocab == capped.workload.model.vocab
    assert cycles(plain, "forward", "log_probs.fold") == pytest.approx(FOLDED)
    assert cycles(capped, "forward", "log_probs.fold") == pytest.approx(FOLDED + CAPPED)
    assert cycles(capped, "backward", "log_probs.turn") == pytest.approx(TURNED + CAPPED)


def test_only_scored_tokens_reach_the_head() -> None:
    model = plan().workload.model
    each = 2.0 * model.vocab * model.hidden
    assert head_flops(plan(), "forward") == each * BATCH * (LENGTH - 1)
    some = plan(workload={"completion_tokens": 256})
    assert head_flops(some, "forward") == each * BATCH * 256
    assert head_flops(some, "backward") == 3 * each * BATCH * 256
    assert head_flops(plan(workload={"completion_tokens": 256, **ADAPTERS}), "backward") == 2 * each * BATCH * 256


def test_no_logits_are_held() -> None:
    tiled, whole = (footprint_of(plan(**tables), 0) for tables in ({}, WHOLE))
    model = plan().workload.model
    logits, table = BATCH * LENGTH * model.vocab, model.vocab * model.hidden
    assert whole.activations - tiled.activations == pytest.approx(4.0 * logits, rel=2e-2)
    assert whole.transient == 8.0 * logits
    tile = 2.0 * BATCH * (LENGTH - 1) * TILE_WORDS
    assert tiled.transient == 6.0 * (table + BATCH * (LENGTH - 1) * model.hidden) + tile
    assert footprint_of(plan(workload=ADAPTERS), 0).transient < tiled.transient - 6.0 * table + tile


def test_copies_that_autocast_caches_are_held_in_a_forward_whose_layers_are_computed_again() -> None:
    """The last of several is the peak: gradients of earlier ones are there, and a rounded copy of every weight."""
    mixed = {"implementation": {"parameter_precision": "fp32", **TABLES["implementation"]}}
    again = {**mixed, "schedule": {"recompute": "full"}, "workload": {"layers": 16, "global_batch_size": 2 * BATCH}}
    held = footprint_of(plan(**again), 0)
    model = plan().workload.model
    outside = model.vocab * model.hidden + model.hidden
    rounded = 2.0 * (held.parameters / 4 - outside)
    tile = 2.0 * TILE_WORDS * (BATCH * (LENGTH - 1) + model.hidden)
    assert held.transient == pytest.approx(rounded + tile)
    frozen = {**again, "workload": {**again["workload"], **ADAPTERS}}
    assert footprint_of(plan(**frozen), 0).transient < rounded  # frozen weights are not cached
    # What is kept of each layer, its input, is in the parameters' type, as the residual stream is.
    narrow = footprint_of(plan(**{**again, "implementation": TABLES["implementation"]}), 0)
    kept = 2.0 * 16 * BATCH * LENGTH * model.hidden
    assert held.activations - narrow.activations >= kept


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"workload": {"completion_tokens": 100}},
        {"workload": {"document_tokens": 256}},
        {"workload": ADAPTERS},
        {"implementation": {"liger_kernel": ["rms_norm", "rope", "swiglu"]}},
        {"workload": {"lora": {"base_precision": "nf4", "prepared": True}}},
        {"cluster": {"gpus": 2}, "parallelism": {"fsdp": True}},
        {
            "implementation": {"parameter_precision": "fp32", "training_loop": "trainer"},
            "schedule": {"recompute": "full"},
        },
    ],
)
def test_closed_form_and_simulation_agree(tables: dict[str, Any]) -> None:
    workload = {"global_batch_size": BATCH * tables.get("cluster", {}).get("gpus", 1), **tables.get("workload", {})}
    implementation = {**TABLES["implementation"], **tables.get("implementation", {})}
    one = plan(**{**tables, "workload": workload, "implementation": implementation})
    ways_agree(one, time=5e-3, energy=5e-3)


@pytest.mark.parametrize(
    ("tables", "key", "words"),
    [
        ({"workload": {"completion_tokens": 9}, **WHOLE}, "workload.completion_tokens", "chunked"),
        ({"workload": {"completion_tokens": 2000}}, "workload.completion_tokens", "at most 1024"),
        ({"implementation": {"modules": "joint"}}, "implementation.log_probabilities", '"transformers"'),
        (
            {"implementation": {"modules": "joint", "framework": "megatron"}},
            "implementation.log_probabilities",
            "Megatron",
        ),
        ({"implementation": {"compile": True}}, "implementation.log_probabilities", "compile = false"),
        ({"implementation": {"liger_kernel": True}}, "implementation.liger_kernel", "rms_norm"),
        ({"implementation": {"loss_metrics": 1}}, "implementation.log_probabilities", "loss_metrics"),
        (
            {"cluster": {"gpus": 2}, "parallelism": {"tensor_model_parallel_size": 2}},
            "implementation.log_probabilities",
            "split the batch alone",
        ),
    ],
)
def test_what_is_wrong_is_one_message(tables: dict[str, Any], key: str, words: str) -> None:
    implementation = {**TABLES["implementation"], **tables.get("implementation", {})}
    with pytest.raises(InputError) as raised:
        plan(**{**tables, "implementation": implementation})
    assert raised.value.key == key
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
