"""What must hold of a plan whose model's layers differ from Llama's, and what a forecast says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.errors import NotYetError
from joulecast.simulator.plan_file.source import Source

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.plan import Plan

#: Backends that know ALiBi: PyTorch's as a mask, FlashAttention's package and Transformer Engine's as slopes of heads.
ALIBI = {
    "pytorch-eager": ("cudnn", "flash-attn-2", "unfused"),
    "megatron": ("cudnn", "flash-attention-2", "flash-attn-2", "unfused"),
}
#: Heads up to which kernels of attention are fitted.
MEASURED_HEADS = 128


def check_layers(plan: Plan, source: Source) -> None:
    """Refuse what is not known of layers with norms behind blocks, windows or soft-capping."""
    run, model = plan.implementation, plan.workload.model
    local = model.sliding_window > 0
    masked = local and run.modules == "transformers"
    unusual = model.norm_place != "before" or model.scaled_embeddings or model.qk_norm_whole or model.shared_norm
    unusual = unusual or model.scaled_queries or model.qk_norm_plain or model.alibi
    chunk = model.sliding_window if model.chunked else 0
    capped = model.attention_softcap or model.logit_softcap
    backend, tiles = run.attention_backend, [name for name, _ in run.tiles if name.startswith("attention")]
    again = sorted(set(run.recompute_modules) - {"core_attn"}) if plan.schedule.recompute == "selective" else []
    problems = (
        ("implementation.compile", "compiled layers", run.compile and (unusual or capped), "Leave it out."),
        (
            "schedule.recompute_modules",
            "recomputed parts",
            bool(again) and (model.norm_place != "before" or model.shared_norm),
            "Leave it out.",
        ),
        ("overlap.nanobatches", "nano-batches", plan.overlap.nanobatches > 1 and model.takes_turns, "Use 1."),
        (
            "parallelism.context_parallel_size",
            "sequences split over GPUs",
            plan.cp > 1 and (local or model.attention_softcap or model.alibi),
            "Use 1.",
        ),
        (
            "workload.sequence_length",
            f"sequences that chunks of {chunk} tokens leave a rest of",
            chunk > 0 and plan.workload.sequence_length % chunk > 0,
            f"Use a multiple of {chunk}, or at most {chunk}.",
        ),
        ("implementation.tiles", "tiles of attention", bool(tiles) and local, "Leave attention out of it."),
        (
            "implementation.attention_backend",
            f"ALiBi in {backend}",
            model.alibi and backend not in ALIBI[run.framework],
            'Set it to "cudnn", which takes the bias as a mask, or to "flash-attn-2", which computes it.',
        ),
        (
            "implementation.dropout",
            "ALiBi and dropout together",
            model.alibi and bool(run.dropout),
            "Leave it out.",
        ),
        (
            "implementation.attention_backend",
            f"masks in {backend}",
            masked and backend not in ("cudnn", "unfused"),
            'Set it to "cudnn".',
        ),
        (
            "implementation.modules",
            "windows in torchtitan's layers",
            run.modules == "torchtitan" and (local or unusual or capped),
            'Set it to "joint" or "transformers".',
        ),
        (
            "implementation.modules",
            "the kernels of transformers' code",
            run.modules == "transformers" and not model.known_modules,
            'Set it to "joint".',
        ),
        (
            "implementation.attention_backend",
            f"sinks in {backend} under transformers",
            run.modules == "transformers" and model.attention_sinks and backend != "unfused",
            'Set it to "unfused": transformers then runs code of its own.',
        ),
        (
            "implementation.framework",
            "sinks and experts' biases in Megatron",
            run.framework == "megatron" and model.attention_sinks,
            'Set it to "pytorch-eager".',
        ),
        (
            "implementation.framework",
            "experts between such norms",
            model.experts is not None and model.norm_place != "before",
            "Use a model whose norms stand in front of the blocks.",
        ),
    )
    for key, what, wrong, remedy in problems:
        if wrong:
            raise source.error(f"{what} are not known of {model.name}'s layers", key, remedy=remedy, kind=NotYetError)


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
    if model.head_dim > MEASURED_HEADS and model.latent is None:
        said.append(
            f"attention with heads of {model.head_dim} is taken from heads of {MEASURED_HEADS}, the widest fitted"
        )
    if model.experts is not None and users:
        said.append("experts run in transformers' grouped products, whose kernels are taken from its code")
    if model.attention_sinks and not users:
        said.append("attention's kernels hold the heads' sinks for nothing, and experts' activations their clamps")
    if model.alibi:
        said.append(_alibi(plan))
    if model.text_part:
        said.append("the model's part that reads text is trained, alone")
    return tuple(said)


def windows_matter(window: int, tokens: int, modules: str) -> bool:
    """Whether windows are shorter than sequences; transformers makes a mask for one that is as long, too."""
    return 0 < window < tokens or (window == tokens and modules == "transformers")


def _alibi(plan: Plan) -> str:
    run = plan.implementation
    if run.attention_backend == "unfused":
        return "ALiBi is added to the square of the scores"
    if run.framework == "pytorch-eager" and run.attention_backend == "cudnn":
        return "ALiBi is a tensor of every head's scores, which PyTorch's attention takes as a mask, nothing skipped"
    return "attention's kernel computes ALiBi, in an estimated three instructions for a score: it was not measured"


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
