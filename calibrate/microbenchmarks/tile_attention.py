"""Fused attention with explicit tiles, forward and backward, on PyTorch's tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from joulecast.calibrate.microbenchmarks.kernel import Bench, Kernel
from joulecast.calibrate.microbenchmarks.tile_attention_kernels import backward, forward, row_products
from joulecast.calibrate.microbenchmarks.triton_kernels import compiled
from joulecast.errors import MeasurementError

#: Rows that a program of the small kernel before the backward one takes.
PRODUCT_ROWS = 16


@dataclass(frozen=True, slots=True)
class _Work:
    """Tensors of shape ``(heads, length, width)``, and how every kernel is launched."""

    query: Any
    key: Any
    value: Any
    causal: bool
    tile_m: int
    tile_n: int
    options: dict[str, int]

    @property
    def softmax_scale(self) -> float:
        return 1.0 / math.sqrt(self.query.shape[2])

    @property
    def scale(self) -> float:
        """Scores in units of log 2."""
        return self.softmax_scale / math.log(2.0)

    @property
    def constants(self) -> tuple[bool, int, int, int]:
        return self.causal, self.query.shape[2], self.tile_m, self.tile_n


def build(bench: Bench) -> Kernel:
    """Attention of a row ``B Hq Hkv S D causal direction tile_m tile_n warps stages``.

    Raises
    ------
    MeasurementError
        Keys shared by heads, a sequence that is no multiple of a tile, or an unknown direction.
    """
    heads, shared, length = bench.whole("Hq"), bench.whole("Hkv"), bench.whole("S")
    if shared != heads:
        raise MeasurementError(f"{bench.name}: tiles need as many key-value heads as heads, {heads}", key="Hkv")
    tiles = {side: bench.whole(side) for side in ("tile_m", "tile_n")}
    for side, tile in tiles.items():
        if length % tile:
            raise MeasurementError(f"{bench.name}: S = {length} is not a multiple of {side} = {tile}", key=side)
    shape = (bench.whole("B") * heads, length, bench.whole("D"))
    work = _Work(
        query=bench.values(*shape),
        key=bench.values(*shape),
        value=bench.values(*shape),
        causal=bool(bench.row.get("causal", True)),
        tile_m=tiles["tile_m"],
        tile_n=tiles["tile_n"],
        options={"num_warps": bench.whole("warps"), "num_stages": bench.whole("stages")},
    )
    direction = str(bench.row.get("direction"))
    if direction not in ("fwd", "bwd"):
        raise MeasurementError(f"{bench.name}: unknown direction {direction!r}", key="direction")
    return _forward(bench, work) if direction == "fwd" else _backward(bench, work)


def _forward(bench: Bench, work: _Work) -> Kernel:
    heads, length, _ = work.query.shape
    out, log_sum = bench.torch.empty_like(work.query), bench.empty(heads, length, dtype=bench.torch.float32)
    launch = compiled(forward)[(length // work.tile_m, heads)]

    def once() -> None:
        tensors = (work.query, work.key, work.value, out, log_sum)
        launch(*tensors, work.scale, length, *work.constants, **work.options)

    return Kernel(once, result=lambda: out)


def _backward(bench: Bench, work: _Work) -> Kernel:
    """Everything that gradients take: row products, the gradients, and those of the queries rounded."""
    torch, (heads, length, width) = bench.torch, work.query.shape
    before = compiled(row_products)[(heads * length // PRODUCT_ROWS,)]
    launch = compiled(backward)[(length // work.tile_n, heads)]
    out, log_sum = _reference(torch, work)
    incoming, products = bench.values(heads, length, width), torch.empty_like(log_sum)
    summed = torch.zeros(heads, length, width, dtype=torch.float32, device=bench.device)
    to_query, to_key, to_value = (torch.empty_like(work.query) for _ in range(3))
    read = (work.query, work.key, work.value, incoming, log_sum, products)

    def once() -> None:
        before(out, incoming, products, width, PRODUCT_ROWS, num_warps=4)
        summed.zero_()
        written = (summed, to_key, to_value)
        launch(*read, *written, work.scale, work.softmax_scale, length, *work.constants, **work.options)
        torch.mul(summed, work.softmax_scale, out=to_query)

    return Kernel(once, result=lambda: (to_query, to_key, to_value, incoming))


def _reference(torch: Any, work: _Work) -> tuple[Any, Any]:
    """Output and logarithm (base 2) of the sum of every row, head by head."""
    outs, sums = [], []
    for query, key, value in zip(work.query, work.key, work.value, strict=True):
        scores = (query.float() @ key.float().mT) * work.scale
        if work.causal:
            scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu_(1), float("-inf"))
        log_sum = torch.logsumexp(scores * math.log(2.0), dim=-1) / math.log(2.0)
        outs.append((torch.exp2(scores - log_sum[:, None]) @ value.float()).to(query.dtype))
        sums.append(log_sum)
    return torch.stack(outs), torch.stack(sums)
