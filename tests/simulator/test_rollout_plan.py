"""Plans that learn from a model's own completions: who scores and who generates them, and what that takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ways_agree import ways_agree

from joulecast.errors import InputError
from joulecast.model.architecture.hf import load_model
from joulecast.model.training.generation import PREFIX, STEP_OVERHEAD_S, Generated, decode_step, engine_of
from joulecast.simulator.instructions.footprints import footprint_of
from joulecast.simulator.instructions.program import plan_program
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.implementation import implementation_of
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.plan_file.rollout import engine_bytes, generated_by
from joulecast.simulator.traces.iteration_trace import write_iteration_trace
from tests.simulator.test_pairs_plan import LORA, kernels
from tests.simulator.test_pairs_plan import plan as pairs_plan

BATCH = {"micro_batch_size": 2, "global_batch_size": 16, "completion_tokens": 256}
TWO = {"cluster": {"gpus": 2}}


def plan(rollout: dict[str, Any] | None = None, **tables: Any) -> Plan:
    own = {} if rollout is None else {"rollout": rollout}
    return pairs_plan("grpo", **{**tables, "workload": {**BATCH, **own, **tables.get("workload", {})}})


def often(of: Plan, kind: str) -> int:
    rank = plan_program(of).ranks[0]
    return sum(rank.names[one] == kind for one in rank.order)


def generation(**rollout: Any) -> Generated:
    found = generated_by(plan(rollout))
    assert found is not None
    return found


def test_completions_are_scored_by_whom_the_plan_says() -> None:
    alone = plan()
    assert often(alone, "scoring") == 0 and alone.tokens == 16 * 1024
    old, both = {"old_log_probabilities": True}, {"old_log_probabilities": True, "reference": "copy"}
    once = kernels(alone, "forward")
    for asked, forwards in ((old, 1), ({"reference": "copy"}, 1), (both, 2)):
        one = plan(workload=asked)
        assert often(one, "scoring") == one.microbatches == 8
        assert kernels(one, "scoring")["gate"] == forwards * once["gate"]
        assert kernels(one, "forward") == once


def test_iterations_on_the_same_completions_share_what_comes_once() -> None:
    shared = plan({}, workload={"reference": "copy", "num_iterations": 4})
    assert often(shared, "scoring") == 2
    assert generated_by(shared).steps == 64  # type: ignore[union-attr]
    a, b = forecast(shared), forecast(plan({}, workload={"reference": "copy"}))
    assert a.time_by_instruction_s["scoring"] == pytest.approx(b.time_by_instruction_s["scoring"] / 4, rel=1e-2)


def test_adapters_are_off_in_the_reference_and_on_in_the_model_that_scores() -> None:
    adapted = plan(workload={**LORA, "old_log_probabilities": True, "reference": "adapters-off"})
    found = kernels(adapted, "scoring")
    assert found["gate"] == 2 * found["gate.lora_a"] == 2 * adapted.workload.model.layers


def test_a_reference_that_scores_before_is_held_but_beside_no_activations() -> None:
    copy, none = footprint_of(plan(workload={"reference": "copy"}), 0), footprint_of(plan(), 0)
    assert copy.parameters == 2 * none.parameters
    assert copy.transient == none.transient


def test_a_step_reads_weights_keys_and_values_once() -> None:
    model = load_model("llama-3.2-1b")
    engine = engine_of(implementation_of(plan()))
    work = Generated(prompts=0, prompt_tokens=1, live=64, context=1000.0, steps=1)
    launches = tuple(decode_step(model, model.runs(0, model.layers), engine, work))
    attention = [x for x in launches if x.operator.name == "attention"]
    read = sum(x.operator.bytes_read * x.repeat for x in attention)
    assert read == 64 * 1000 * 2 * model.kv_heads * model.head_dim * 2 * model.layers
    weights = sum(
        x.operator.n * x.operator.k * x.repeat
        for x in launches
        if hasattr(x.operator, "flops") and hasattr(x.operator, "k")
    )
    vectors = (2 * model.layers + 1) * model.hidden
    assert weights == model.parameters - vectors


def test_windows_bound_what_a_step_reads() -> None:
    model = load_model("mistral-7b")
    engine = engine_of(implementation_of(plan()))

    def read(context: float) -> float:
        work = Generated(prompts=0, prompt_tokens=1, live=1, context=context, steps=1)
        launches = decode_step(model, model.runs(0, model.layers), engine, work)
        return sum(x.operator.bytes_read for x in launches if x.operator.name == "attention")

    window = next(kind.window for kind, _ in model.runs(0, model.layers))
    assert window and read(2.0 * window) == read(float(window)) == 2 * read(window / 2)


def test_what_is_generated_is_counted_in_steps() -> None:
    whole = generation()
    assert (whole.live, whole.steps, whole.prompts, whole.prompt_tokens) == (16, 256, 2, 768)
    assert whole.context == 768 + 128
    few = generation(max_num_seqs=4)
    assert (few.live, few.steps) == (4, 4 * 256)
    assert generation(max_num_seqs=5).steps == 4 * 256
    assert generation(longest_tokens=256) == whole
    ahead = generation(generation_batch_size=64)
    assert (ahead.live, ahead.steps, ahead.prompts) == (64, 64, 2)
    uneven = generation(longest_tokens=512)
    assert (uneven.live, uneven.steps) == (8, 512)
    shared = generated_by(plan({}, **TWO))
    assert shared is not None and (shared.live, shared.prompts) == (8, 1)


def test_logits_of_all_positions_leave_what_is_generated_as_it_is() -> None:
    """In a sweep such plans had no generation, and alone they were refused with completion_tokens as without."""
    whole = plan({}, implementation={"log_probabilities": "whole"})
    assert generated_by(whole) == generation()
    assert whole.workload.scored_share == 1.0
    assert engine_bytes(whole, implementation_of(whole)) == engine_bytes(plan({}), implementation_of(plan({})))


def test_an_engines_host_adds_to_each_step() -> None:
    assert generation().overhead_s == STEP_OVERHEAD_S
    none, more = forecast(plan({"step_overhead_us": 0})), forecast(plan({"step_overhead_us": 2000}))
    longer = more.time_by_instruction_s["generation"] - none.time_by_instruction_s["generation"]
    assert longer == pytest.approx(256 * 2e-3, rel=2e-2)


def test_gpus_wait_for_completions_from_elsewhere() -> None:
    waits = forecast(plan({"wait_s": 3.0}))
    assert waits.time_by_instruction_s["generation"] == pytest.approx(3.0, rel=1e-3)
    assert waits.energy_by_instruction_j["generation"] < 3.0 * 200.0
    assert footprint_of(plan({"wait_s": 3.0}), 0).context == footprint_of(plan(), 0).context


def test_an_engine_holds_weights_and_what_its_sequences_have_seen() -> None:
    model = plan().workload.model
    more = footprint_of(plan({}), 0).context - footprint_of(plan(), 0).context
    seen = 16 * 1024 * 2 * model.kv_heads * model.head_dim * model.layers * 2
    assert more == pytest.approx(2.0 * model.parameters + seen)


def test_an_engine_that_sleeps_has_its_memory_in_turns_with_the_training() -> None:
    alone = footprint_of(plan(), 0)
    beside = alone.activations + alone.outputs + alone.buffers + alone.transient + alone.gathered + alone.gradients
    for longest in (256, 256_000):
        awake, asleep = (
            footprint_of(plan({"longest_tokens": longest, "enable_sleep_mode": sleeps}), 0) for sleeps in (False, True)
        )
        engine = awake.total_bytes - alone.total_bytes
        assert asleep.total_bytes - alone.total_bytes == pytest.approx(max(engine - beside, 0.0))
    assert engine > beside


def test_an_engine_holds_layers_of_each_kind() -> None:
    asked = {"workload": {"model": "gemma-3-1b", "layers": 8}}
    turns = plan({"wait_s": 0.0}, **asked).workload.model
    assert not turns.alike
    more = footprint_of(plan({}, **asked), 0).context - footprint_of(plan(**asked), 0).context
    assert more == pytest.approx(2.0 * turns.parameters + 16 * 1024 * 2 * turns.kv_heads * turns.head_dim * 8 * 2)


@pytest.mark.parametrize(
    ("rollout", "tables"),
    [
        (None, {"workload": {"reference": "copy", "old_log_probabilities": True}}),
        ({}, {"workload": {"reference": "copy"}}),
        ({"max_num_seqs": 4}, TWO),
        ({"wait_s": 1.0}, {"workload": {"old_log_probabilities": True, "num_iterations": 2}}),
        ({}, {**TWO, "parallelism": {"fsdp": True}, "workload": {"reference": "copy"}}),
        ({}, {"workload": {**LORA, "reference": "adapters-off"}}),
    ],
)
def test_closed_form_and_simulation_agree(rollout: dict[str, Any] | None, tables: dict[str, Any]) -> None:
    one = plan(rollout, **tables)
    ways_agree(one, time=5e-3, energy=5e-3)


def test_a_host_that_launches_slowly_does_not_hold_up_graphs() -> None:
    slow = {"implementation": {"host_launch_us": 50}}
    a, b = (forecast(plan({}, **tables)).time_by_instruction_s["generation"] for tables in ({}, slow))
    assert b == pytest.approx(a, rel=1e-3)
    launches = next(t for t, name in zip(*_types(plan({})), strict=True) if name == "generation")
    assert all(x.operator.name.startswith(PREFIX) for x in launches)


def _types(of: Plan) -> tuple[Any, Any]:
    rank = plan_program(of).ranks[0]
    return rank.types, rank.names


def test_a_distillation_may_generate_too() -> None:
    taught = pairs_plan(
        "distillation", workload={**BATCH, "teacher": "llama-3.2-3b", "rollout": {"num_generations": 1}}
    )
    found = generated_by(taught)
    assert found is not None and (found.prompts, found.live) == (16, 16)
    assert often(taught, "generation") == 1


def test_the_forecast_says_who_generates() -> None:
    def said(one: Plan) -> str:
        return " ".join(forecast(one).assumptions)

    assert "not forecast without [workload.rollout]" in said(plan())
    assert "generates 16 completions at once in 256 steps" in said(plan({}))
    assert "step_overhead_us states yours" in said(plan({}))
    assert "step_overhead_us states yours" not in said(plan({"step_overhead_us": 9}))
    assert "the GPUs wait 3 s" in said(plan({"wait_s": 3}))
    assert "once for 2 iterations" in said(plan(workload={"old_log_probabilities": True, "num_iterations": 2}))


@pytest.mark.parametrize(
    ("rollout", "tables", "key", "words"),
    [
        ({}, {"workload": {"completion_tokens": None}}, "workload.completion_tokens", "at most 1023"),
        ({}, {"workload": {"completion_tokens": 1024}}, "workload.completion_tokens", "at most 1023"),
        ({"longest_tokens": 9}, {}, "workload.rollout.longest_tokens", "at least 256"),
        ({"generation_batch_size": 9}, TWO, "workload.rollout.generation_batch_size", "multiple of 2"),
        ({"num_generations": 7}, {}, "workload.rollout.num_generations", "divisor"),
        (None, {"workload": {"reference": "precomputed"}}, "workload.reference", "beta is 0"),
        ({"batch": 9}, {}, "workload.rollout.batch", "max_num_seqs"),
        ({}, {"workload": {"model": "qwen3-30b-a3b"}}, "workload.rollout", "wait_s"),
        (None, {"workload": {"num_iterations": 3, "reference": "copy"}}, "workload.num_iterations", "divisor"),
        (None, {"workload": {"num_iterations": 2}}, "workload.num_iterations", "old_log_probabilities = true"),
    ],
)
def test_what_is_wrong_is_one_message(
    rollout: dict[str, Any] | None, tables: dict[str, Any], key: str, words: str
) -> None:
    with pytest.raises(InputError) as raised:
        plan(rollout, **tables)
    assert raised.value.key == key
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("key", ["num_iterations", "old_log_probabilities", "rollout"])
def test_other_objectives_score_and_generate_nothing(key: str) -> None:
    value = {"num_iterations": 2, "old_log_probabilities": True, "rollout": {}}[key]
    with pytest.raises(InputError, match="completions"):
        pairs_plan("dpo", workload={key: value})


def test_a_trace_of_too_many_steps_is_refused(tmp_path: Path) -> None:
    long = plan({"longest_tokens": 40_000})
    with pytest.raises(InputError, match=r"--trace.*million kernels.*Leave \[workload.rollout\] out"):
        write_iteration_trace(tmp_path / "trace.json", long)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("completions", "prompts", "runs"), [(320, 40, 4), (8, 1, 1), (88, 11, 2)])
def test_prompts_run_once_for_their_completions_as_many_as_an_engine_takes(
    completions: int, prompts: int, runs: int
) -> None:
    """Ten prompts of 768 tokens are at once below 8,192 tokens; uneven ones are shared out."""
    one = plan({"longest_tokens": 512}, workload={"global_batch_size": completions, "micro_batch_size": 8})
    work = generated_by(one)
    assert work is not None and work.prompts == prompts
    launches = next(t for t, name in zip(*_types(one), strict=True) if name == "generation")
    rows = {x.operator.m: x.repeat for x in launches if x.operator.name == "generation.up"}
    layers = one.workload.model.layers
    at_once = -(-prompts // runs)
    assert rows == {at_once * 768: layers * runs, completions // 2: layers * 512}
    (copied,) = [x.operator for x in launches if x.operator.name == "generation.weights"]
    assert copied.bytes_read == copied.bytes_written == 2 * one.workload.model.parameters
    (embedded,) = [x for x in launches if x.operator.name == "generation.embedding" and x.repeat == runs]
    assert embedded.operator.rows == at_once * 768


def test_a_token_is_drawn_from_logits_in_fp32() -> None:
    model = load_model("llama-3.2-1b")
    work = Generated(prompts=0, prompt_tokens=1, live=3, context=1.0, steps=1)
    launches = decode_step(model, model.runs(0, model.layers), engine_of(implementation_of(plan())), work)
    drawn = [x.operator for x in launches if x.operator.name.startswith("draw.")]
    logits = 3 * model.vocab
    assert sum(x.bytes_read for x in drawn) == (2 + 4 + 4 + 8 + 4) * logits
    assert sum(x.bytes_written for x in drawn) == (4 + 4 + 4 + 4 + 4) * logits
