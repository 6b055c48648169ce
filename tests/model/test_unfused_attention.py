"""Attention in separate kernels, as Megatron-LM ran it in 2021."""

from dataclasses import replace
from pathlib import Path

import pytest
from launched import flops

from joulecast.errors import InputError
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.layer_shard import shard
from joulecast.model.kernels.operators import Streaming
from joulecast.model.memory.activations import layer_bytes
from joulecast.model.training import step
from joulecast.model.training.pipeline_stage import stage_transfer
from joulecast.model.transformer import loss
from joulecast.model.transformer import unfused_attention as unfused
from joulecast.simulator.plan_file.plan import load_plan

GPT = ModelConfig(
    name="gpt",
    hidden=2048,
    layers=4,
    heads=16,
    kv_heads=16,
    head_dim=128,
    ffn=8192,
    vocab=51200,
    tied_embeddings=True,
    gated_mlp=False,
    activation="gelu",
    norm="layernorm",
    rotary=False,
)
RUN = Implementation(framework="megatron", attention_backend="unfused", dtype="fp16", tensor_parallel=2, dropout=0.1)
SEQUENCE, BATCH = 1024, 2
SCORES = BATCH * 8 * SEQUENCE**2
SHARD = shard(GPT, RUN, BATCH, SEQUENCE)


def test_products_compute_the_whole_square() -> None:
    forward = unfused.attention_forward(SHARD)
    assert flops(forward) == 4.0 * SCORES * 128
    assert flops(unfused.attention_backward(SHARD)) == 2.0 * flops(forward)


def test_every_kernel_passes_over_the_scores() -> None:
    kernels = [launch.operator for launch in unfused.attention_forward(SHARD)]
    streams = [kernel for kernel in kernels if isinstance(kernel, Streaming)]
    assert [kernel.bytes_read for kernel in streams] == [2.0 * SCORES] * 2
    assert sum(kernel.bytes_written for kernel in streams) == 2.0 * SCORES + 3.0 * SCORES


def test_the_layer_runs_it_and_repeats_it_selectively() -> None:
    arguments = (GPT, RUN, BATCH, SEQUENCE)
    names = [launch.operator.name for launch in step.layer_forward(*arguments)]
    assert names.count("attention.softmax") == 1
    assert "attention.forward" not in names
    backward = step.layer_backward(*arguments)
    again = step.layer_backward(GPT, replace(RUN, recompute="selective"), BATCH, SEQUENCE)
    assert flops(again) - flops(backward) == flops(unfused.attention_forward(SHARD))


def test_it_keeps_five_bytes_a_score_unless_they_are_recomputed() -> None:
    """Korthikanti et al., equation 1: 5·a·s²·b bytes."""
    selective = shard(GPT, replace(RUN, recompute="selective"), BATCH, SEQUENCE)
    assert layer_bytes(SHARD) - layer_bytes(selective) == 5.0 * SCORES


def test_without_dropout_the_softmax_alone_is_kept_and_nothing_is_launched_for_it() -> None:
    """PyTorch returns what it is given where no value is dropped."""
    bare = replace(RUN, dropout=0.0)
    plain, selective = (shard(GPT, replace(bare, recompute=how), BATCH, SEQUENCE) for how in ("none", "selective"))
    assert layer_bytes(plain) - layer_bytes(selective) == 2.0 * SCORES
    for listed in (unfused.attention_forward, unfused.attention_backward):
        with_it, without = ([launch.operator.name for launch in listed(s)] for s in (SHARD, plain))
        assert len(with_it) == len(without) + 1
        assert not any("dropout" in name for name in without)


def test_keys_and_values_that_queries_share_are_copied_for_each() -> None:
    grouped = shard(replace(GPT, kv_heads=4), RUN, BATCH, SEQUENCE)
    copies = [launch.operator for launch in unfused.attention_forward(grouped) if "repeat" in launch.operator.name]
    assert [one.bytes_written for one in copies if isinstance(one, Streaming)] == [2.0 * BATCH * SEQUENCE * 8 * 128] * 2
    assert flops(unfused.attention_forward(grouped)) == flops(unfused.attention_forward(SHARD))


def test_dropout_in_megatron_is_that_of_these_kernels(examples: Path) -> None:
    plan = examples / "llama-3.1-8b-4xh200.toml"
    megatron = ["implementation.framework=megatron", "implementation.dropout=0.1"]
    with pytest.raises(InputError, match=r"implementation\.dropout.*attention_backend = \"unfused\""):
        load_plan(plan, megatron)
    assert load_plan(plan, [*megatron, "implementation.attention_backend=unfused"]).implementation.dropout == 0.1


def test_eager_pytorch_has_no_such_backend(examples: Path) -> None:
    plan = examples / "llama-3.1-8b-4xh200.toml"
    with pytest.raises(InputError, match=r"implementation\.attention_backend.*framework = \"megatron\""):
        load_plan(plan, ["implementation.attention_backend=unfused"])


def test_tensor_parallel_ranks_send_a_share_each() -> None:
    whole = stage_transfer(GPT, replace(RUN, tensor_parallel=1), BATCH, SEQUENCE)
    assert stage_transfer(GPT, RUN, BATCH, SEQUENCE).bytes == whole.bytes / 2
    assert stage_transfer(GPT, replace(RUN, sequence_parallel=True), BATCH, SEQUENCE).bytes == whole.bytes / 2


def test_the_ranks_of_a_fused_loss_exchange_three_numbers_a_token() -> None:
    s = shard(GPT, replace(RUN, fused_loss=True, tensor_parallel=4), 2, 1024)
    (gathered,) = (x.operator for x in loss.forward(s, 32064) if x.stream == "communication")
    assert (gathered.kind, gathered.bytes, gathered.gpus) == ("all_gather", 3 * 4 * 2048 * 4, 4)  # type: ignore[union-attr]


def test_a_fused_loss_passes_over_the_logits_three_times_in_their_own_type() -> None:
    def loss_bytes(run: Implementation) -> float:
        launches = (*step.head_forward(GPT, run, BATCH, SEQUENCE), *step.head_backward(GPT, run, BATCH, SEQUENCE))
        kernels = [k.operator for k in launches if k.operator.name.startswith("loss.")]
        return sum(k.bytes_read + k.bytes_written for k in kernels if isinstance(k, Streaming))

    logits = BATCH * SEQUENCE * 51200 / 2 * 2
    assert loss_bytes(replace(RUN, fused_loss=True)) == pytest.approx(5.0 * logits)
    assert loss_bytes(RUN) > 4.0 * loss_bytes(replace(RUN, fused_loss=True))
