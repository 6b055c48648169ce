"""PyTorch's fused loss, metrics that take the loss again, and an optimizer that loops over parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from joulecast.errors import InputError
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch
from joulecast.model.framework.layer_shard import shard
from joulecast.model.kernels.operators import Streaming
from joulecast.model.memory.activations import loss_transient_bytes
from joulecast.model.training import step
from joulecast.model.training.optimizer import optimizer_step
from joulecast.model.training.parameters import parameters_of_stage
from joulecast.simulator.plan_file.plan import plan_from_dict

CONFIG = ModelConfig("tiny", 512, 4, 8, 4, 64, 1024, 4096)
EAGER = Implementation()
LOGITS = 2 * 1024 * 4096


def moved(launches: tuple[Launch, ...], name: str) -> float:
    """Bytes that the kernels of a name read and write."""
    kernels = [(x.operator, x.repeat) for x in launches if x.operator.name.startswith(name)]
    return sum(n * (k.bytes_read + k.bytes_written) for k, n in kernels if isinstance(k, Streaming))


def head(run: Implementation) -> tuple[Launch, ...]:
    return (*step.head_forward(CONFIG, run, 2, 1024), *step.head_backward(CONFIG, run, 2, 1024))


def test_a_fused_loss_reads_logits_twice_and_writes_their_gradient() -> None:
    fused = replace(EAGER, fused_loss=True)
    assert moved(head(fused), "loss.") == pytest.approx(3 * 2 * LOGITS)
    assert moved(head(EAGER), "loss.") > 1.9 * moved(head(fused), "loss.")
    assert loss_transient_bytes(shard(CONFIG, fused, 2, 1024)) == 2 * LOGITS


@pytest.mark.parametrize("fused", [False, True])
def test_every_metric_takes_an_fp32_log_softmax_of_all_logits(fused: bool) -> None:
    run = replace(EAGER, fused_loss=fused)
    with_two = replace(run, loss_metrics=2)
    assert moved(head(with_two), "metric.") == pytest.approx(2 * (2 + 4 + 4 + 4) * LOGITS, rel=0.001)
    assert moved(head(with_two), "loss.") == moved(head(run), "loss.")


def test_a_loop_over_parameters_moves_twenty_values_for_each() -> None:
    parameters = parameters_of_stage(CONFIG, EAGER, CONFIG.layers, first=True, last=True)
    total = sum(p.elements for p in parameters)
    run = replace(EAGER, parameters="fp32", gathered=True, drops_gradients=True)
    loop = replace(run, optimizer="adamw-for-loop")
    for shards in (1, 8):
        steps = [optimizer_step(parameters, one, state_shards=shards, zeroed=False) for one in (run, loop)]
        fused, looped = (moved(one, "optimizer.adamw") for one in steps)
        assert looped == pytest.approx(20 * 4 * total / shards)
        assert fused == pytest.approx(7 * 4 * total / shards)
        assert sum(x.repeat for x in steps[1]) == 8 * max(1, len(parameters) // shards)


@pytest.mark.parametrize(("clipped", "more"), [(True, 2), (False, 3)])
def test_a_scaled_loss_costs_a_pass_over_gradients(clipped: bool, more: int) -> None:
    """And AdamW writes them where clipping has not divided them before."""
    parameters = parameters_of_stage(CONFIG, EAGER, CONFIG.layers, first=True, last=True)
    total = sum(p.elements for p in parameters)
    narrow = replace(EAGER, parameters="fp32", clipped=clipped)
    bf16, fp16 = (
        moved(optimizer_step(parameters, replace(narrow, dtype=kind)), "optimizer.") for kind in ("bf16", "fp16")
    )
    assert fp16 - bf16 == pytest.approx(more * 4 * total)
    pure = replace(EAGER, dtype="fp16", clipped=clipped)
    assert not any("unscale" in one.operator.name for one in optimizer_step(parameters, pure))


def plan(framework: str = "pytorch-eager", tensor_parallel: int = 1, **keys: Any) -> dict[str, Any]:
    return {
        "workload": {"model": "llama-3.2-1b", "sequence_length": 1024, "global_batch_size": 2},
        "cluster": {"gpu": "h200-sxm", "gpus": 2},
        "parallelism": {"tensor_model_parallel_size": tensor_parallel},
        "implementation": {"framework": framework, **keys},
    }


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        (plan("megatron", loss_metrics=1), r"implementation\.loss_metrics.*pytorch-eager"),
        (plan("megatron", optimizer="adamw-for-loop"), r"implementation\.optimizer.*pytorch-eager"),
        (plan(fused_loss=True, modules="torchtitan"), r"implementation\.fused_loss.*torchtitan"),
        (plan(tensor_parallel=2, fused_loss=True), r"implementation\.fused_loss.*tensor_model_parallel_size = 1"),
        (plan(tensor_parallel=2, loss_metrics=1), r"implementation\.loss_metrics.*tensor_model_parallel_size = 1"),
        (plan(loss_metrics=-1), r"implementation\.loss_metrics"),
        (plan(loss_metrics=10**18), r"implementation\.loss_metrics.*at most 1000"),
    ],
)
def test_what_is_not_known_is_refused(tables: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        plan_from_dict(tables)
