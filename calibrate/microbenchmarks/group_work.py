"""What one rank of a group launches: collectives, and compute beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from joulecast.calibrate.microbenchmarks.kernel import Bench, Kernel
from joulecast.calibrate.microbenchmarks.layer_parts import LayerParts
from joulecast.calibrate.microbenchmarks.row_forms import Row
from joulecast.errors import MeasurementError

#: Values of a buffer that is summed in place grow with every repetition; they start at 2^-BITS and end below 2^BITS.
BITS = 60
#: Sizes of small rows for CPU tensors.
TINY_BYTES, TINY_SIDE = 4096, 32
TINY_LAYER = {"hidden": 64, "heads": 8, "kv_heads": 4, "ffn": 128, "B": 2, "S": 16}


class Ranks:
    """The processes of a group.

    Parameters
    ----------
    torch, device
        The module, and this rank's device.
    """

    def __init__(self, torch: Any, device: Any) -> None:
        self.torch, self.device, self.dist = torch, device, torch.distributed
        self.rank, self.size = int(self.dist.get_rank()), int(self.dist.get_world_size())
        self._groups: dict[int, Any] = {}
        # Newer versions of PyTorch give these two another name.
        self.all_gather = getattr(self.dist, "all_gather_single", None) or self.dist.all_gather_into_tensor
        self.reduce_scatter = getattr(self.dist, "reduce_scatter_single", None) or self.dist.reduce_scatter_tensor

    def group(self, ctas: int | None) -> Any:
        """The process group whose collectives are held to so many thread blocks; all ranks call this together.

        On CPU tensors there are none to be held to.
        """
        if ctas is None or self.device.type == "cpu":
            return self.dist.group.WORLD
        if ctas not in self._groups:
            options = self.dist.ProcessGroupNCCL.Options()
            options.config.min_ctas = options.config.max_ctas = ctas
            self._groups[ctas] = self.dist.new_group(backend="nccl", pg_options=options)
        return self._groups[ctas]


class Summed:
    """A buffer that is all-reduced in place again and again, and set back before its values overflow.

    The sum of equal buffers is their multiple, so that values keep their bits while exponents grow; without setting
    them back they would soon all be infinite and toggle nothing.
    """

    def __init__(self, bench: Bench, ranks: Ranks, group: Any, *shape: int) -> None:
        self._ranks, self._group = ranks, group
        self._source = bench.values(*shape).mul_(2.0**-BITS)
        self.buffer = self._source.clone()
        self._period = max(1, int(2 * BITS / math.log2(ranks.size)))
        self._calls = 0

    def reduce(self, *, beside: bool = False) -> Any:
        """All-reduce; ``beside`` other work it returns what to wait for."""
        if self._calls % self._period == 0:
            self.buffer.copy_(self._source)
        self._calls += 1
        return self._ranks.dist.all_reduce(self.buffer, group=self._group, async_op=beside)


def shrink_group_row(row: Mapping[str, Any]) -> Row:
    """A small row of the same kind, for CPU tensors."""
    small = dict(row)
    if row["op"] == "overlap":
        return {**small, **TINY_LAYER}
    small["bytes"] = min(int(row["bytes"]), TINY_BYTES * int(row["gpus"]))
    return small | {key: min(int(row[key]), TINY_SIDE) for key in ("M", "N", "K") if key in row}


def work_of(bench: Bench, ranks: Ranks) -> Kernel:
    """One repetition of a row, as every rank launches it; its result is this rank's output.

    Raises
    ------
    MeasurementError
        The row's ``op``, ``part`` or ``mode`` is unknown.
    """
    op = str(bench.row.get("op"))
    ctas = bench.row.get("ctas")
    group = ranks.group(None if ctas is None else int(ctas))
    if op == "overlap":
        return _overlap(bench, ranks, group)
    if op == "gemm_allgather":
        return _beside_gather(bench, ranks, group)
    maker = _COLLECTIVES.get(op)
    if maker is None:
        raise MeasurementError(f"{bench.name}: no collective {op!r}", key="op")
    return maker(bench, ranks, group)


def _eager(once: Callable[[], Any], out: Any) -> Kernel:
    """Launched from Python each time, as training does, so that its launches cost what they cost there."""
    return Kernel(once, capture=False, result=lambda: out)


def _elements(bench: Bench, ranks: Ranks) -> int:
    """Elements of the full buffer: a multiple of the number of ranks."""
    each = bench.whole("bytes") // int(bench.dtype().itemsize) // ranks.size
    return max(1, each) * ranks.size


def _all_reduce(bench: Bench, ranks: Ranks, group: Any) -> Kernel:
    summed = Summed(bench, ranks, group, _elements(bench, ranks))
    return _eager(summed.reduce, summed.buffer)


def _all_gather(bench: Bench, ranks: Ranks, group: Any) -> Kernel:
    count = _elements(bench, ranks)
    part, whole = bench.values(count // ranks.size), bench.empty(count)
    return _eager(lambda: ranks.all_gather(whole, part, group=group), whole)


def _reduce_scatter(bench: Bench, ranks: Ranks, group: Any) -> Kernel:
    count = _elements(bench, ranks)
    whole, part = bench.values(count), bench.empty(count // ranks.size)
    return _eager(lambda: ranks.reduce_scatter(part, whole, group=group), part)


def _all_to_all(bench: Bench, ranks: Ranks, group: Any) -> Kernel:
    count = _elements(bench, ranks)
    mine, theirs = bench.values(count), bench.empty(count)
    return _eager(lambda: ranks.dist.all_to_all_single(theirs, mine, group=group), theirs)


def _broadcast(bench: Bench, ranks: Ranks, group: Any) -> Kernel:
    buffer = bench.values(_elements(bench, ranks))
    return _eager(lambda: ranks.dist.broadcast(buffer, src=0, group=group), buffer)


def _pair(bench: Bench, ranks: Ranks, group: Any) -> Kernel:
    """Rank 0 sends, rank 1 receives, one after another, one way; further ranks rest."""
    buffer = bench.values(_elements(bench, ranks))
    if ranks.rank == 0:
        return _eager(lambda: ranks.dist.send(buffer, dst=1, group=group), buffer)
    if ranks.rank == 1:
        return _eager(lambda: ranks.dist.recv(buffer, src=0, group=group), buffer)
    return _eager(lambda: None, buffer)


_COLLECTIVES: dict[str, Callable[[Bench, Ranks, Any], Kernel]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "p2p": _pair,
    "send_recv": _pair,
}


def _overlap(bench: Bench, ranks: Ranks, group: Any) -> Kernel:
    """A part of a layer, alone, before or beside an all-reduce of one activation."""
    parts = LayerParts(bench)
    shape = (bench.whole("B"), bench.whole("S"), bench.whole("hidden"))
    x = bench.values(*shape)
    part, mode = str(bench.row.get("part")), str(bench.row.get("mode"))
    if part == "layer":
        outputs: list[Any] = []
        once = _layer(bench, ranks, group, parts, x, mode, outputs)
        return _eager(bench.torch.no_grad()(once), outputs)
    if part not in ("attn", "mlp"):
        raise MeasurementError(f"{bench.name}: unknown part {part!r}", key="part")
    compute = parts.attention if part == "attn" else parts.mlp
    summed = Summed(bench, ranks, group, *shape)

    def sequential() -> None:
        compute(x)
        summed.reduce()

    def overlap() -> None:
        work = summed.reduce(beside=True)
        compute(x)
        work.wait()

    def late() -> None:
        projected = parts.project(x)
        work = summed.reduce(beside=True)
        parts.attend(projected)
        work.wait()

    scope = str(bench.row.get("scope") or "all")
    if scope not in ("all", "after_qkv") or (scope == "after_qkv" and part != "attn"):
        raise MeasurementError(f"{bench.name}: unknown scope {scope!r} of part {part!r}", key="scope")
    modes = {"compute": lambda: compute(x), "sequential": sequential, "overlap": overlap if scope == "all" else late}
    if mode not in modes:
        raise MeasurementError(f"{bench.name}: unknown mode {mode!r}", key="mode")
    return _eager(bench.torch.no_grad()(modes[mode]), summed.buffer)


def _layer(
    bench: Bench, ranks: Ranks, group: Any, parts: LayerParts, x: Any, mode: str, outputs: list[Any]
) -> Callable[[], Any]:
    """A whole layer: one half after the other, or two nano-batches whose all-reduces run beside each other's work.

    What the second half gives goes into ``outputs``, by nano-batch.
    """

    def reduce(y: Any, *, beside: bool) -> Any:
        return ranks.dist.all_reduce(y, group=group, async_op=beside)

    def sequential() -> None:
        attended = parts.attention(x)
        reduce(attended, beside=False)
        outputs[:] = [parts.mlp(x + attended)]
        reduce(outputs[0], beside=False)

    def nanobatch() -> None:
        halves = x.chunk(2)
        attended, waits = [], []
        for half in halves:
            attended.append(parts.attention(half))
            waits.append(reduce(attended[-1], beside=True))
        outputs.clear()
        ends = []
        for half, y, work in zip(halves, attended, waits, strict=True):
            work.wait()
            outputs.append(parts.mlp(half + y))
            ends.append(reduce(outputs[-1], beside=True))
        for end in ends:
            end.wait()

    modes = {"sequential": sequential, "nanobatch": nanobatch}
    if mode not in modes:
        raise MeasurementError(f"{bench.name}: unknown mode {mode!r} of a layer", key="mode")
    return modes[mode]


def _beside_gather(bench: Bench, ranks: Ranks, group: Any) -> Kernel:
    """A product before or beside an all-gather."""
    torch, mode = bench.torch, str(bench.row.get("mode"))
    m, n, k = bench.whole("M"), bench.whole("N"), bench.whole("K")
    left, right, out = bench.values(m, k), bench.values(n, k).t(), bench.empty(m, n)
    count = _elements(bench, ranks)
    part, whole = bench.values(count // ranks.size), bench.empty(count)
    if mode not in ("sequential", "concurrent"):
        raise MeasurementError(f"{bench.name}: unknown mode {mode!r}", key="mode")

    def once() -> None:
        work = None
        if mode == "concurrent":
            work = ranks.all_gather(whole, part, group=group, async_op=True)
        torch.mm(left, right, out=out)
        if work is None:
            ranks.all_gather(whole, part, group=group)
        else:
            work.wait()

    return _eager(once, (out, whole))
