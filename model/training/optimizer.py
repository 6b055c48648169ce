"""The optimizer step and the handling of gradients around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch, many_tensors, streaming
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.training.layer_wise import shares
from joulecast.model.training.matrix import values_of
from joulecast.model.training.muon import counted, muon_step, step_bytes, work
from joulecast.model.training.other_optimizers import RULES
from joulecast.model.training.parameters import ParameterTensor

#: Kernels of a loop over parameters, without the decay of weights: pattern, values read and written for each parameter.
#: Composer's ``DecoupledAdamW`` runs these, ``AdamW(foreach=False)`` others with as many reads and writes.
FOR_LOOP = (
    ("unary", 1, 1),  # first moment times its decay
    ("add", 2, 1),
    ("unary", 1, 1),  # second moment times its
    ("mul", 2, 1),  # a gradient is read once for both factors
    ("unary", 1, 1),  # square root
    ("unary", 1, 1),
    ("unary", 1, 1),
    ("mul", 3, 1),  # quotient added to the parameter
)


def optimizer_step(
    parameters: Sequence[ParameterTensor],
    implementation: Implementation,
    *,
    tokens_per_step: int = 0,
    state_shards: int = 1,
    gradient_shards: int = 1,
    zeroed: bool = True,
) -> tuple[Launch, ...]:
    """Launches of one step of the optimizer and of the zeroing of gradients on one rank.

    Parameters
    ----------
    parameters
        The rank's tensors, from :func:`joulecast.model.training.parameters.parameters_of_stage`.
    tokens_per_step
        Tokens whose gradients this rank's embedding has received since the last step (all data-parallel ranks); rows
        without any keep zero gradients and zero states. 0 takes every row as touched.
    state_shards, gradient_shards
        Ranks over which the states, and the gradients that a rank keeps, are split (distributed optimizer, FSDP).
    zeroed
        Whether PyTorch's gradients are kept and set to zero, or dropped (FSDP's are, by ``zero_grad``'s default).

    Notes
    -----
    ``pytorch-eager``: ``AdamW(fused=True)`` on parameters, gradients and two states of the parameters' dtype (bf16: 8
    bytes read and 6 written a parameter, fp32: 16 and 12; of :data:`FOR_LOOP` 48 and 32), before it the gradients' norm
    and scaling where they are clipped, then ``zero_grad(set_to_none=False)``. Beside products in fp16 fp32 gradients
    are those of a scaled loss (``torch.amp.GradScaler``), which one more pass looks through, and divides where they are
    clipped; else AdamW does, and writes them. With ``main_parameters`` the rank's share
    of the gradients is first copied to fp32, and the new weights back to the parameters' dtype. ``megatron``: fp32
    gradients, master weights and states: gradient norm, Adam (16 bytes read, 12 written), the weights' bf16 copy,
    zeroing of the buffer.
    Gradients kept in bf16 are first copied to fp32, unless the moments are narrow too (``precision-aware``): then the
    kernel reads them as they are, and of fp32 weights keeps the 16 bits that the bf16 weights lack.
    """
    if implementation.muon is not None:
        return _with_muon(parameters, implementation, tokens_per_step, state_shards, zeroed=zeroed)
    total = sum(p.elements for p in parameters)
    if implementation.megatron:
        tensors = max(1, sum(p.tensors for p in parameters) // state_shards)
        return _megatron_step(total / gradient_shards, total / state_shards, tensors, implementation)
    if implementation.main_parameters:
        zeroing = many_tensors(
            "zero_grad", "optimizer.zero_grad", zeroed * total / gradient_shards, 0, 1, implementation.dtype
        )
        return (*_main_step(total / state_shards, implementation), *zeroing)
    untouched = sum(p.elements * _untouched_share(p, tokens_per_step) for p in parameters)
    dtype, kept = implementation.trained_dtype, total / gradient_shards
    scaled = implementation.dtype == "fp16" and dtype == "fp32"
    if implementation.optimizer in RULES:
        adamw = RULES[implementation.optimizer].launches(parameters, implementation, state_shards)
    elif implementation.optimizer == "adamw-for-loop":
        adamw = _for_loop(total / state_shards, max(1, len(parameters) // state_shards), dtype)
    else:
        writes = 3 + (scaled and not implementation.clipped)
        adamw = (
            streaming("foreach_add", "optimizer.count", len(parameters), dtype="fp32"),
            *many_tensors("adamw_untouched", "optimizer.adamw.untouched", untouched / state_shards, 4, writes, dtype),
            *many_tensors("adamw", "optimizer.adamw", (total - untouched) / state_shards, 4, writes, dtype),
        )
    return (
        *(many_tensors("mul", "optimizer.unscale", kept, 1, 1, dtype) if scaled else ()),
        *(_clipping(kept, dtype) if implementation.clipped else ()),
        *adamw,
        *many_tensors("zero_grad", "optimizer.zero_grad", zeroed * kept, 0, 1, dtype),
    )


def _with_muon(
    parameters: Sequence[ParameterTensor], run: Implementation, tokens: int, ranks: int, *, zeroed: bool
) -> tuple[Launch, ...]:
    """Muon's step of matrices and AdamW's of all else; of several ranks that share the states the busiest one's."""
    matrices = counted(parameters)
    others = [p for p in parameters if p.matrix is None]
    share = max(shares(matrices, ranks), key=lambda one: sum(work(each, run) * n for each, n in one.items()))
    total, stepped = sum(p.elements for p in parameters), sum(p.elements for p in others)
    if run.megatron:
        tensors = max(1, sum(share.values()) + sum(p.tensors for p in others) // ranks)
        own = values_of(share) + stepped / ranks
        adam, muon = stepped / ranks, muon_step(share, run)
        return _megatron_step(total, own, tensors, run, adam, muon)
    dtype = run.trained_dtype
    adamw = optimizer_step(others, replace(run, muon=None, clipped=False), tokens_per_step=tokens, zeroed=False)
    return (
        *(_clipping(total, dtype) if run.clipped else ()),
        *muon_step(share, run),
        *adamw,
        *many_tensors("zero_grad", "optimizer.zero_grad", zeroed * total, 0, 1, dtype),
    )


def _main_step(share: float, implementation: Implementation) -> tuple[Launch, ...]:
    """AdamW on the rank's share of fp32 weights, as DeepSpeed's ``stage_1_and_2`` runs it on one flat tensor."""
    narrow = implementation.dtype
    width = DTYPE_BYTES["fp32"] / DTYPE_BYTES[narrow]
    return (
        *many_tensors("copy", "optimizer.main_grads", share, 1, width, narrow),
        *(_clipping(share, "fp32") if implementation.clipped else ()),
        *many_tensors("adamw", "optimizer.adamw", share, 4, 3, "fp32"),
        *many_tensors("copy", "optimizer.parameters", share, 1, 1 / width, "fp32"),
    )


def _clipping(elements: float, dtype: str) -> tuple[Launch, ...]:
    """Norm of all gradients and their product with a factor, which ``clip_grad_norm_`` takes even where it is one."""
    return (
        *many_tensors("reduce", "optimizer.grad_norm", elements, 1, 0, dtype),
        *many_tensors("mul", "optimizer.clip", elements, 1, 1, dtype),
    )


def _untouched_share(parameter: ParameterTensor, tokens: int) -> float:
    """Expected share of a table's rows that none of ``tokens`` uniformly drawn tokens hits."""
    return (1 - 1 / parameter.rows) ** tokens if parameter.rows and tokens else 0.0


def _for_loop(elements: float, tensors: int, dtype: str) -> tuple[Launch, ...]:
    """Each operation of AdamW by itself on so many tensors, between which the rank's shard is divided."""
    launches = []
    for number, (pattern, reads, writes) in enumerate(FOR_LOOP):
        name = f"optimizer.adamw.{number}"
        one = streaming(pattern, name, elements / tensors, reads=reads, writes=writes, dtype=dtype)
        launches.append(Launch(one.operator, repeat=tensors))
    return tuple(launches)


def _megatron_step(
    total: float,
    share: float,
    tensors: int,
    implementation: Implementation,
    stepped: float | None = None,
    beside: tuple[Launch, ...] = (),
) -> tuple[Launch, ...]:
    """Step on the rank's share of the states, of so many ``tensors``, whose bf16 weights are written one by one.

    Narrow gradients become fp32 first, but for narrow moments. Where Adam steps only a part of the share, ``stepped``,
    what steps the rest is ``beside``.
    """
    gradients = implementation.gradient_dtype
    if implementation.narrow_states:
        states = optimizer_state_bytes(implementation)
        weights = 2.0 if implementation.split_main_parameters else 0.0  # read with their other half
        return (
            streaming("reduce", "optimizer.grad_norm", share, writes=0, dtype=gradients),
            *many_tensors(
                "adamw",
                "optimizer.adam",
                share,
                (DTYPE_BYTES[gradients] + weights + states) / 4,
                (2.0 + states) / 4,
                "fp32",
            ),
            streaming("fill", "optimizer.zero_grad", total, reads=0, dtype=gradients),
        )
    width = DTYPE_BYTES["fp32"] / DTYPE_BYTES[gradients]
    widened = () if width == 1 else (streaming("copy", "optimizer.main_grads", share, writes=width, dtype=gradients),)
    return (
        *widened,
        streaming("reduce", "optimizer.grad_norm", share, writes=0, dtype="fp32"),
        *beside,
        *many_tensors("adamw", "optimizer.adam", share if stepped is None else stepped, 4, 3, "fp32"),
        replace(streaming("copy", "optimizer.parameters", share / tensors, writes=0.5, dtype="fp32"), repeat=tensors),
        streaming("fill", "optimizer.zero_grad", total, reads=0, dtype=gradients),
    )


def gradient_scaling(parameters: Sequence[ParameterTensor], implementation: Implementation) -> tuple[Launch, ...]:
    """Division of every gradient by the number of micro-batches, one kernel a parameter.

    ``torch.distributed.pipelining`` does so at the end of a step of more than one micro-batch (``scale_grads``).
    """
    if implementation.megatron:
        return ()
    dtype = implementation.kept_gradient_dtype
    return tuple(streaming("unary", f"{p.name}.scale", p.elements, dtype=dtype) for p in parameters)


def optimizer_state_bytes(implementation: Implementation) -> float:
    """Bytes of AdamW's state a parameter: two moments, and with main parameters, as in Megatron, fp32 weights.

    With narrow moments gradients stay as they are, and of the fp32 weights two bytes are kept beside bf16 ones
    (Megatron-Core's ``use_precision_aware_optimizer`` and ``store_param_remainders``).
    """
    if not implementation.megatron and not implementation.main_parameters:
        return 2.0 * DTYPE_BYTES[implementation.trained_dtype]
    if implementation.narrow_states and implementation.moments:
        return 2.0 * DTYPE_BYTES[implementation.moments] + (2.0 if implementation.split_main_parameters else 4.0)
    return 12.0


def state_bytes(parameter: ParameterTensor, implementation: Implementation) -> float:
    """Bytes of optimizer state of one parameter's tensor."""
    rule = RULES.get(implementation.optimizer)
    if rule is not None:
        return rule.state_bytes(parameter, implementation)
    of_muon = implementation.muon is not None and parameter.matrix is not None
    return parameter.elements * (matrix_state_bytes if of_muon else optimizer_state_bytes)(implementation)


def matrix_state_bytes(implementation: Implementation) -> float:
    """Bytes of Muon's state for a value of a matrix: a momentum in place of AdamW's two moments."""
    momentum = "fp32" if implementation.megatron else implementation.trained_dtype
    return optimizer_state_bytes(implementation) - DTYPE_BYTES[momentum]


def temporary_bytes(parameter: ParameterTensor, implementation: Implementation) -> float:
    """Bytes that the optimizer needs beside states and gradients while it steps one parameter's tensor."""
    if implementation.muon is not None:
        return 0.0 if parameter.matrix is None else step_bytes(parameter.matrix, implementation, implementation.muon)
    rule = RULES.get(implementation.optimizer)
    return 0.0 if rule is None else rule.temporary_bytes(parameter, implementation)


def widened_gradient_bytes(implementation: Implementation) -> float:
    """Bytes a parameter of the fp32 copies of narrower gradients: made for a step of fp32 weights, and dropped."""
    copied = implementation.main_parameters or (implementation.megatron and not implementation.narrow_states)
    return 4.0 if copied and implementation.gradient_dtype != "fp32" else 0.0
