"""What must hold of a plan whose model's layers differ from Llama's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from joulecast.errors import NotYetError
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.transformer.attention_kernel import TAKES_WINDOWS
from joulecast.simulator.plan_file.source import Source

if TYPE_CHECKING:
    from joulecast.model.framework.implementation import Modules
    from joulecast.simulator.plan_file.plan import Plan

#: Backends that know ALiBi: PyTorch's as a mask, FlashAttention's package and Transformer Engine's as slopes of heads.
ALIBI = {
    "pytorch-eager": ("cudnn", "flash-attn-2", "unfused"),
    "megatron": ("cudnn", "flash-attention-2", "flash-attn-2", "unfused"),
}


def _biased(model: ModelConfig) -> bool:
    """Whether linear layers or scores have biases, which Falcon's code adds in kernels of their own."""
    return model.qkv_bias or model.alibi


#: What a model's layers may have that those of Llama have not.
TRAITS: Mapping[str, Callable[[ModelConfig], bool]] = {
    "windows": lambda model: model.sliding_window > 0,
    "chunks": lambda model: model.sliding_window > 0 and model.chunked,
    "turns": lambda model: model.takes_turns,
    "norms elsewhere": lambda model: model.norm_place != "before",
    "shared norms": lambda model: model.shared_norm,
    "norms of all heads": lambda model: model.qk_norm_whole,
    "norms without weights": lambda model: model.qk_norm_plain,
    "scaled embeddings": lambda model: model.scaled_embeddings,
    "scaled queries": lambda model: model.scaled_queries,
    "capped scores": lambda model: model.attention_softcap,
    "capped logits": lambda model: model.logit_softcap,
    "alibi": lambda model: model.alibi,
    "sinks": lambda model: model.attention_sinks,
    "biases of their own": lambda model: model.own_code == "falcon" and _biased(model),
    "masks in any case": lambda model: model.own_code == "falcon",
    "attention of their own": lambda model: model.own_code in ("gptj", "bloom", "mpt"),
    "hybrids": lambda model: model.mixers != (),
    "linear attention": lambda model: model.delta_net is not None or model.gated_attention,
    "latent experts": lambda model: model.experts is not None and model.experts.latent > 0,
}
_HYBRIDS, _LEAVE = ("hybrids",), "Leave it out."
#: Traits whose kernels are counted for layers of transformers' code and for joint products alone.
UNUSUAL = (
    *("norms elsewhere", "shared norms", "norms of all heads", "norms without weights"),
    *("scaled embeddings", "scaled queries", "capped scores", "capped logits", "alibi"),
)


class Refusal(NamedTuple):
    """What is not known of layers with one of some traits, where a plan asks for it.

    ``what`` and ``remedy`` may name the plan's ``{backend}`` of attention and the model's ``{window}``.
    """

    key: str
    what: str
    asked: Callable[[Plan], bool]
    traits: tuple[str, ...]
    remedy: str


def _predicts(model: ModelConfig) -> bool:
    """Whether a hybrid's modules for further tokens are known: they are attention and experts."""
    return model.attends and model.experts is not None


def _users(plan: Plan) -> bool:
    return plan.implementation.modules == "transformers"


def _backend_is_none_of(*backends: str) -> Callable[[Plan], bool]:
    return lambda plan: plan.implementation.attention_backend not in backends


def _eager(plan: Plan) -> bool:
    return plan.implementation.framework == "pytorch-eager"


def _recomputes_parts(plan: Plan) -> bool:
    parts = set(plan.implementation.recompute_modules) - {"core_attn"}
    return plan.schedule.recompute == "selective" and bool(parts)


def _leaves_a_rest(plan: Plan) -> bool:
    return plan.workload.sequence_length % plan.workload.model.sliding_window > 0


