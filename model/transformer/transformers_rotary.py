"""Rotary embedding as transformers runs it on queries and keys that are products of their own.

The kernels are those of :mod:`joulecast.model.transformer.rotary`. They read tensors whose heads were moved in front of
the positions and write whole ones, so that each value's place is computed: the SMs' instructions set their pace. After
their gradient a copy turns queries and keys back.
"""

from __future__ import annotations

from itertools import chain
from typing import TypeAlias

from joulecast.model.framework.launches import Launch, one_by_one, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import liger_kernels
from joulecast.model.transformer.rotary import rotated
from joulecast.model.transformer.row_operators import rounded, widened

#: Of a value, or of one of several sequences and of one of a sequence alone.
Cycles: TypeAlias = float | tuple[float, float]
#: Cycles of an SM for a value: product with the cosine, sign of a half, joined halves, product with the sine, and their
#: sum; products in the backward, copies of halves, sum, copy that turns. Kernels of layers of eight shapes on an H200
#: and an H100 at counted clocks (`validate/recorded/in_place`), half of which chose them; signs, joints, halves and
#: turns as well by `validate/recorded/single_values` [+-4 %]. Where two are given, values are looked up among heads in
#: front of the positions: of several sequences, and of one, whose places take a division less [0.10 +-0.04].
COSINE, SIGN, JOINED, SINE, SUM = (0.803, 0.703), 0.50, 0.988, 0.531, (0.743, 0.643)
PRODUCT_GRADIENT, HALF, SUM_GRADIENT, TURN = (0.766, 0.666), (0.65, 0.55), (0.780, 0.680), 0.635
#: Under ``torch.autocast``, which keeps the table in fp32: products of two types with cosine and sine, their sum in
#: fp32, and products of the backward. Kernels of a Llama in mixed precision of
#: `validate/recorded/h200_sxm/train_modules.jsonl` [estimates, +-6 %].
MIXED_COSINE, MIXED_SINE, WIDE_SUM, WIDE_PRODUCT = 1.265, 1.016, 0.506, 0.643
#: Operations of a rotation in order: share of the values, cycles for each, tensors read and written.
Step: TypeAlias = tuple[str, float, Cycles, float, float]
ROTATION: tuple[Step, ...] = (
    *(("cos", 1.0, COSINE, 1, 1), ("neg", 0.5, SIGN, 1, 1), ("cat", 1.0, JOINED, 1, 1), ("sin", 1.0, SINE, 1, 1)),
    ("add", 1.0, SUM, 2, 1),
)
#: The same with a table in fp32, and of values that stand next to each other, which are widened first.
MIXED_ROTATION: tuple[Step, ...] = (
    *(("cos", 1.0, MIXED_COSINE, 1, 2), ("neg", 0.5, SIGN, 1, 1), ("cat", 1.0, JOINED, 1, 1)),
    *(("sin", 1.0, MIXED_SINE, 1, 2), ("add", 1.0, WIDE_SUM, 4, 2)),
)
PAIRED_ROTATION: tuple[Step, ...] = (
    *(("cos", 1.0, MIXED_COSINE, 2, 2), ("neg", 0.5, SIGN, 2, 2), ("stack", 1.0, JOINED, 2, 2)),
    *(("sin", 1.0, MIXED_SINE, 2, 2), ("add", 1.0, WIDE_SUM, 4, 2)),
)
#: Power of their SMs over that of SMs that wait for memory: PyTorch's kernels on strided views, which compute places
#: too, drew 1.4 (two inputs) and 2.0 (one) times as much (``streaming_pj_per_byte`` of an H200) [estimate, +-20 %].
BUSY = 1.7


def _parts(s: Shard) -> tuple[tuple[str, int], ...]:
    """Queries and keys, which Falcon has repeated before where there are several."""
    return rotated(s, s.heads if s.family == "falcon" and s.config.kv_heads > 1 else s.kv_heads)


def parted(s: Shard) -> bool:
    """Whether a part of each head is rotated and joined to the rest, of which there may be none."""
    return (s.config.rotary_fraction < 1 or s.config.sliced_projections) and not liger_kernels.swaps_rotation(s)


def wide_table(s: Shard) -> bool:
    """Whether the table is in fp32: under autocast, and where the model's code leaves it so."""
    return s.implementation.autocast or (s.config.wide_rotary and s.dtype != "fp32")


