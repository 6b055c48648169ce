"""Liger's kernels in a plan: which run by default, what is refused, and what the forecast is then."""

from __future__ import annotations

from typing import Any

import pytest
from plan_tables import merged
from ways_agree import ways_agree

from joulecast.errors import InputError
from joulecast.model.architecture.hf import load_model
from joulecast.model.training.step import layer_forward
from joulecast.simulator.instructions.eager_launches import IN_LIGER, OPERATION, WHOLE, eager_launches
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.implementation import implementation_of
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict
from joulecast.simulator.plan_file.training_loop import ASKED, ASKED_BY_LIGER, loop_wait_s, widens_outputs

DEFAULT = ("fused_linear_cross_entropy", "rms_norm", "rope", "swiglu")


def tables(model: str = "llama-3.2-1b", liger: Any = True, **more: Any) -> dict[str, Any]:
    usual = {
        "workload": {"model": model, "sequence_length": 2048, "global_batch_size": 4, "micro_batch_size": 4},
        "cluster": {"gpu": "h200-sxm", "gpus": 1},
        "implementation": {"modules": "transformers", "liger_kernel": liger},
    }
    return merged(usual, more)


def plan(*args: Any, **more: Any) -> Plan:
    return plan_from_dict(tables(*args, **more))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("llama-3.2-1b", DEFAULT),
        ("gemma-2b", ("fused_linear_cross_entropy", "geglu", "rms_norm", "rope")),
        ("granite-3.1-8b", ("cross_entropy", "rms_norm", "rope", "swiglu")),
        ("glm-4-9b", ("fused_linear_cross_entropy", "rms_norm", "swiglu")),
    ],
)
def test_what_liger_swaps_by_default(model: str, expected: tuple[str, ...]) -> None:
    assert implementation_of(plan(model)).liger == expected
    assert implementation_of(plan(model, False)).liger == ()


def test_a_list_swaps_its_kernels_alone() -> None:
    assert implementation_of(plan(liger=["rope", "rms_norm"])).liger == ("rms_norm", "rope")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (tables("gemma-2b", ["swiglu"]), "geglu"),
        (tables("glm-4-9b", ["rope"]), "rotary"),
        (tables("granite-3.1-8b", ["fused_linear_cross_entropy"]), "scales"),
        (tables(liger=["cross_entropy", "fused_linear_cross_entropy"]), "one"),
        (tables("olmo-2-1b"), "olmo-2-1b"),
        (tables("qwen3-30b-a3b"), "experts"),
        (tables(implementation={"modules": "torchtitan"}), "torchtitan"),
        (tables(implementation={"modules": "joint"}), "joint"),
        (tables(implementation={"compile": True}), "compiled"),
        (tables(implementation={"loss_metrics": 1}), "metrics"),
        (tables(cluster={"gpus": 2}, parallelism={"tensor_model_parallel_size": 2}), "split"),
        (tables(cluster={"gpus": 2}, parallelism={"pipeline_model_parallel_size": 2}), "pipelines"),
        (tables(liger=["layer_norm"]), "[implementation.liger_kernel.0]"),
        (tables(liger="swiglu"), "Write true, false or a list."),
    ],
)
def test_what_is_not_known_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match="liger_kernel") as caught:
        plan_from_dict(given)
    assert words in str(caught.value)


def test_an_iteration_is_shorter_and_takes_less_memory() -> None:
    plain, fused = (forecast(plan(liger=liger)) for liger in (False, True))
    assert 0.7 < fused.time_s / plain.time_s < 0.9
    assert fused.ranks[0].memory_bytes < 0.6 * plain.ranks[0].memory_bytes


def test_each_part_makes_the_iteration_shorter() -> None:
    times = [forecast(plan(liger=list(DEFAULT[:count]) or False)).time_s for count in range(5)]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("model", ["llama-3.2-1b", "gemma-2-2b", "gemma-3-1b", "glm-4-9b", "exaone-4-32b"])
@pytest.mark.parametrize("lora", [{}, {"lora": {"target_modules": ["q_proj", "v_proj"]}}])
def test_layers_are_computed_again_up_to_what_their_backward_needs(model: str, lora: dict[str, Any]) -> None:
    few = {"layers": 4, "micro_batch_size": 1, **lora}
    kept, again, whole = (
        forecast(plan(model, workload=few, schedule=schedule))
        for schedule in ({}, {"recompute": "full"}, {"recompute": "full", "recompute_stops_early": False})
    )
    assert kept.time_s < again.time_s < whole.time_s
    assert again.ranks[0].memory_by_part_bytes["activations"] < kept.ranks[0].memory_by_part_bytes["activations"]


def test_no_logits_are_there_while_autocast_keeps_rounded_weights() -> None:
    """They were counted beside the weights that a forward rounds, where its layers are computed again."""
    wide = {"implementation": {"parameter_precision": "fp32"}, "workload": {"micro_batch_size": 2}}
    kept, again = (
        forecast(plan("gemma-3-1b", schedule={"recompute": one}, **wide)).ranks[0] for one in ("none", "full")
    )
    logits = 2 * 2048 * load_model("gemma-3-1b").vocab
    assert again.memory_by_part_bytes["transient"] < 6 * logits
    assert again.memory_bytes < kept.memory_bytes


def test_the_loss_asks_the_gpu_and_leaves_no_logits_to_widen() -> None:
    trainer = {"implementation": {"training_loop": "trainer"}}
    own = loop_wait_s(plan(liger=False))
    assert loop_wait_s(plan()) == pytest.approx(own * (ASKED + ASKED_BY_LIGER) / ASKED)
    assert widens_outputs(plan(liger=False, **trainer)) and not widens_outputs(plan(**trainer))
    assert implementation_of(plan(**trainer)).scaled_loss
    assert implementation_of(plan(workload={"micro_batch_size": 2})).scaled_loss
    assert not implementation_of(plan()).scaled_loss


def test_launches_in_python_cost_the_host_more_than_they_save() -> None:
    """They are Python both ways, each worth eight of PyTorch's operations; small iterations then wait for them."""
    few = {"workload": {"micro_batch_size": 1, "global_batch_size": 1}, "implementation": {"host_launch_us": 40}}
    kernels = layer_forward(load_model("llama-3.2-1b"), implementation_of(plan()), 1, 2048)
    ligers = [one for one in kernels if ".liger" in one.operator.name]
    assert len(ligers) == 4 and eager_launches(plan(), ligers) == pytest.approx(4 * WHOLE * IN_LIGER[0])
    assert IN_LIGER[0] > 8 * OPERATION[0]
    swift, slow = (forecast(plan(**few | {"implementation": {"host_launch_us": pace}})).time_s for pace in (1, 40))
    assert slow > 1.3 * swift


def test_sharded_models_keep_the_heads_gradient_whole() -> None:
    def peak(liger: bool) -> float:
        sharded = {"cluster": {"gpus": 4}, "parallelism": {"fsdp": True}, "workload": {"global_batch_size": 16}}
        return forecast(plan("llama-3.1-8b", liger, **sharded)).ranks[0].memory_bytes

    assert peak(True) < peak(False)


@pytest.mark.parametrize("more", [{}, {"implementation": {"parameter_precision": "fp32"}}, {"workload": {"lora": {}}}])
def test_sweeps_say_the_same(more: dict[str, Any]) -> None:
    read = plan(**more)
    ways_agree(read, time=0.01)
