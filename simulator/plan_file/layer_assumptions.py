"""What a forecast takes for granted of layers that differ from Llama's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.model.architecture.model_flops import megatron_flops, training_flops

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.parts import Implementation
    from joulecast.simulator.plan_file.plan import Plan

#: Heads up to which kernels of attention are fitted.
MEASURED_HEADS = 128
#: Whose kernels linear attention runs in.
DELTA_NET = (
    "linear attention runs in fla's Triton kernels, compiled before, at the pace of an H200's and an H100's; its gated"
    " norm in transformers' own operations"
)


def layer_assumptions(plan: Plan) -> tuple[str, ...]:
    """How windows, soft-capping, wide heads and models of more than text are taken."""
    model, run = plan.workload.model, plan.implementation
    users = run.modules == "transformers"
    said = []
    if model.sliding_window:
        said.append(_window(plan))
    written = users and run.attention_backend == "unfused"
    if written:
        said.append("transformers' own attention runs a kernel for each operation, as many as its code dispatches")
    if model.attention_softcap and users and not written:
        said.append("transformers leaves soft-capping of attention out where PyTorch's own attention runs")
    elif model.attention_softcap and run.attention_backend != "unfused":
        said.append("soft-capping of attention takes an estimated tenth of a cycle for a score: it was not measured")
    if model.head_dim > MEASURED_HEADS and model.latent is None and run.attention_backend != "unfused":
        said.append(
            f"attention with heads of {model.head_dim} is taken from heads of {MEASURED_HEADS}, the widest fitted"
        )
    if model.experts is not None and users:
        said.append("experts run in transformers' grouped products, whose kernels are taken from its code")
    if model.attention_sinks and not users:
        said.append(_sinks(run))
    if users and model.own_code and not written:
        said.append("attention is PyTorch's own, which is given a mask and computes the whole square")
    if model.alibi:
        said.append(_alibi(plan))
    if model.state_space is not None:
        said += _state_spaces(plan)
    if model.delta_net is not None:
        said.append(DELTA_NET)
    if model.text_part:
        said.append("the model's part that reads text is trained, alone")
    return tuple(said)


def _alibi(plan: Plan) -> str:
    run = plan.implementation
    if run.attention_backend == "unfused":
        return "ALiBi is added to the square of the scores"
    if run.framework == "pytorch-eager" and run.attention_backend == "cudnn":
        return "ALiBi is a tensor of every head's scores, which PyTorch's attention takes as a mask, nothing skipped"
    return "attention's kernel computes ALiBi, in an estimated three instructions for a score: it was not measured"


def _sinks(run: Implementation) -> str:
    held = "attention's kernels hold the heads' sinks for nothing"
    if run.framework != "megatron":
        return f"{held}, and experts' activations their clamps"
    if run.moe_fused_mlp:
        return f"{held}, and experts' products their clamps and biases"
    return f"{held}; clamps and biases of experts run in PyTorch's own kernels, which are counted from Megatron's code"


def _state_spaces(plan: Plan) -> tuple[str, ...]:
    """Whose kernels scan, and how Megatron counts what they do."""
    w, tokens = plan.workload, float(plan.tokens)
    scans = "state spaces run in mamba_ssm's Triton kernels, compiled before, at the pace of an H200's and an H100's"
    if plan.implementation.framework != "megatron":
        return (scans,)
    more = megatron_flops(w.model, w.sequence_length, tokens) / training_flops(w.model, w.sequence_length, tokens) - 1
    counted = f"Megatron counts {abs(100 * more):.1f} % {'more' if more > 0 else 'fewer'} operations of a step"
    return scans, f"{counted}: it scans twice the hidden size, by 7 of them for each value and each of its states"


def _window(plan: Plan) -> str:
    model, run = plan.workload.model, plan.implementation
    if model.chunked:
        return f"attention in chunks of {model.sliding_window} tokens is that of sequences as long"
    words = f"attention in a window of {model.sliding_window} tokens"
    if run.modules == "transformers" and run.attention_backend != "unfused":
        return f"{words} is PyTorch's own, which computes the whole square and adds a mask"
    if run.attention_backend == "unfused":
        return f"{words} computes the whole square"
    return f"{words} skips blocks outside it, at the pace of a causal mask's: no such kernel was measured"
