"""From the row of a microbenchmark to the load that runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from joulecast.calibrate.microbenchmarks import attention, gemm, streaming, tiles, training
from joulecast.calibrate.microbenchmarks.composite import (
    COMPANY_S,
    DUTY_PRODUCTS,
    GROUP_S,
    BackToBack,
    Beside,
    Bursts,
    Chain,
    Idle,
    prepare_batch,
)
from joulecast.calibrate.microbenchmarks.engine import BATCH_S, Engine, launches_for, warm_up
from joulecast.calibrate.microbenchmarks.kernel import Bench, Kernel
from joulecast.errors import MeasurementError

#: Sides of the products that rows do not state.
DUTY_SIDE = COMPANY_SIDE = GEMV_SIDE = 8192
SMALL_SIDE = 2048
#: Batches of which a long burst is made at least.
PULSE_BATCHES = 20


class Runs(Protocol):
    """A load without its memory management."""

    def run(self, duration_s: float) -> tuple[int, float]:
        """As :meth:`joulecast.calibrate.microbenchmarks.protocol.Load.run`."""


def kernel_of(bench: Bench) -> Kernel:
    """The one kernel of a row that runs one kernel.

    Raises
    ------
    MeasurementError
        The row's ``op`` is unknown.
    """
    op = str(bench.row.get("op"))
    if op in ("gemm", "pulse"):
        return gemm.build(bench)
    if op == "flash_attn":
        return attention.build(bench)
    if op == "stream":
        return training.build(bench)
    if op.startswith("tile_"):
        return tiles.build(bench)
    return streaming.build(bench)


def build(bench: Bench, engine: Engine) -> Runs:
    """The load of a row, warm and with its batches prepared."""
    composite = _COMPOSITES.get(str(bench.row.get("op")))
    if composite is not None:
        return composite(bench, engine)
    with engine.preparing():
        kernel = kernel_of(bench)
    if bench.row.get("companion"):
        return _beside(bench, engine, kernel)
    return BackToBack(engine, prepare_batch(engine, kernel))


def _beside(bench: Bench, engine: Engine, kernel: Kernel) -> Runs:
    kind = str(bench.row["companion"])
    if kind not in ("randn", "zeros", "none"):
        raise MeasurementError(f"{bench.name}: unknown companion {kind!r}", key="companion")
    company = None
    if kind != "none":
        with engine.preparing():
            product = gemm.square(bench, _side(bench, COMPANY_SIDE), kind)
        company = prepare_batch(engine, product, COMPANY_S)
    return Beside(engine, prepare_batch(engine, kernel, GROUP_S), company)


def _side(bench: Bench, side: int) -> int:
    """A product's side, or the one to which the row was shrunk."""
    return int(bench.row.get("side") or side)


def _idle(bench: Bench, engine: Engine) -> Runs:
    every = bench.row.get("awake_every_s")
    if every is None:
        return Idle(engine)
    with engine.preparing():
        word = bench.empty(1)
    return Idle(engine, engine.batch(lambda: word.fill_(1.0), 1, capture=False), float(every))


def _duty(bench: Bench, engine: Engine) -> Runs:
    with engine.preparing():
        product = gemm.square(bench, _side(bench, DUTY_SIDE), "randn")
    warm_up(engine, product.once)
    batch = engine.batch(product.once, DUTY_PRODUCTS, capture=True)
    return Bursts(engine, batch, 0.0, float(bench.row["duty"]), per_repetition=DUTY_PRODUCTS)


def _pulse(bench: Bench, engine: Engine) -> Runs:
    busy, idle = float(bench.row["busy_s"]), float(bench.row["idle_s"])
    with engine.preparing():
        product = gemm.build(bench)
    length = busy if busy <= 2 * BATCH_S else min(BATCH_S, busy / PULSE_BATCHES)
    once_s = warm_up(engine, product.once)
    batch = engine.batch(product.once, launches_for(length, once_s), capture=product.capture)
    return Bursts(engine, batch, busy, busy / (busy + idle), batch_s=once_s * batch.count)


def _interleave(bench: Bench, engine: Engine) -> Runs:
    """``n8`` products of 8192³, ``nv`` of matrix and vector, ``n2`` of 2048³, as often as the row says."""
    counts = {key: int(bench.row.get(key) or 0) for key in ("n8", "nv", "n2")}
    with engine.preparing():
        kernels = {
            "n8": lambda: gemm.square(bench, _side(bench, DUTY_SIDE), "randn"),
            "nv": lambda: _matrix_vector(bench, _side(bench, GEMV_SIDE)),
            "n2": lambda: gemm.square(bench, _side(bench, SMALL_SIDE), "randn"),
        }
        present = [(kernels[key](), count) for key, count in counts.items() if count]
    if not present:
        raise MeasurementError(f"{bench.name}: n8, nv and n2 are all zero", key="n8")
    sequence_s = sum(count * warm_up(engine, kernel.once) for kernel, count in present)
    batches = [engine.batch(kernel.once, count, capture=True) for kernel, count in present]
    return BackToBack(engine, Chain(batches, launches_for(BATCH_S, sequence_s)))


def _matrix_vector(bench: Bench, side: int) -> Kernel:
    row = {"op": "gemv", "M": side, "N": 1, "K": side, "dtype": "bf16"}
    return streaming.build(Bench(bench.torch, bench.device, row, bench.name))


_COMPOSITES: dict[str, Callable[[Bench, Engine], Runs]] = {
    "idle": _idle,
    "duty": _duty,
    "pulse": _pulse,
    "interleave": _interleave,
}
