"""Liger's kernels in transformers' modules: which they are, what they move and what they keep."""

from __future__ import annotations

from dataclasses import replace

import pytest
from launched import names

from joulecast.model.architecture.hf import load_model
from joulecast.model.framework.implementation import Implementation, LigerKernel
from joulecast.model.framework.launches import Launch
from joulecast.model.framework.layer_shard import Shard, shard
from joulecast.model.framework.lora import Lora
from joulecast.model.kernels.operators import Gemm, Streaming
from joulecast.model.memory.activations import head_bytes, layer_bytes, loss_transient_bytes
from joulecast.model.training.step import layer_backward, layer_forward
from joulecast.model.transformer import head, liger_kernels, liger_loss

ALL: tuple[LigerKernel, ...] = ("fused_linear_cross_entropy", "rms_norm", "rope", "swiglu")
PLAIN = Implementation(modules="transformers", drops_gradients=True)
LIGER = replace(PLAIN, liger=ALL)
LLAMA = load_model("llama-3.2-1b")
VALUES = 2 * 4096


def of(run: Implementation = LIGER, model: str = "llama-3.2-1b") -> Shard:
    return shard(load_model(model), run, 2, 4096)


def moved(launch: Launch) -> float:
    operator = launch.operator
    assert isinstance(operator, Streaming)
    return operator.bytes_read + operator.bytes_written


def test_a_layer_has_one_kernel_for_each_norm_rotation_and_gate() -> None:
    forward = layer_forward(LLAMA, LIGER, 2, 4096)
    backward = layer_backward(LLAMA, LIGER, 2, 4096, accumulate=False)
    assert [n for n in names(forward) if ".liger" in n] == ["norm1.liger", "rotary.liger", "norm2.liger", "gate.liger"]
    assert [n for n in names(backward) if n.endswith(".liger.grad")] == [
        "gate.liger.grad",
        "norm2.liger.grad",
        "rotary.liger.grad",
        "norm1.liger.grad",
    ]
    assert not any("clone" in n for n in names(backward))  # tokens stay first
    assert len(forward) < 0.4 * len(layer_forward(LLAMA, PLAIN, 2, 4096))


def test_each_kernel_is_swapped_alone() -> None:
    whole = set(names(layer_forward(LLAMA, PLAIN, 2, 4096)))
    kernels: tuple[tuple[LigerKernel, str], ...] = (
        ("rms_norm", "norm1.square"),
        ("rope", "rotary.query.cos"),
        ("swiglu", "gate.silu"),
    )
    for kernel, gone in kernels:
        found = set(names(layer_forward(LLAMA, replace(PLAIN, liger=(kernel,)), 2, 4096)))
        assert gone in whole - found
        assert len([n for n in found if ".liger" in n]) == (2 if kernel == "rms_norm" else 1)


def test_bytes_are_each_input_and_output_once() -> None:
    s = of()
    gate, undone = liger_kernels.gate_forward(s, joint=False)[0], liger_kernels.gate_backward(s, joint=False)[0]
    size = VALUES * LLAMA.ffn * 2.0
    assert (moved(gate), moved(undone)) == (3 * size, 5 * size)
    assert moved(liger_kernels.rotary(s)[0]) == 2 * VALUES * (32 + 8) * 64 * 2.0
    assert moved(liger_kernels.norm_forward("norm", s, VALUES, 2048)) == 2 * VALUES * 2048 * 2.0


def test_a_joint_product_is_copied_apart_and_its_gradients_together() -> None:
    s = of(model="phi-3-mini")
    assert names(liger_kernels.gate_forward(s, joint=True)) == ["gate.gate.copy", "gate.up.copy", "gate.liger"]
    assert names(liger_kernels.gate_backward(s, joint=True)) == ["gate.liger.grad", "gate.grad.cat"]
    assert names(liger_kernels.rotary(s))[:2] == ["rotary.query.copy", "rotary.key.copy"]
    assert names(liger_kernels.rotary(s, ".grad")) == ["rotary.liger.grad"]


def test_norms_that_are_not_in_place_fill_zeros_first() -> None:
    assert "norm.liger.grad.fill" not in names(liger_kernels.norm_backward("norm", of(), VALUES, 2048))
    around = liger_kernels.norm_backward("norm", of(model="gemma-3-1b"), VALUES, 1152)
    assert names(around)[0] == "norm.liger.grad.fill"


def test_a_norms_backward_is_bound_by_its_rows_one_after_another() -> None:
    def cycles(rows: int, columns: int) -> float:
        operator = liger_kernels.norm_backward("norm", of(), rows, columns)[0].operator
        assert isinstance(operator, Streaming)
        return operator.sm_cycles

    assert cycles(16384, 2048) == 2 * cycles(8192, 2048)
    assert cycles(8192, 4096) < 2 * cycles(8192, 2048)
    assert cycles(65536, 128) < 4 * cycles(16384, 128)  # sixteen short rows in a block


