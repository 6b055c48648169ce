"""One kernel on its buffers, ready to be launched, and where the buffers come from."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joulecast.errors import MeasurementError

#: Largest number of random values that are drawn at once; more are repeated from these.
CHUNK = 1 << 28
#: Larger copies are launched one by one, as programs do: in a CUDA graph the copy engine would do them instead of the
#: SMs, at two thirds of the bandwidth (H200: 2.7 instead of 4.2 TB/s from 512 MiB on) [bytes].
GRAPH_COPY_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Kernel:
    """What one repetition launches.

    Attributes
    ----------
    once
        Launches it once on the current stream, always on the same buffers.
    capture
        Whether it may be recorded into a CUDA graph.
    result
        Reads what the last launch computed, for tests.
    """

    once: Callable[[], Any]
    capture: bool = True
    result: Callable[[], Any] | None = None


def copy_kernel(source: Any, out: Any) -> Kernel:
    """A plain copy between buffers of the same kind."""
    size = source.numel() * source.element_size()
    return Kernel(lambda: out.copy_(source), capture=size <= GRAPH_COPY_BYTES, result=lambda: out)


def allocating_kernel(once: Callable[[], Any], *, capture: bool = True) -> Kernel:
    """A kernel that allocates its result; the newest is kept."""
    kept: list[Any] = []

    def launch() -> None:
        kept[:] = [once()]

    return Kernel(launch, capture=capture, result=lambda: kept[0])


def kernel_into(bench: Bench, function: Callable[..., Any], *sources: Any) -> Kernel:
    """A function of equal buffers into a further one."""
    out = bench.torch.empty_like(sources[0], memory_format=bench.torch.contiguous_format)
    return Kernel(lambda: function(*sources, out=out), result=lambda: out)


class Bench:
    """Where a kernel is set up: the device, the row, and buffers with the row's values.

    Parameters
    ----------
    torch, device
        The module, and the PyTorch device.
    row
        Configuration of the microbenchmark.
    name
        Seeds the random values, so that every run measures the same bits.
    """

    def __init__(self, torch: Any, device: Any, row: Mapping[str, Any], name: str) -> None:
        self.torch, self.device, self.row, self.name = torch, device, row, name
        self._generator = torch.Generator(device=device)
        self._generator.manual_seed(zlib.crc32(name.encode()))

    def whole(self, key: str) -> int:
        """A positive whole number of the row.

        Raises
        ------
        MeasurementError
            It is missing or something else.
        """
        value = self.row.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0 or value != int(value):
            raise MeasurementError(f"{self.name}: {key} = {value!r} is not a positive whole number", key=key)
        return int(value)

    def dtype(self, word: str | None = None) -> Any:
        """PyTorch's data type of the row's, or of ``word``.

        Raises
        ------
        MeasurementError
            PyTorch does not have it.
        """
        word = word or str(self.row.get("dtype") or "bf16")
        names = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32", "fp64": "float64"}
        dtype = getattr(self.torch, {**names, "fp8": "float8_e4m3fn"}.get(word, "-"), None)
        if dtype is None:
            raise MeasurementError(f"{self.name}: data type {word!r} is missing in this PyTorch", key="dtype")
        return dtype

    def empty(self, *shape: int, dtype: Any = None) -> Any:
        """A buffer whose values do not matter."""
        return self.torch.empty(shape, dtype=dtype or self.dtype(), device=self.device)

    def values(self, *shape: int, dtype: Any = None, data: str | None = None) -> Any:
        """A buffer of the row's kind of values.

        ``randn`` normal with unit variance, ``zeros``, ``ones``, ``pow2`` ±1 with equal chance, ``sparseX`` normal with
        the fraction X set to zero.

        Raises
        ------
        MeasurementError
            An unknown kind.
        """
        kind = data or str(self.row.get("data") or "randn")
        wanted = dtype or self.dtype()
        buffer = self.torch.empty(shape, dtype=wanted, device=self.device)
        flat = buffer.view(-1)
        for start in range(0, flat.numel(), CHUNK):
            part = flat[start : start + CHUNK]
            part.copy_(self._drawn(part.numel(), kind, wanted))
        return buffer

    def _drawn(self, count: int, kind: str, wanted: Any) -> Any:
        torch = self.torch
        # Normal values have all the mantissa bits of their own type; only 8-bit floats cannot be drawn directly.
        make = {"device": self.device, "dtype": wanted if wanted.itemsize > 1 else torch.bfloat16}
        if kind in ("zeros", "ones"):
            return torch.full((count,), float(kind == "ones"), **make)
        normal = torch.empty(count, **make).normal_(generator=self._generator)
        if kind == "randn":
            return normal
        if kind == "pow2":
            return torch.where(normal < 0, -1.0, 1.0)
        share = _sparse_share(kind)
        if share is None:
            raise MeasurementError(f"{self.name}: unknown input values {kind!r}", key="data")
        kept = torch.empty(count, device=self.device, dtype=torch.float32).uniform_(generator=self._generator)
        return normal.mul_(kept >= share)

    def whole_values(self, high: int, shape: Sequence[int]) -> Any:
        """Random indices below ``high``."""
        return self.torch.randint(high, tuple(shape), device=self.device, generator=self._generator)


def _sparse_share(kind: str) -> float | None:
    """The zeroed fraction of ``sparse0.5``; ``None`` of other words."""
    if not kind.startswith("sparse"):
        return None
    try:
        share = float(kind.removeprefix("sparse"))
    except ValueError:
        return None
    return share if 0 <= share <= 1 else None
