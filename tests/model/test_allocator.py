"""What PyTorch's allocator keeps beside what is allocated, by hand for Llama 3.1 8B on eight GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from joulecast.simulator.instructions.footprints import footprints
from joulecast.simulator.plan_file.gpu import gpu_of
from joulecast.simulator.plan_file.plan import plan_from_dict

HIDDEN, KEYS, FFN, VOCABULARY, LAYERS, TOKENS = 4096, 1024, 14336, 128256, 32, 8192
#: Products of attention and MLP, and two norms; embedding, head and the last norm.
LAYER = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * KEYS + 3 * HIDDEN * FFN + 2 * HIDDEN
ENDS = 2 * VOCABULARY * HIDDEN + HIDDEN
#: Bytes of what FSDP gathers at once in bf16, of an eighth of the gradients in bf16, of the logits in bf16.
GATHERED, SHARDS, NARROW = 2 * (ENDS + LAYER), 2 * (ENDS + LAYERS * LAYER) / 8, 2 * VOCABULARY * TOKENS


def cached(steps: int = 1, parallelism: dict[str, Any] | None = None, **implementation: Any) -> list[float]:
    plan = plan_from_dict(
        {
            "workload": {"model": "llama-3.1-8b", "sequence_length": TOKENS, "global_batch_size": 8 * steps},
            "cluster": {"gpu": "h200-sxm", "gpus": 8},
            "parallelism": {"fsdp": True} if parallelism is None else parallelism,
            "implementation": {"framework": "pytorch-eager", "modules": "torchtitan", **implementation},
        }
    )
    return [stage.cached for stage in footprints(plan, gpu_of(plan), must_fit=False)]


def test_buffers_shards_and_the_gap_of_narrow_logits_are_kept() -> None:
    assert cached() == [pytest.approx(GATHERED + SHARDS + NARROW, rel=1e-12)]


def test_shards_that_wait_for_other_micro_batches_are_allocated_at_the_peak() -> None:
    assert cached(steps=4) == [pytest.approx(GATHERED + NARROW, rel=1e-12)]


def test_gradients_are_as_wide_as_the_parameters_that_are_kept() -> None:
    assert cached(parameter_precision="fp32") == [pytest.approx(GATHERED + 2 * SHARDS + NARROW, rel=1e-12)]


def test_nothing_is_gathered_without_fsdp() -> None:
    assert cached(parallelism={}) == [pytest.approx(NARROW, rel=1e-12)]


def test_a_loss_that_widens_no_logits_leaves_no_gap() -> None:
    assert cached(modules="joint") == [pytest.approx(GATHERED + SHARDS, rel=1e-12)]
    compiled = {"modules": "transformers", "compile": True}
    assert cached(**compiled) == [pytest.approx(GATHERED + SHARDS, rel=1e-12)]


def test_pipelines_keep_no_gap_and_each_end_gathers_its_own() -> None:
    """Two stages of 16 layers: the embedding in one, head and last norm in the other; all gradients wait."""
    first, last = cached(steps=2, parallelism={"fsdp": True, "pipeline_model_parallel_size": 2})
    assert first == pytest.approx(2 * (VOCABULARY * HIDDEN + LAYER), rel=1e-12)
    assert last == pytest.approx(first + 2 * HIDDEN, rel=1e-12)


def test_megatron_has_its_own_buffers() -> None:
    assert cached(framework="megatron", modules="joint", parallelism={"distributed_optimizer": True}) == [0.0]