def test_wide_gelu_blocks_take_their_spare_columns_too() -> None:
    def cycles(width: int) -> float:
        s = replace(of(model="gemma-2b"), ffn=width)
        operator = liger_kernels.gate_forward(s, joint=False)[0].operator
        assert isinstance(operator, Streaming)
        return operator.sm_cycles / (s.tokens * width)

    assert cycles(16384) < cycles(9216)


@pytest.mark.parametrize(
    ("tokens", "vocab", "hidden", "rows"),
    [(8192, 128256, 4096, 256), (8192, 128256, 2048, 256), (8192, 32000, 4096, 1024), (8192, 256000, 3072, 128),
     (100, 128, 4096, 100), (6000, 151936, 1536, 64)],
)  # fmt: skip
def test_chunks_have_no_more_logits_than_inputs(tokens: int, vocab: int, hidden: int, rows: int) -> None:
    assert liger_loss.chunk_rows(tokens, vocab, hidden) == rows


def test_the_fused_loss_covers_all_tokens_and_sums_the_weights_gradient() -> None:
    s = shard(LLAMA, LIGER, 1, 5000)
    products = [one.operator for one in head.head_forward(s) if isinstance(one.operator, Gemm)]
    forward = [p for p in products if p.layout == "tn"]
    assert sum(p.m for p in forward) == 5000
    assert len(products) == 3 * len(forward)
    assert all(p.accumulate for p in products if p.layout == "nt")
    backward = head.head_backward(s, accumulate=False, embedding_here=False)
    assert not any(isinstance(one.operator, Gemm) for one in backward)
    assert [one.completes for one in backward if one.completes == "head.weight"] == ["head.weight"]


def test_a_scaled_loss_multiplies_both_gradients_in_the_backward() -> None:
    def scaled(run: Implementation) -> list[str]:
        return [n for n in names(head.head_backward(of(run), accumulate=False, embedding_here=False)) if "scale" in n]

    assert scaled(LIGER) == []
    assert scaled(replace(LIGER, scaled_loss=True)) == ["head.dgrad.liger.scale", "head.wgrad.liger.scale"]
    lora = Lora(8, ("query",), 0.0, "bf16", "", False, False)
    assert scaled(replace(LIGER, scaled_loss=True, lora=lora)) == ["head.dgrad.liger.scale"]


def test_a_frozen_head_has_no_weight_gradient() -> None:
    lora = Lora(8, ("query",), 0.0, "bf16", "", False, False)
    s = of(replace(LIGER, lora=lora))
    assert not any(one.operator.name == "head.wgrad" for one in head.head_forward(s))
    wide = of(replace(LIGER, parameters="fp32"))
    summed = [one.operator for one in head.head_forward(wide) if one.operator.name == "head.wgrad"]
    assert {p.out_dtype for p in summed if isinstance(p, Gemm)} == {"fp32"}


def test_gradients_are_kept_in_place_of_logits() -> None:
    plain, fused, hidden = of(PLAIN), of(), LLAMA.hidden
    logits = VALUES * LLAMA.vocab
    assert head_bytes(plain) > 4.0 * logits
    norm = 2.0 * VALUES * hidden
    assert head_bytes(fused) == norm + 2.0 * VALUES * hidden + 2.0 * LLAMA.vocab * hidden
    assert loss_transient_bytes(fused) == 2.0 * VALUES * hidden + 2.0 * 256 * LLAMA.vocab
    assert loss_transient_bytes(plain) > 10 * loss_transient_bytes(fused)
    frozen = of(replace(LIGER, lora=Lora(8, ("query",), 0.0, "bf16", "", False, False)))
    assert head_bytes(frozen) == norm + 2.0 * VALUES * hidden


def test_a_layer_keeps_three_tensors_of_the_mlp_and_no_wide_norms() -> None:
    plain, fused = layer_bytes(of(PLAIN)), layer_bytes(of())
    kept = 2 * VALUES * (2 * 2048 + 2 * 2048 + 3 * 8192 + (32 + 2 * 8) * 64 + 2048) + 4.0 * VALUES * (2 + 32)
    assert fused == pytest.approx(kept, rel=1e-12)
    assert plain - fused == pytest.approx(VALUES * (2.0 * 8192 + 2 * 4.0 * 2048), rel=1e-12)


def test_cross_entropy_alone_takes_logits_in_fp32_once() -> None:
    run = replace(PLAIN, liger=("cross_entropy",))
    forward, backward = head.head_forward(of(run)), head.head_backward(of(run), accumulate=False, embedding_here=False)
    assert [n for n in names(forward) if n.startswith("loss.")] == ["loss.widen", "loss.liger"]
    assert [n for n in names(backward) if n.startswith("loss.")] == ["loss.grad.round"]
    assert loss_transient_bytes(of(run)) < loss_transient_bytes(of(PLAIN))