def forward(s: Shard) -> tuple[Launch, ...]:
    """Rotation of queries and keys."""
    launches: list[Launch] = []
    if liger_kernels.swaps_rotation(s):
        return liger_kernels.rotary(s)
    if s.config.paired_rotary:
        return _paired(s)
    if wide_table(s):
        return _mixed(s)
    if s.config.half_rotary:
        return _halves(s, "", _HALVES)
    for part, whole in _parts(s):
        launches += _rotated(part, whole, s, ROTATION)
        if parted(s):
            launches.append(_paced(f"rotary.{part}.pass", whole, JOINED, s))
    return tuple(launches)


def _rotated(part: str, whole: float, s: Shard, steps: tuple[Step, ...]) -> list[Launch]:
    """Rotation of queries or keys, one kernel for each operation."""
    values = whole * s.config.rotary_fraction
    return [
        _paced(f"rotary.{part}.{step}", values * share, cycles, s, reads=reads, writes=writes)
        for step, share, cycles, reads, writes in steps
    ]


def backward(s: Shard) -> tuple[Launch, ...]:
    """Gradient of :func:`forward`, without the copies that turn it."""
    if liger_kernels.swaps_rotation(s):
        return liger_kernels.rotary(s, ".grad")
    if s.config.paired_rotary:
        return _paired_backward(s)
    if s.config.half_rotary and not wide_table(s):
        return _halves(s, ".grad", _HALVES_BACKWARD)
    parts = _parts(s) if wide_table(s) else ()
    launches = [widened(f"rotary.{part}.grad.widen", whole, s.dtype) for part, whole in parts]
    for part, whole in reversed(_parts(s)):
        name, values = f"rotary.{part}.grad", whole * s.config.rotary_fraction
        launches += _undone(name, values, s)
        if parted(s):
            launches += _parted(name, whole, values, s)
    return tuple(launches)


def _undone(name: str, values: float, s: Shard, *, wide: bool = False) -> tuple[Launch, ...]:
    """Gradient of a rotation, each of whose halves is put among zeros; ``wide``: all of it in fp32."""
    dtype, width = ("fp32", 2) if wide else (s.dtype, 1)
    halves = (
        (
            streaming("fill", f"{name}.slice{half}.fill", values, reads=0, dtype=dtype),
            _paced(f"{name}.slice{half}.copy", values / 2, HALF, s, reads=width, writes=width),
        )
        for half in (1, 2)
    )
    return (
        *_product(f"{name}.sin", values, s, wide=wide),
        _paced(f"{name}.neg", values / 2, SIGN, s, reads=width, writes=width),
        *chain.from_iterable(halves),
        streaming("add", f"{name}.slices", values, reads=2, dtype=dtype),
        *_product(f"{name}.cos", values, s, wide=wide),
        _paced(f"{name}.add", values, SUM_GRADIENT, s, reads=2 * width, writes=width),
    )


#: Operations on halves of heads, cycles of an SM for a value of each, and tensors read.
_HALVES: tuple[tuple[str, Cycles, float], ...] = (
    *((f"cos{half}", COSINE, 1.0) for half in (1, 2)),
    *((f"sin{half}", COSINE, 1.0) for half in (1, 2)),
    ("difference", SUM, 2.0),
    ("sum", SUM, 2.0),
)
_HALVES_BACKWARD: tuple[tuple[str, Cycles, float], ...] = (
    *((f"{step}{half}", PRODUCT_GRADIENT, 1.0) for half in (1, 2) for step in ("sin", "cos")),
    ("neg", SIGN, 1.0),
    *((f"sum{half}", SUM_GRADIENT, 2.0) for half in (1, 2)),
)


def _halves(s: Shard, suffix: str, steps: tuple[tuple[str, Cycles, float], ...]) -> tuple[Launch, ...]:
    """Rotation, or its gradient, in operations on halves of heads that are joined in the end."""
    launches: list[Launch] = []
    for part, whole in _parts(s) if not suffix else _parts(s)[::-1]:
        name = f"rotary.{part}{suffix}"
        launches += [_paced(f"{name}.{step}", whole / 2, cycles, s, reads=reads) for step, cycles, reads in steps]
        launches.append(_paced(f"{name}.cat", whole, JOINED, s))
    return tuple(launches)


def _parted(name: str, whole: float, values: float, s: Shard) -> tuple[Launch, ...]:
    """Gradients of a head's rotated and other part, each put among zeros, and their sum."""
    dtype, parts = s.dtype, (("turned", values), ("pass", whole - values))
    if values == whole:  # the other part is empty, and put among zeros and added all the same
        empty = streaming("fill", f"{name}.pass.fill", whole, reads=0, dtype=dtype)
        return (empty, streaming("add", f"{name}.parts", whole, reads=2, dtype=dtype))
    zeros = (streaming("fill", f"{name}.{part}.fill", whole, reads=0, dtype=dtype) for part, _ in parts)
    copies = (_paced(f"{name}.{part}.copy", size, HALF, s) for part, size in parts)
    return (*zeros, *copies, streaming("add", f"{name}.parts", whole, reads=2, dtype=dtype))


