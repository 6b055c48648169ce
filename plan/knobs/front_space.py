"""What a forecast front chooses from: clocks, knobs of overlap and tiles, by default or from a SPACE.toml."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.errors import InputError, NotYetError, did_you_mean
from joulecast.model.training.nanobatches import LaunchPoint
from joulecast.plan.knobs.overlap_space import KNOBS
from joulecast.plan.knobs.ranges import range_values
from joulecast.plan.knobs.tile_space import TileLists, read_tile_lists
from joulecast.simulator.plan_file.power import clock_index
from joulecast.simulator.plan_file.schema_parallelism import CommEngine
from joulecast.simulator.plan_file.source import Source, plain, read_toml

#: Thread blocks of collectives that are tried besides the library's own choice.
COMM_CTAS = (4, 8, 12, 16, 20, 32)
#: From how alike a key and a choice are the one may be a misspelling of the other: nearer than usual, since keys of a
#: plan are not meant.
ALIKE = 0.85
#: Keys of a SPACE.toml that a front takes, as ``table.key``.
KEYS = ("power.clock_mhz", "power.power_limit_w", *(f"overlap.{name}" for name in KNOBS), "implementation.tiles")


@dataclass(frozen=True, slots=True)
class FrontSpace:
    """Choices of a forecast front.

    Attributes
    ----------
    clocks_mhz
        Clocks to choose from; ``None``: all of the GPU's [MHz].
    comm_ctas
        Thread blocks of a collective to choose from, ``None`` in it for the library's own choice; ``None``: what
        :data:`COMM_CTAS` says where the plan leaves it open.
    overlap
        Pairs (other knob of overlap, values as in a PLAN.toml to choose from); the plan's own without.
    tiles
        Tiles to choose from by operator; the plan's own without.
    source
        Named in errors.
    power_limits_w
        Limits of whole pipeline ranks to choose from; only a front over these takes them [W].
    """

    clocks_mhz: tuple[float, ...] | None = None
    comm_ctas: tuple[int | None, ...] | None = None
    overlap: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    tiles: TileLists = ()
    source: Source = field(default_factory=Source, compare=False, repr=False)
    power_limits_w: tuple[float, ...] | None = None

    def clocks_alone(self, comm_ctas: int | None) -> FrontSpace:
        """The same choice of clocks with a plan's own thread blocks, for programs that set nothing but clocks.

        Raises
        ------
        InputError
            The space opens something else to choice.
        """
        opened = [*(f"overlap.{name}" for name, _ in self.overlap), *(["implementation.tiles"] if self.tiles else [])]
        if self.comm_ctas is not None:
            opened.append("overlap.comm_ctas")
        if opened:
            raise self.source.error(
                "Zeus sets clocks alone", opened[0], remedy="Take it out, and set it in the plan; or write json or csv."
            )
        return replace(self, comm_ctas=(comm_ctas,))

    def refuse_limits(self) -> None:
        """Instructions choose clocks, not limits.

        Raises
        ------
        InputError
            The space has limits.
        """
        if self.power_limits_w is not None:
            raise self.source.error(
                "a power limit is chosen for whole pipeline ranks, not for instructions",
                "power.power_limit_w",
                remedy="Take it out; joulecast front alone takes it, in place of power.clock_mhz.",
            )

    def clock_indices(self, clocks_mhz: Array) -> Int:
        """Indices of the clocks to choose from among the GPU's, ascending.

        Raises
        ------
        InputError
            A clock that the GPU does not have.
        """
        if self.clocks_mhz is None:
            return np.arange(len(clocks_mhz))
        return np.unique([clock_index(c, clocks_mhz, "power.clock_mhz", self.source) for c in self.clocks_mhz])


def load_space(path: str | Path | Mapping[str, Any]) -> FrontSpace:
    """Read the choices of a SPACE.toml, or of its tables.

    Lists or ``{min, max, step}`` under ``power.clock_mhz`` and the numbers of ``[overlap]``; lists of windows and of
    its words; lists of tiles of operators under ``[implementation.tiles]``. A front takes no other key.

    Raises
    ------
    InputError
        The file cannot be used, or opens what a front does not choose.
    """
    tables, source = (plain(path), Source()) if isinstance(path, Mapping) else read_toml(path)
    known = {name.partition(".")[0] for name in KEYS}
    for table, values in tables.items():
        for key in values if isinstance(values, Mapping) and (values or table in known) else [""]:
            name = f"{table}.{key}" if key else table
            if name not in KEYS:
                raise _not_chosen(name, source)
    clocks = _values(tables.get("power", {}).get("clock_mhz"), "power.clock_mhz", source)
    limits = _values(tables.get("power", {}).get("power_limit_w"), "power.power_limit_w", source)
    if clocks is not None and limits is not None:
        raise source.error(
            "a rank has its instructions' clocks chosen, or its power limit",
            "power.power_limit_w",
            remedy="Take one of them out.",
        )
    overlap = tables.get("overlap", {})
    chosen = {name: _choices(name, overlap[name], source) for name in KNOBS if name in overlap}
    ctas = chosen.pop("comm_ctas", None)
    tiles = read_tile_lists(tables.get("implementation", {}).get("tiles"), source)
    return FrontSpace(clocks, ctas, tuple(chosen.items()), tiles, source, limits)


def _not_chosen(name: str, source: Source) -> InputError:
    """What a key that is no choice means: a misspelt one, or one of the plan's."""
    if remedy := did_you_mean(name, KEYS, 1, alike=ALIKE, otherwise=""):
        return source.error("unknown key", name, remedy=remedy)
    remedy = f"It chooses {', '.join(KEYS)}; put the rest into the plan."
    return source.error("a front does not choose this", name, remedy=remedy, kind=NotYetError)