REFUSALS = (
    Refusal(
        "implementation.compile",
        "compiled layers",
        lambda plan: plan.implementation.compile,
        UNUSUAL,
        "Leave it out.",
    ),
    Refusal(
        "implementation.compile",
        "compiled layers of transformers' code",
        lambda plan: _users(plan) and plan.implementation.compile,
        ("masks in any case", "attention of their own"),
        "Leave it out.",
    ),
    Refusal(
        "implementation.parameter_precision",
        "torch.autocast's kernels in transformers' code",
        lambda plan: _users(plan) and plan.implementation.parameter_precision == "fp32" and not plan.parallelism.fsdp,
        ("masks in any case", "attention of their own"),
        "Leave it out, or shard with parallelism.fsdp.",
    ),
    Refusal(
        "schedule.recompute_modules",
        "recomputed parts",
        _recomputes_parts,
        ("norms elsewhere", "shared norms"),
        "Leave it out.",
    ),
    Refusal("overlap.nanobatches", "nano-batches", lambda plan: plan.overlap.nanobatches > 1, ("turns",), "Use 1."),
    Refusal(
        "parallelism.context_parallel_size",
        "sequences split over GPUs",
        lambda plan: plan.cp > 1,
        ("chunks", "capped scores", "alibi"),
        "Use 1.",
    ),
    Refusal(
        "workload.sequence_length",
        "sequences that chunks of {window} tokens leave a rest of",
        _leaves_a_rest,
        ("chunks",),
        "Use a multiple of {window}, or at most {window}.",
    ),
    Refusal(
        "implementation.tiles",
        "tiles of attention",
        lambda plan: any(name.startswith("attention") for name, _ in plan.implementation.tiles),
        ("windows",),
        "Leave attention out of it.",
    ),
    Refusal(
        "implementation.attention_backend",
        "ALiBi in {backend}",
        lambda plan: _backend_is_none_of(*ALIBI[plan.implementation.framework])(plan),
        ("alibi",),
        'Set it to "cudnn", which takes the bias as a mask, or to "flash-attn-2", which computes it.',
    ),
    Refusal(
        "implementation.dropout",
        "ALiBi and dropout together",
        lambda plan: bool(plan.implementation.dropout) and plan.implementation.framework == "pytorch-eager",
        ("alibi",),
        "Leave it out.",
    ),
    Refusal(
        "implementation.attention_backend",
        "windows and masks in {backend}",
        lambda plan: _users(plan) and _backend_is_none_of("cudnn", "unfused")(plan),
        ("chunks", "masks in any case"),
        'Set it to "cudnn".',
    ),
    Refusal(
        "implementation.attention_backend",
        "windows in {backend} under transformers",
        lambda plan: _users(plan) and _backend_is_none_of("cudnn", "unfused", *TAKES_WINDOWS)(plan),
        ("windows",),
        'Set it to "cudnn" (sdpa), which takes a mask, or to "flash-attn-2" or "flex".',
    ),
    Refusal(
        "implementation.attention_backend",
        "kernels of {backend} in transformers' code",
        lambda plan: _users(plan) and _backend_is_none_of("unfused")(plan),
        ("attention of their own",),
        'Set it to "unfused": transformers has code of its own alone for them.',
    ),
    Refusal(
        "implementation.modules",
        "windows in torchtitan's layers",
        lambda plan: plan.implementation.modules == "torchtitan",
        ("windows", *UNUSUAL),
        'Set it to "joint" or "transformers".',
    ),
    Refusal(
        "implementation.modules",
        "biases in transformers' code",
        _users,
        ("biases of their own",),
        'Set it to "joint".',
    ),
    Refusal(
        "implementation.attention_backend",
        "sinks in {backend} under transformers",
        lambda plan: _users(plan) and _backend_is_none_of("unfused")(plan),
        ("sinks",),
        'Set it to "unfused": transformers then runs code of its own.',
    ),
    Refusal(
        "implementation.attention_backend",
        "sinks in {backend} under Megatron",
        lambda plan: plan.implementation.framework == "megatron" and _backend_is_none_of("cudnn")(plan),
        ("sinks",),
        'Set it to "cudnn", whose kernels know them since Transformer Engine 2.8.',
    ),
    Refusal(
        "implementation.framework",
        "experts between such norms",
        lambda plan: plan.workload.model.experts is not None,
        ("norms elsewhere",),
        "Use a model whose norms stand in front of the blocks.",
    ),
    Refusal(
        "implementation.modules",
        "modules other than those of transformers",
        lambda plan: _eager(plan) and not _users(plan),
        _HYBRIDS,
        'Set it to "transformers", or implementation.framework = "megatron".',
    ),
    Refusal(
        "implementation.framework",
        "linear attention and gated attention in Megatron",
        lambda plan: plan.implementation.framework == "megatron",
        ("linear attention",),
        'Set it to "pytorch-eager", with implementation.modules = "transformers".',
    ),
    Refusal("implementation.compile", "compiled layers", lambda plan: plan.implementation.compile, _HYBRIDS, _LEAVE),
    Refusal("workload.lora", "adapters", lambda plan: plan.workload.lora is not None, _HYBRIDS, _LEAVE),
    Refusal(
        "implementation.parameter_precision",
        "torch.autocast's kernels",
        lambda plan: _eager(plan) and plan.implementation.parameter_precision == "fp32" and not plan.parallelism.fsdp,
        _HYBRIDS,
        "Leave it out, or shard with parallelism.fsdp.",
    ),
    Refusal(
        "parallelism.tensor_model_parallel_size",
        "mixers split over GPUs in PyTorch",
        lambda plan: _eager(plan) and plan.tp > 1,
        _HYBRIDS,
        'Use 1, or implementation.framework = "megatron".',
    ),
    Refusal(
        "workload.mtp_num_layers",
        "modules that predict further tokens",
        lambda plan: plan.workload.model.mtp_layers > 0 and not _predicts(plan.workload.model),
        _HYBRIDS,
        "Leave it out, or use a hybrid with attention and experts.",
    ),
    Refusal(
        "implementation.deterministic",
        "deterministic algorithms",
        lambda plan: plan.implementation.deterministic,
        _HYBRIDS,
        _LEAVE,
    ),
    Refusal("overlap.ep_comm", "micro-batches beside each other", lambda p: p.overlap.ep_comm, _HYBRIDS, _LEAVE),
    Refusal(
        "implementation.framework",
        "experts between latent projections in PyTorch",
        lambda plan: plan.implementation.framework != "megatron",
        ("latent experts",),
        'Set it to "megatron".',
    ),
)


def check_layers(plan: Plan, source: Source) -> None:
    """Refuse what is not known of a model's layers."""
    model = plan.workload.model
    names = {"backend": plan.implementation.attention_backend, "window": model.sliding_window}
    for refusal in _refusals_of(model):
        if refusal.asked(plan):
            what, remedy = refusal.what.format(**names), refusal.remedy.format(**names)
            message = f"{what} are not known of {model.name}'s layers"
            raise source.error(message, refusal.key, remedy=remedy, kind=NotYetError)


@lru_cache(maxsize=256)
def _refusals_of(model: ModelConfig) -> tuple[Refusal, ...]:
    """What no plan of the model may ask for, found once for all plans of a space."""
    return tuple(refusal for refusal in REFUSALS if any(TRAITS[trait](model) for trait in refusal.traits))


def windows_matter(window: int, tokens: int, modules: Modules) -> bool:
    """Whether windows are shorter than sequences; transformers makes a mask for one that is as long, too."""
    return 0 < window < tokens or (window == tokens and modules == "transformers")
