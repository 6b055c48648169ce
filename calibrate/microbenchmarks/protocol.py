"""A microbenchmark, and what runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Microbenchmark:
    """One thing to measure.

    Attributes
    ----------
    name
        Unique; stands in the recording.
    row
        The configuration of the measured row that it will become: the fields of the recorded rows (``op``, ``M``,
        ``dtype``, ``data``, …), without any measured value. :func:`joulecast.calibrate.rows.operators.operator_of`
        reads its operators from it.
    stratum
        Kind of work, such as ``gemm.bf16`` or ``attention.backward``; a choice takes some of every stratum first.
    needs
        What must be present beyond PyTorch: ``triton``, ``cudnn-attention``, ``fp8``, …
    gpus
        How many GPUs take part.
    """

    name: str
    row: Mapping[str, Any]
    stratum: str
    needs: tuple[str, ...] = ()
    gpus: int = 1


class Load(Protocol):
    """A prepared microbenchmark: its memory is allocated, its kernels are compiled and warm.

    Attributes
    ----------
    counted_clock_mhz
        Mean clock of the last run, by the cycles that the card counted in it [MHz]; ``None`` where it did not.
    """

    counted_clock_mhz: float | None

    def run(self, duration_s: float) -> tuple[int, float]:
        """Keep the card busy for about so long; wait for it to end.

        Returns
        -------
        tuple
            Repetitions of the benchmark, and the seconds that the card took for them (its own clock).

        Raises
        ------
        MeasurementError
            The work failed.
        """

    def close(self) -> None:
        """Free its memory."""


class Runner(Protocol):
    """Prepares microbenchmarks on one card."""

    def prepare(self, benchmark: Microbenchmark) -> Load:
        """Allocate and warm up.

        Raises
        ------
        MeasurementError
            It cannot run here: out of memory, data type or backend missing. The message says what is missing.
        """


class CardRunner(Runner, Protocol):
    """Prepares microbenchmarks on a card, and knows beforehand which of them lack something there."""

    def missing(self, benchmark: Microbenchmark) -> Sequence[str]:
        """What the benchmark needs and this machine lacks."""
