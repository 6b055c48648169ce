"""Which kernels a measured row ran, read from its configuration alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from joulecast.calibrate.rows.fields import Configuration, dtype_of, name_of_part, optional_count, positive, sides_of
from joulecast.calibrate.rows.framework_kernels import framework_kernels
from joulecast.calibrate.rows.optimizer_steps import optimizer_launches
from joulecast.calibrate.rows.single_kernels import (
    COLLECTIVE_KINDS,
    STREAMING_PATTERNS,
    attention,
    collective,
    gemm,
    streaming,
)
from joulecast.calibrate.rows.training_kernels import training_kernels
from joulecast.errors import DataError
from joulecast.model.framework.launches import Launch
from joulecast.model.kernels.operators import Gemm, Operator, Streaming
from joulecast.model.repeated_work import Work


@dataclass(frozen=True)
class KernelWork(Work):
    """What a row's window repeats, or the ``reason`` why it has no operators, and the wrong key where it is one."""

    operators: tuple[Operator, ...] = ()
    reason: str = ""
    wrong_key: str = ""

    @property
    def is_single(self) -> bool:
        """Whether one kernel runs back to back."""
        return len(self.operators) == 1 and self.busy_share == 1.0

    @property
    def is_sequence(self) -> bool:
        """Whether several kernels run in turn without a pause."""
        return len(self.operators) > 1 and self.busy_share == 1.0


def operator_of(configuration: Configuration) -> KernelWork:
    """Operators of a row of kernels or collectives; an unknown kind gives a reason instead."""
    op = str(configuration.get("op") or "")
    if op not in _KINDS:
        return KernelWork(reason=f"unknown op {op!r}" if op else "the row has no op")
    try:
        work, part = _KINDS[op].work(configuration), name_of_part(configuration)
    except DataError as error:
        return KernelWork(reason=error.message, wrong_key=error.key or "")
    return replace(work, operators=tuple(replace(o, name=f"{part}.{o.name}") for o in work.operators)) if part else work


def group_key(configuration: Configuration) -> tuple[Hashable, ...]:
    """Near-duplicates share this key, so that cross-validation never has one of them on each side.

    Same kind, data type and shape, whatever the input values, the attention backend and direction, or the source file;
    tiles are part of a kernel's shape, its warps and stages are not. Collectives are grouped by the number of GPUs.
    """
    op = str(configuration.get("op") or "")
    return _KINDS[op].key(configuration) if op in _KINDS else (op, configuration.get("name"))


def _one(operator: Operator, count: int = 1) -> KernelWork:
    return KernelWork((operator,), (count,))


def _training_kernel(row: Configuration) -> KernelWork:
    """A kernel of a training step, or the few that one autograd call launches."""
    for key in ("pattern", "bytes_read", "bytes_written", "shape"):
        if row.get(key) is None:
            raise DataError(f"field {key!r} is missing")
    sides_of(row)
    kernels = training_kernels(row)
    return KernelWork(kernels, (1,) * len(kernels))


def _launched(launches: Sequence[Launch]) -> KernelWork:
    """What a framework launches, as a plan's layers and steps launch it."""
    return KernelWork(tuple(launch.operator for launch in launches), tuple(launch.repeat for launch in launches))


def _square(size: int, row: Configuration) -> Gemm:
    return Gemm(size, size, size, dtype_of(row))


def _pulse(row: Configuration) -> KernelWork:
    """One product again and again for ``busy_s``, then nothing for ``idle_s``."""
    busy, idle = positive(row, "busy_s"), positive(row, "idle_s")
    return replace(_one(gemm(row)), busy_share=busy / (busy + idle))


def _duty(row: Configuration) -> KernelWork:
    share = positive(row, "duty")
    if share > 1:
        raise DataError("field 'duty' is above 1")
    return KernelWork((_square(8192, row),), (10,), busy_share=share)


def _interleave(row: Configuration) -> KernelWork:
    """``n8`` GEMMs of 8192³, ``nv`` GEMVs of 8192 x 8192 and ``n2`` GEMMs of 2048³."""
    product = Streaming("gemv", 2.0 * 8192**2, 0.0, elements=8192.0**2, rows=8192, columns=8192, name="gemv")
    parts: list[tuple[Operator, int]] = [
        (_square(8192, row), optional_count(row, "n8")),
        (product, optional_count(row, "nv")),
        (_square(2048, row), optional_count(row, "n2")),
    ]
    present = [(operator, count) for operator, count in parts if count]
    if not present:
        raise DataError("fields 'n8', 'nv' and 'n2' are all zero or missing")
    return KernelWork(tuple(o for o, _ in present), tuple(c for _, c in present))


def _named_key(row: Configuration) -> tuple[Hashable, ...]:
    return (row["op"], row.get("name"))


def _product_key(row: Configuration) -> tuple[Hashable, ...]:
    tile = (row.get("tile_m"), row.get("tile_n"), row.get("tile_k")) if row["op"] == "tile_gemm" else ()
    return (row["op"], row.get("dtype"), row.get("M"), row.get("N"), row.get("K"), *tile)


def _attention_key(row: Configuration) -> tuple[Hashable, ...]:
    shape = tuple(row.get(name) for name in ("dtype", "B", "Hq", "Hkv", "S", "D", "Dv"))
    told = bool(row.get("causal")), bool(row.get("mask")), str(row.get("documents")), row.get("window")
    return (row["op"], *shape, *told)


def _streaming_key(row: Configuration) -> tuple[Hashable, ...]:
    pattern = str(row.get("pattern")) if row["op"] == "stream" else STREAMING_PATTERNS[row["op"]]
    return (pattern, row.get("dtype"), row.get("bytes"), row.get("tile_rows"), row.get("tile_cols"))


class _Kind(NamedTuple):
    """What rows of one ``op`` ran, and what their near-duplicates share."""

    work: Callable[[Configuration], KernelWork]
    key: Callable[[Configuration], tuple[Hashable, ...]] = _named_key


_PRODUCT = _Kind(lambda row: _one(gemm(row)), _product_key)
_ATTENTION = _Kind(lambda row: _one(attention(row)), _attention_key)
_STREAMING = _Kind(lambda row: _one(streaming(row), optional_count(row, "launches", 1) or 1), _streaming_key)
_COLLECTIVE = _Kind(lambda row: _one(collective(row)), lambda row: ("collective", row.get("gpus") or 2))
_KINDS = {
    "gemm": _PRODUCT,
    "tile_gemm": _PRODUCT,
    "pulse": _Kind(_pulse, _product_key),
    "flash_attn": _ATTENTION,
    "tile_attention": _ATTENTION,
    "stream": _Kind(_training_kernel, _streaming_key),
    "cast": _Kind(lambda row: _launched(framework_kernels(row))),
    "expert_rows": _Kind(lambda row: _launched(framework_kernels(row))),
    "optimizer_step": _Kind(lambda row: _launched(optimizer_launches(row))),
    "duty": _Kind(_duty),
    "interleave": _Kind(_interleave),
    "idle": _Kind(lambda _: KernelWork(busy_share=0.0)),
    **dict.fromkeys(STREAMING_PATTERNS, _STREAMING),
    **dict.fromkeys(COLLECTIVE_KINDS, _COLLECTIVE),
}
COLLECTIVE_OPS = frozenset(COLLECTIVE_KINDS)
KERNEL_OPS = frozenset(_KINDS) - COLLECTIVE_OPS
