"""The clock that a GPU's SMs really ran at: their cycles over their time.

What a driver reports is the clock that the board has set. SMs may run slower for as long as some kernels run, those on
the tensor cores above all, and not every driver shows it. Two stamps of every SM's time t and cycle count c tell:

    f = mean over SMs of (c₂ − c₁)/(t₂ − t₁)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from joulecast.arrays import Int
from joulecast.calibrate.microbenchmarks.triton_kernels import compiled

#: More SMs than any GPU has: their numbers may have gaps, where some of a chip are switched off.
MOST_SMS = 1024
#: Triton's language, which ``triton_kernels.compiled`` brings in.
tl: Any = None
#: Writes every SM's time [ns] and cycles into a tensor of shape (:data:`MOST_SMS`, 2).
Stamp = Callable[[Any], object]


def counted_mhz(first: Int, last: Int) -> float | None:
    """Mean clock between two stamps [MHz].

    Parameters
    ----------
    first, last
        Of every SM the time [ns] and the cycles, shape (SMs, 2); zeros where an SM was not seen.

    Returns
    -------
    float or None
        The mean over the SMs that both saw; ``None`` where there is none, or a time or a counter did not rise.
    """
    seen = first.all(axis=1) & last.all(axis=1)
    passed = last[seen] - first[seen]
    if not len(passed) or passed.min() <= 0:
        return None
    return float(np.mean(passed[:, 1] / passed[:, 0])) * 1e3


class ClockCounter:
    """Counts cycles between two points of the current stream.

    Parameters
    ----------
    torch, device
        The module, and where the stamps are kept.
    stamp
        Launches the kernel; it is run once here, so that it is compiled.
    """

    def __init__(self, torch: Any, device: Any, stamp: Stamp) -> None:
        self._stamp = stamp
        self._stamps = torch.zeros((2, MOST_SMS, 2), dtype=torch.int64, device=device)
        self.begin()
        self.end()

    def begin(self) -> None:
        """Stamp the begin."""
        self._stamps.zero_()  # an SM that only one of the two stamps sees must not show an older one
        self._stamp(self._stamps[0])

    def end(self) -> float | None:
        """Stamp the end and wait for it; the mean clock since the begin [MHz], ``None`` if it cannot be told."""
        self._stamp(self._stamps[1])
        first, last = self._stamps.cpu().numpy()
        return counted_mhz(first, last)


def clock_counter_for(torch: Any, device: Any) -> ClockCounter | None:
    """The counter of an NVIDIA GPU, warm on the current stream.

    Returns
    -------
    ClockCounter or None
        ``None`` on a CPU and on other vendors' GPUs, and where Triton is missing or cannot compile for this card.
    """
    if device.type == "cpu" or torch.version.hip is not None:
        return None
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    try:
        kernel = compiled(_stamp)
        return ClockCounter(torch, device, lambda stamps: kernel[(sms,)](stamps, num_warps=1))
    except Exception:  # noqa: BLE001 - whatever Triton or its compiler lacks, all else can be measured
        return None


def _stamp(stamps):  # type: ignore[no-untyped-def]  # pragma: no cover - Triton's language, compiled on a GPU
    """Each program writes its SM's time [ns] and cycles to row ``%smid`` of ``stamps[MOST_SMS, 2]``."""
    time = tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    cycles = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    sm = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    tl.store(stamps + 2 * sm, time)
    tl.store(stamps + 2 * sm + 1, cycles)
