"""Rotary embedding and per-head norms as eager PyTorch code runs them on queries and keys.

The rotation is Hugging Face's ``q·cos + rotate_half(q)·sin``: five kernels forward for queries and for keys, none of
them fused, on strided views of the joint projection's output.
"""

from __future__ import annotations

from joulecast.model.framework.launches import Launch, norm_gradients, row_wise, streaming
from joulecast.model.framework.layer_shard import Shard


def rotated(s: Shard, key_heads: int | None = None) -> tuple[tuple[str, int], ...]:
    """Values of queries and of keys (of ``key_heads`` where code has repeated some) that are rotated, if any are."""
    if not (s.config.rotary and s.implementation.rotary):
        return ()
    values = s.tokens * s.config.head_dim
    return ("query", s.heads * values), ("key", (s.kv_heads if key_heads is None else key_heads) * values)


def rotary_forward(s: Shard) -> tuple[Launch, ...]:
    """Rotation of queries and keys; nothing where the model or the implementation has none."""
    launches: list[Launch] = []
    dtype, fraction = s.dtype, s.config.rotary_fraction
    for part, whole in rotated(s):
        name, elements = f"rotary.{part}", whole * fraction
        launches += [
            streaming("strided_binary", f"{name}.cos", elements, dtype=dtype),
            streaming("strided_unary", f"{name}.neg", elements / 2, dtype=dtype),
            streaming("cat", f"{name}.cat", elements, dtype=dtype),
            streaming("strided_binary", f"{name}.sin", elements, dtype=dtype),
            streaming("strided_binary", f"{name}.add", elements, reads=2, dtype=dtype),
        ]
        if fraction < 1:
            launches.append(streaming("cat", f"{name}.pass", whole, dtype=dtype))
    return tuple(launches)


def rotary_backward(s: Shard) -> tuple[Launch, ...]:
    """Gradient of :func:`rotary_forward`: autograd undoes the halves by slices filled with zeros."""
    launches: list[Launch] = []
    dtype, fraction = s.dtype, s.config.rotary_fraction
    for part, whole in reversed(rotated(s)):
        name, elements = f"rotary.{part}.grad", whole * fraction
        launches += [
            streaming("strided_binary", f"{name}.sin", elements, dtype=dtype),
            streaming("strided_unary", f"{name}.neg", elements / 2, dtype=dtype),
            streaming("fill", f"{name}.slice1.fill", elements, reads=0, dtype=dtype),
            streaming("strided_unary", f"{name}.slice1.copy", elements / 2, dtype=dtype),
            streaming("fill", f"{name}.slice2.fill", elements, reads=0, dtype=dtype),
            streaming("strided_unary", f"{name}.slice2.copy", elements / 2, dtype=dtype),
            streaming("add", f"{name}.slices", elements, reads=2, dtype=dtype),
            streaming("strided_binary", f"{name}.cos", elements, dtype=dtype),
            streaming("strided_binary", f"{name}.add", elements, reads=2, dtype=dtype),
        ]
        if fraction < 1:
            launches.append(streaming("cat", f"{name}.pass", whole, dtype=dtype))
    for part, whole in reversed(rotated(s)):  # from heads first to tokens first, as the joint projection has them
        launches.append(streaming("strided_unary", f"rotary.{part}.grad.clone", whole, dtype=dtype))
    return tuple(launches)


def scaled_queries(s: Shard, suffix: str = "") -> tuple[Launch, ...]:
    """Queries times a number that grows with their position, or their gradient; nothing where the model has none.

    Llama 4 has it where it rotates none, Ministral 3 and Mistral 4 in all layers: ``Llama4TextAttention``
    (``attn_temperature_tuning``), ``Ministral3Attention`` and ``Mistral4Attention`` of transformers 5.17.
    """
    if not s.config.scaled_queries:
        return ()
    pattern = "unary" if s.implementation.megatron else "strided_unary"
    width = s.config.head_dim if s.config.latent is None else s.config.latent.key_dim
    return (streaming(pattern, f"query.scale{suffix}", s.tokens * s.heads * width, dtype=s.dtype),)


def normed_parts(s: Shard) -> tuple[tuple[str, int, int], ...]:
    """Queries and keys as rows and columns that a norm takes; nothing without such norms."""
    if not s.config.qk_norm:
        return ()
    heads = ("query", s.heads), ("key", s.kv_heads)
    if s.config.qk_norm_whole:
        return tuple((part, s.tokens, count * s.config.head_dim) for part, count in heads)
    return tuple((part, s.tokens * count, s.config.head_dim) for part, count in heads)


def head_norm_forward(s: Shard) -> tuple[Launch, ...]:
    """Norm of every query and key head (Qwen3), or of all together: a copy to contiguous memory, then the kernel."""
    launches: list[Launch] = []
    for part, rows, columns in normed_parts(s):
        launches += [
            streaming("strided_unary", f"{part}_norm.copy", rows * columns, dtype=s.dtype),
            row_wise("rmsnorm", f"{part}_norm", rows, columns, dtype=s.dtype),
        ]
    return tuple(launches)


def head_norm_backward(s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    """Gradient of :func:`head_norm_forward`."""
    launches: list[Launch] = []
    for part, rows, columns in reversed(normed_parts(s)):
        weight = f"{part}_norm.weight"
        kernel, gamma = norm_gradients(f"{part}_norm", rows, columns, s.dtype, "" if accumulate else weight)
        launches.append(kernel)
        if s.config.qk_norm_plain:
            continue
        launches.append(gamma)
        if accumulate:
            launches.append(streaming("add", f"{weight}.accumulate", columns, reads=2, dtype=s.dtype, completes=weight))
    return tuple(launches)
