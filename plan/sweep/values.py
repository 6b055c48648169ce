"""What keys of a SPACE.toml offer: one value, several, a range, or clusters whose values go together."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from joulecast.plan.knobs.ranges import range_values
from joulecast.simulator.plan_file.schema import TABLES, PlanFile
from joulecast.simulator.plan_file.source import Source, right_name
from joulecast.simulator.plan_file.stages import PP, TP, VP

MICRO_BATCH = "workload.micro_batch_size"
CLUSTER = "cluster"
#: Keys that take ``"all"``: every value that some plan of the space can have, tensor parallelism within a node.
ALL = (TP, PP, VP, MICRO_BATCH)
#: Keys of a range, and words in their place, by which what is none is told apart from a plan's own tables.
RANGE_WORDS = {"min", "max", "step", "from", "to", "start", "stop", "low", "high"}
#: Keys whose value in a PLAN.toml may itself be a list, of words or of numbers; in a SPACE.toml a list of lists offers
#: several, and so does one of words where a plan has numbers.
WORDS = (
    *("schedule.recompute_modules", "overlap.window", "implementation.cuda_graphs", "implementation.liger_kernel"),
    "workload.lora.target_modules",
)
NUMBERS = ("parallelism.stage_layers", "workload.document_tokens")
TILES = "implementation.tiles"
#: Tables within a plan's tables, whose keys may each offer several values too.
TABLES_WITHIN = ("workload.lora", "workload.rollout", "workload.images", TILES)


@dataclass(frozen=True, slots=True)
class Together:
    """Keys whose values go together, and each of the settings that they may have."""

    keys: tuple[str, ...] = ()
    settings: tuple[tuple[Any, ...], ...] = ((),)

    def allows(self, values: Mapping[str, Any]) -> bool:
        """Whether a plan may have these values; keys that are not among them may have any."""
        asked = [(place, values[key]) for place, key in enumerate(self.keys) if key in values]
        return any(all(setting[place] == value for place, value in asked) for setting in self.settings)


def table_values(table: str, keys: Any, source: Source) -> dict[str, tuple[Any, ...] | None]:
    """Values that each dotted key of a table offers.

    Raises
    ------
    InputError
        What is no table of a plan, or has a key that no plan has.
    """
    if table not in PlanFile.model_fields:
        raise source.error("unknown key", table, remedy=right_name((table,), TABLES, ("constraints", "objective")))
    if not isinstance(keys, Mapping):
        raise source.error("not a table", table, remedy=f"Write [{table}] and its keys below it.")
    found = {}
    for name, value in keys.items():
        key = f"{table}.{name}"
        if name not in TABLES[table].model_fields:  # before thousands of plans are built
            raise source.error("unknown key", key, remedy=right_name((table, name), TABLES))
        found[key] = _values(key, value, source)
    return found


def clusters(tables: Sequence[Any], source: Source) -> tuple[dict[str, tuple[Any, ...] | None], Together]:
    """Values that the clusters of ``[[cluster]]`` offer, and which of them go together.

    A key that one of them leaves out has its default there.
    """
    offers = [table_values(CLUSTER, table, source) for table in tables]
    keys = list(dict.fromkeys(key for offer in offers for key in offer))
    settings: list[tuple[Any, ...]] = []
    for number, offer in enumerate(offers, start=1):
        own = [offer.get(key) or (_default(key, number, source),) for key in keys]
        settings += itertools.product(*own)
    values = {key: _once(setting[i] for setting in settings) for i, key in enumerate(keys)}
    several = [i for i, key in enumerate(keys) if len(values[key]) > 1]
    together = _once(tuple(setting[i] for i in several) for setting in settings)
    return {**values}, Together(tuple(keys[i] for i in several), together)


def _once(values: Iterable[Any]) -> tuple[Any, ...]:
    """Values in order without those that are there already."""
    seen: list[Any] = []
    for one in values:
        if one not in seen:
            seen.append(one)
    return tuple(seen)


def _default(key: str, number: int, source: Source) -> Any:
    """What a cluster has of a key that others state."""
    about = TABLES[CLUSTER].model_fields[key.partition(".")[2]]
    if about.is_required():
        raise source.error(f"cluster {number} does not say it", key, remedy=f"Add it: {about.description}")
    return about.default


def _values(key: str, value: Any, source: Source) -> tuple[Any, ...] | None:
    """Values that a key offers: one, several, or ``None`` for all that are legal."""
    if value == "all" and key in ALL:
        return None
    if key in TABLES_WITHIN:
        tables = value if isinstance(value, list) else [value]
        return _once(one for table in tables for one in _each(key, table, source)) or _none(key, source)
    if isinstance(value, Mapping) and RANGE_WORDS & set(value):
        return range_values(value, key, source)
    if not isinstance(value, list) or _is_one(key, value):
        return (value,)
    return _once(value) or _none(key, source)


def _each(key: str, table: Any, source: Source) -> Iterable[Any]:
    """Every setting of a table within a table, whose keys may each offer several values."""
    if not isinstance(table, Mapping):
        return (table,)  # what it must be is said where plans are read
    offers = [_values(f"{key}.{name}", value, source) or () for name, value in table.items()]
    return (dict(zip(table, setting, strict=True)) for setting in itertools.product(*offers))


def _none(key: str, source: Source) -> NoReturn:
    raise source.error("an empty list offers nothing", key, remedy="Name at least one value.")


def _is_one(key: str, value: list[Any]) -> bool:
    """Whether a list is all of what one plan says under a key, rather than one of what each of several says."""
    whole = (list, Mapping, bool) if key in WORDS else (list, Mapping, bool, str)
    keys = key in (*WORDS, *NUMBERS) or key.startswith(f"{TILES}.")
    return keys and not any(isinstance(one, whole) for one in value)
