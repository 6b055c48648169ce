"""How many runs, how dense points, how wide a bin of execution times."""

from __future__ import annotations

from dataclasses import dataclass

from joulecast.errors import MeasurementError


@dataclass(frozen=True, slots=True)
class Guidance:
    """What kernels of one range of duration need.

    Attributes
    ----------
    up_to_s
        Longest kernel that this is for.
    runs
        Runs to take.
    spacing_s
        One reading is wanted for every so much of the kernel's time.
    margin
        Width of a bin of execution times, relative.
    """

    up_to_s: float
    runs: int
    spacing_s: float
    margin: float


#: Guidance of FinGraV (ISPASS 2025), table of kernel duration against runs, points and binning margin.
TABLE = (
    Guidance(50e-6, 400, 5e-6, 0.05),
    Guidance(200e-6, 200, 10e-6, 0.05),
    Guidance(float("inf"), 200, 10e-6, 0.02),
)
#: The guidance begins here; shorter kernels take its first line, and more doubt.
COVERED_S = 25e-6
#: What starts and ends a kernel is as long as this.
SHORTEST_S = 5e-6


def guidance_for(kernel_s: float) -> Guidance:
    """Runs, spacing and margin for a kernel of this duration; below :data:`COVERED_S` those of the shortest.

    >>> guidance_for(30e-6).runs, guidance_for(100e-6).runs, guidance_for(500e-6).margin
    (400, 200, 0.02)

    Raises
    ------
    MeasurementError
        The kernel is too short.
    """
    if not kernel_s >= SHORTEST_S:
        raise MeasurementError(
            f"a kernel of {kernel_s * 1e6:.1f} µs is too short for a power profile",
            remedy=f"Profile kernels of {SHORTEST_S * 1e6:.0f} µs and longer, for instance a larger shape.",
        )
    return next(row for row in TABLE if kernel_s <= row.up_to_s)