def _choices(name: str, value: Any, source: Source) -> tuple[Any, ...]:
    """Values of a knob of overlap; a window is itself a list, of two names or places."""
    key = f"overlap.{name}"
    if name == "window" or name in _WORDS:
        single = not isinstance(value, list) or (name == "window" and _is_pair(value))
        values = (value,) if single else tuple(value)
        words = _WORDS.get(name)
        if not values or (words and any(type(v) is not type(words[0]) or v not in words for v in values)):
            raise source.error(f"{value!r} is no list of values", key, remedy=_listed(name))
        return values
    numbers = _values(value, key, source) or ()
    if any(not v.is_integer() for v in numbers):
        raise source.error(f"{name} are whole numbers", key, remedy="Write a list of integers.")
    return tuple(int(v) for v in numbers)


#: Knobs whose values are words, or yes and no.
_WORDS: dict[str, tuple[Any, ...]] = {
    "launch": get_args(LaunchPoint),
    "comm_engine": get_args(CommEngine),
    "comm_first": (False, True),
}


def _listed(name: str) -> str:
    """What to write for such a knob, or for windows."""
    if name == "window":
        return 'Write [["qkv", "output"], "all", …].'
    written = (str(v).lower() if isinstance(v, bool) else repr(v) for v in _WORDS[name])
    return f"Write a list of {' and '.join(written)}."


def _is_pair(value: list[Any]) -> bool:
    names = "all" not in value and all(isinstance(v, str) for v in value)
    return len(value) == 2 and (names or all(type(v) is int for v in value))


def _values(value: Any, key: str, source: Source) -> tuple[float, ...] | None:
    """Numbers of a list or of ``{min, max, step}``."""
    if value is None:
        return None
    numbers = value if isinstance(value, list) else [value]
    if isinstance(value, Mapping):
        numbers = list(range_values(value, key, source))
    if not numbers or not all(_is_positive(v) for v in numbers):
        raise source.error(f"{value!r} is no list of numbers above 0", key, remedy="Write [a, b, …].", kind=InputError)
    return tuple(float(v) for v in numbers)


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 < value < math.inf