def attention_turned(s: Shard) -> tuple[Launch, ...]:
    """Copy of attention's result from heads first, as joined parts of queries have it, to tokens first."""
    if not parted(s) or not _parts(s) or s.implementation.modules != "transformers":
        return ()
    if s.implementation.attention_backend == "unfused":  # whose own copy it is
        return ()
    return (turn("attention.clone", s.tokens * s.attention_width, s),)


def _mixed(s: Shard) -> tuple[Launch, ...]:
    """Rotation by a table in fp32, and queries and keys rounded for attention."""
    launches = [launch for part, whole in _parts(s) for launch in _rotated(part, whole, s, MIXED_ROTATION)]
    return (*launches, *(rounded(f"rotary.{part}.round", whole) for part, whole in _parts(s)))


def _paired(s: Shard) -> tuple[Launch, ...]:
    """Rotation of values next to each other in fp32, and queries and keys rounded for attention: Cohere's."""
    launches = [widened(f"rotary.{part}.widen", whole, s.dtype) for part, whole in _parts(s)]
    launches += (launch for part, whole in _parts(s) for launch in _rotated(part, whole, s, PAIRED_ROTATION))
    return (*launches, *(rounded(f"rotary.{part}.round", whole) for part, whole in _parts(s)))


def _paired_backward(s: Shard) -> tuple[Launch, ...]:
    """Gradient of :func:`_paired`: of every second value each half is put among zeros."""
    launches = [widened(f"rotary.{part}.grad.widen", whole, s.dtype) for part, whole in _parts(s)]
    for part, whole in reversed(_parts(s)):
        launches += _undone(f"rotary.{part}.grad", whole, s, wide=True)
    return (*launches, *(rounded(f"rotary.{part}.grad.round", whole) for part, whole in reversed(_parts(s))))


def _product(name: str, values: float, s: Shard, *, wide: bool) -> tuple[Launch, ...]:
    """Product of a gradient with cosine or sine; of a wide table it is rounded unless all is ``wide``."""
    if not (wide or wide_table(s)):
        return (_paced(name, values, PRODUCT_GRADIENT, s),)
    product = _paced(name, values, WIDE_PRODUCT, s, reads=2, writes=2)
    return (product,) if wide else (product, rounded(f"{name}.round", values))


def turned(part: str, s: Shard) -> tuple[Launch, ...]:
    """Copy of the gradient of queries or keys from heads first to tokens first; nothing without PyTorch's rotation."""
    if liger_kernels.swaps_rotation(s):
        return ()
    return tuple(turn(f"rotary.{part}.grad.clone", whole, s) for name, whole in _parts(s) if name == part)


def queries_scaled(s: Shard, suffix: str = "") -> tuple[Launch, ...]:
    """Queries times a number of their position, where the model has one, at the pace of their product with the cosine.

    Every layer computes the numbers anew, in seven operations on positions.
    """
    if not s.config.scaled_queries:
        return ()
    steps = () if suffix else ("share", "floor", "next", "log", "beta", "one", "round")
    numbers = (streaming("unary", f"query.scale.{step}", s.sequence, dtype="fp32") for step in steps)
    values, cycles = s.tokens * s.heads * s.config.head_dim, PRODUCT_GRADIENT if suffix else COSINE
    return (*numbers, _paced(f"query.scale{suffix}", values, cycles, s))


def joined_heads(values: float, s: Shard) -> tuple[Launch, ...]:
    """Queries, keys and values of heads joined value by value, and turned to tokens first."""
    return (joined("qkv.cat", values, s), turn("qkv.clone", values, s))


def joined(name: str, values: float, s: Shard) -> Launch:
    """Parts of heads joined value by value."""
    return _paced(name, values, JOINED, s)


def turn(name: str, values: float, s: Shard, dtype: str = "") -> Launch:
    """Copy of values from heads first to tokens first."""
    return one_by_one("unary", name, values, TURN, activity=BUSY, dtype=dtype or s.dtype)


def _paced(name: str, values: float, cycles: Cycles, s: Shard, *, reads: float = 1.0, writes: float = 1.0) -> Launch:
    each = cycles if isinstance(cycles, float) else cycles[s.batch == 1]
    return one_by_one("unary", name, values, each, activity=BUSY, reads=reads, writes=writes, dtype=s.dtype)
