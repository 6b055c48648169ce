"""Whether what a row measured can be in the units of its keys: a factor of a thousand off, no fit would notice."""

from __future__ import annotations

from collections.abc import Container

from joulecast.errors import DataError

#: Clocks of a GPU [MHz], and the most that one draws [W]; what is outside has another unit.
CLOCKS_MHZ = (10.0, 10_000.0)
MOST_W = 20_000.0
#: Ratio of energy to power times time, above which one of them has another unit: these differ by 1000.
MIXED = 100.0
#: Units that the keys of a row do not have, by what was measured: such keys would stand unread.
OTHER_UNITS = {
    "time_s": ("ns", "us", "ms", "min", "h"),
    "energy_j": ("mj", "kj", "mwh", "wh", "kwh"),
    "power_w": ("mw", "kw"),
    "sm_clock_mhz": ("hz", "khz", "ghz"),
    "peak_mem_bytes": ("kb", "mb", "gb", "kib", "mib", "gib"),
}


def refuse_other_keys(file: str, line: int, keys: Container[str]) -> None:
    """Refuse a row that names a quantity in another unit, in place of the one that is read.

    Raises
    ------
    DataError
        Such a key, by file and line, and the one to write.
    """
    for read, units in OTHER_UNITS.items():
        stem = read.rpartition("_")[0]
        for key in (f"{stem}_{unit}" for unit in units):
            if key in keys and read not in keys:
                remedy = f"Write {read}, in {read.rpartition('_')[2]}."
                raise DataError(f"{key!r} is in another unit", file=file, line=line, key=key, remedy=remedy)


def refuse_other_units(
    file: str,
    line: int,
    *,
    time_s: float | None,
    energy_j: float | None,
    power_w: float | None,
    clock_mhz: float | None,
    gpus: float,
) -> None:
    """Refuse a row whose values no GPU has, or do not belong together.

    Parameters
    ----------
    time_s, energy_j, power_w, clock_mhz
        What was measured, of all GPUs together; ``None`` where it was not.
    gpus
        How many these are.

    Raises
    ------
    DataError
        A value in another unit than its key says, by file, line and key.
    """
    if clock_mhz is not None and not CLOCKS_MHZ[0] <= clock_mhz <= CLOCKS_MHZ[1]:
        wrong = f"{clock_mhz:g} MHz is not the clock of a GPU"
        raise DataError(wrong, file=file, line=line, key="sm_clock_mhz", remedy="Give clocks in MHz.")
    if power_w is not None and power_w > MOST_W * gpus:
        wrong = f"{power_w:g} W, which {'no GPU draws' if gpus == 1 else f'{gpus:g} GPUs never draw'}"
        raise DataError(wrong, file=file, line=line, key="power_w", remedy="Give power in watts.")
    if time_s and energy_j and power_w:
        ratio = energy_j / time_s / power_w
        if not 1.0 / MIXED <= ratio <= MIXED:
            wrong = f"energy over time is {energy_j / time_s:.3g} W, the power {power_w:.3g} W"
            raise DataError(
                wrong, file=file, line=line, key="energy_j", remedy="Give seconds, joules and watts everywhere."
            )
