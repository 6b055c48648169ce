"""Combinations of a space's values that can be plans.

Sizes that do not divide each other are left out in whole arrays, axis by axis, before a plan is built: exact, for every
rule here is one of :mod:`joulecast.simulator.plan_file.checks`. What passes is checked there in full.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulecast.arrays import Bool, Int
from joulecast.errors import InputError
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.plan.sweep.idle import COUNTED, CP, OF_SEVERAL, Unused, repeats, spare_keys
from joulecast.plan.sweep.plans import Plans
from joulecast.plan.sweep.space import SCHEDULE, Space
from joulecast.plan.sweep.values import MICRO_BATCH
from joulecast.simulator.plan_file.plan import PlanFrame
from joulecast.simulator.plan_file.schedule_names import schedule_alias
from joulecast.simulator.plan_file.stages import PP, TP, VP
from joulecast.simulator.schedules import FOLDED, PAIRS, TWO_WAY

#: Keys that split the model and the batch, in the order in which they are joined.
SPLITS = (TP, PP, VP, MICRO_BATCH, SCHEDULE)
#: Schedules that run the micro-batches of one stage in the same order.
ALIKE_ON_ONE_STAGE = ("none", "1f1b", "interleaved-1f1b")
#: Most settings of the keys that do not split the model.
MOST_SETTINGS = 100_000
#: Most GPUs of one domain of fast links in the catalogue.
MOST_PER_NODE = 72
#: Largest batch of which all micro-batches are tried.
MOST_BATCH = 10**12


@dataclass(frozen=True, eq=False)
class Combinations:
    """Combinations of values that may be legal, and how many there are in the space altogether.

    Attributes
    ----------
    values
        Values of every axis, those of ``"all"`` filled in.
    index
        Of every combination, the place of its value on each axis, shape ``(n, axes)``.
    offered
        Combinations of the space, legal or not.
    """

    keys: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]
    index: Int
    offered: int

    def __len__(self) -> int:
        return len(self.index)

    def of(self, number: int) -> dict[str, Any]:
        """Values of one combination by dotted key."""
        return {k: v[i] for k, v, i in zip(self.keys, self.values, self.index[number].tolist(), strict=True)}


def combinations(space: Space, plans: Plans) -> Combinations:
    """Every combination whose sizes divide each other, ordered so that neighbours share what they launch.

    Raises
    ------
    InputError
        A value that no plan of the space can have whatever its split, such as a GPU that is not known.
    """
    values = tuple(_all(key, space, plans) if given is None else given for key, given in space.axes)
    others = [i for i, key in enumerate(space.keys) if key not in SPLITS]
    given = {key: v for key, v in zip(space.keys, values, strict=True) if key in SPLITS}
    choices = {key: given.get(key, (space.value(key),)) for key in SPLITS}
    settings = _count_settings(space, values, others)
    splits: dict[_Sizes, Int] = {}
    refusals, unused = _Refusals(), Unused(space)
    found = []
    for chosen in itertools.product(*(range(len(values[i])) for i in others)):
        fixed = {space.keys[i]: values[i][n] for i, n in zip(others, chosen, strict=True)}
        if not space.together.allows(fixed):
            continue
        try:
            frame = plans.frame(fixed)
            sizes = _sizes(frame, space, fixed)
        except InputError as error:  # values that contradict each other whatever the split is
            refusals.refuse(fixed, error)
            continue
        unused.look(fixed, frame.model)
        if repeats(fixed, space, frame.model):
            continue
        refusals.take(fixed)
        if sizes not in splits:
            splits[sizes] = _splits(sizes, choices)
        split = _without_repeats(splits[sizes], sizes, choices, spare_keys(fixed, space))
        rows = np.empty((len(split), len(values)), dtype=np.int64)
        rows[:, others] = chosen
        rows[:, [space.keys.index(key) for key in given]] = split[:, [SPLITS.index(key) for key in given]]
        found.append(rows)
    refusals.raise_where_a_value_is_never_taken()
    unused.refuse()
    index = _neighbours_alike(np.concatenate(found), space.keys)
    return Combinations(space.keys, values, index, settings * math.prod(len(v) for v in given.values()))


class _Refusals:
    """Settings that contradict themselves whatever the split: an error where one of their values is in no other."""

    def __init__(self) -> None:
        self._refused: dict[str, InputError] = {}
        self._taken: set[str] = set()

    def refuse(self, setting: Mapping[str, Any], error: InputError) -> None:
        if not setting:  # nothing but the split varies
            raise error
        for value in setting.items():
            self._refused.setdefault(repr(value), error)

    def take(self, setting: Mapping[str, Any]) -> None:
        self._taken.update(map(repr, setting.items()))

    def raise_where_a_value_is_never_taken(self) -> None:
        for value, error in self._refused.items():
            if value not in self._taken:
                raise error


def _count_settings(space: Space, values: Sequence[Sequence[Any]], others: Sequence[int]) -> int:
    """How many settings of the keys that do not split the model, on the axes ``others``, a space offers."""
    alone = [i for i in others if space.keys[i] not in space.together.keys]
    count = math.prod(len(values[i]) for i in alone) * len(space.together.settings)
    if count > MOST_SETTINGS:
        raise space.source.error(
            f"{count} settings of {', '.join(space.keys[i] for i in others)}",
            remedy=f"Offer fewer values: at most {MOST_SETTINGS} settings beside how the model is split.",
        )
    return count


def _neighbours_alike(index: Int, keys: Sequence[str]) -> Int:
    """Combinations ordered so that neighbours share what they launch; places of values, shape ``(n, axes)``."""
    slow_to_fast = sorted(range(len(keys)), key=lambda i: (_shares(keys[i]), i))
    order = np.lexsort([index[:, i] for i in reversed(slow_to_fast)]) if keys else np.arange(len(index))
    return np.asarray(index[order])


def _shares(key: str) -> int:
    """How much plans share that differ in a key alone: 0 nothing, 1 parameters, 2 what stages launch, 3 all of it."""
    if key in (TP, MICRO_BATCH):
        return 1
    if key in (PP, VP, SCHEDULE):
        return 2
    return 3 if key.startswith("power.") else 0


def _all(key: str, space: Space, plans: Plans) -> tuple[int, ...]:
    """Every value that some plan of the space may have of a key."""
    if key == MICRO_BATCH:
        batches = space.values("workload.global_batch_size")
        return tuple(sorted({n for batch in batches for n in _divisors(batch, space)}))
    if key == TP:
        most = max([MOST_PER_NODE, *filter(None, space.values("cluster.gpus_per_node"))])
        if most > MOST_PER_NODE:  # no more ranks than heads
            most = min(most, max(MOST_PER_NODE, *(model.heads for model in _models(space, plans))))
    else:  # embedding and head may count as blocks
        most = max(model.layers for model in _models(space, plans)) + len(COUNTED)
    return tuple(range(1, 1 + most))


def _divisors(batch: int, space: Space) -> set[int]:
    """Sizes that divide a batch."""
    if batch > MOST_BATCH:
        raise space.source.error(
            f"a batch of {batch:.6g} samples", "workload.global_batch_size", remedy=f"Use at most {MOST_BATCH:.0e}."
        )
    small = [n for n in range(1, math.isqrt(batch) + 1) if batch % n == 0]
    return {size for n in small for size in (n, batch // n)}


def _models(space: Space, plans: Plans) -> list[ModelConfig]:
    """Every model that the space offers."""
    names = ("workload.model", "workload.layers")
    offered = [[(name, value) for value in space.values(name)] for name in names if name in space.keys]
    others = {key: values[0] for key, values in space.axes if values is not None}
    return [plans.frame(others | dict(chosen)).model for chosen in itertools.product(*offered)]


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What one setting of the other keys says about sizes."""

    gpus: int
    per_node: int
    batch: int
    blocks: int
    heads: int
    within_node: bool
    context: int
    uneven: bool


def _sizes(frame: PlanFrame, space: Space, fixed: Mapping[str, Any]) -> _Sizes:
    def of(key: str) -> Any:
        return fixed[key] if key in fixed else space.value(key)

    return _Sizes(
        gpus=frame.cluster.gpus,
        per_node=frame.cluster.gpus_per_node,
        batch=of("workload.global_batch_size"),
        blocks=frame.model.layers + sum(bool(of(key)) for key in COUNTED),
        heads=frame.model.split_heads,
        within_node=dict(space.axes).get(TP, ()) is None,
        context=of(CP),
        uneven=of("parallelism.stage_layers") is not None,
    )


def _splits(sizes: _Sizes, choices: Mapping[str, Sequence[Any]]) -> Int:
    """Places of the values of :data:`SPLITS` that go together, joined key by key, shape ``(n, 5)``."""
    offered = {key: np.array(values) for key, values in choices.items()}
    offered[SCHEDULE] = np.array([schedule_alias(name) for name in choices[SCHEDULE]])
    places = np.zeros((1, 0), dtype=np.int64)
    for number, key in enumerate(SPLITS):
        count = len(offered[key])
        places = np.column_stack([np.repeat(places, count, axis=0), np.tile(np.arange(count), len(places))])
        chosen = {k: offered[k][places[:, i]] for i, k in enumerate(SPLITS[: number + 1])}
        places = places[_RULES[key](sizes, chosen)]
    return _once(places, offered)


def _once(places: Int, offered: Mapping[str, NDArray[Any]]) -> Int:
    """Places without those that repeat a plan: on one stage some schedules are the same, of which the first stays."""
    alike = np.isin(offered[SCHEDULE], ALIKE_ON_ONE_STAGE)
    schedule, stages = places[:, SPLITS.index(SCHEDULE)], offered[PP][places[:, SPLITS.index(PP)]]
    repeats = (stages == 1) & alike[schedule] & (schedule != alike.argmax())
    return np.asarray(places[~repeats])


def _without_repeats(places: Int, sizes: _Sizes, choices: Mapping[str, Sequence[Any]], spare: Collection[str]) -> Int:
    """Places without those that repeat the plans of settings with other values of these keys, which do nothing there.

    What several GPUs share does nothing where there is one; and of two stages embedding and head, both counted as
    blocks, take a layer each.
    """
    alone = {OF_SEVERAL[key] for key in spare if key in OF_SEVERAL}
    chosen = {key: np.array(choices[key])[places[:, i]] for i, key in enumerate(SPLITS)}
    folded = np.isin([schedule_alias(name) for name in choices[SCHEDULE]], FOLDED)[places[:, SPLITS.index(SCHEDULE)]]
    keep = np.full(len(places), CP not in alone or sizes.context > 1)
    for key in alone & set(SPLITS):
        keep &= chosen[key] > 1
    if set(COUNTED) <= set(spare):
        keep &= (chosen[PP] != 2) | (chosen[VP] > 1) | folded
    return np.asarray(places[keep])


Chosen = Mapping[str, NDArray[Any]]
Rule = Callable[[_Sizes, Chosen], Bool]


def _tensor(s: _Sizes, of: Chosen) -> Bool:
    tp = of[TP]
    fits = (s.gpus % (tp * s.context) == 0) & (s.heads % tp == 0) & (s.gpus % s.per_node == 0)
    return np.asarray(fits & ((tp <= s.per_node) | (not s.within_node)))


def _pipeline(s: _Sizes, of: Chosen) -> Bool:
    even = (s.blocks % of[PP] == 0) | s.uneven
    return np.asarray((s.gpus % (of[TP] * of[PP] * s.context) == 0) & even)


def _virtual(s: _Sizes, of: Chosen) -> Bool:
    even = (s.blocks % (of[PP] * of[VP]) == 0) | s.uneven
    return np.asarray(((of[VP] == 1) | (of[PP] > 1)) & even)


def _replicas(s: _Sizes, of: Chosen) -> Int:
    return np.asarray(s.gpus // (of[TP] * of[PP] * s.context))


def _micro_batch(s: _Sizes, of: Chosen) -> Bool:
    return np.asarray(s.batch % (of[MICRO_BATCH] * _replicas(s, of)) == 0)


def _schedule(s: _Sizes, of: Chosen) -> Bool:
    interleaved, loop = of[SCHEDULE] == "interleaved-1f1b", of[SCHEDULE] == "none"
    folded, two_way = np.isin(of[SCHEDULE], FOLDED), np.isin(of[SCHEDULE], TWO_WAY)
    count = s.batch // (of[MICRO_BATCH] * _replicas(s, of))
    rounds = np.maximum(count // of[PP], 1)
    fits = np.where(interleaved, ((of[VP] > 1) | (of[PP] == 1)) & (count % rounds == 0), of[VP] == 1)
    fits = np.where(folded, _folds(s, of), fits)
    fits &= ~two_way | ((of[PP] > 1) & (of[PP] % 2 == 0) & (count % 2 == 0))
    fits &= ~np.isin(of[SCHEDULE], PAIRS) | (count >= 2 * of[PP])
    return np.asarray(fits & (~loop | (of[PP] == 1)))


def _folds(s: _Sizes, of: Chosen) -> Bool:
    """Folded pipelines have two chunks on a rank, whether the space says so or leaves it open: either is one plan."""
    chunks = 1 if (of[VP] == 1).any() else 2
    return np.asarray((of[VP] == chunks) & (of[PP] > 1) & ((s.blocks % (of[PP] * 2) == 0) | s.uneven))


_RULES: dict[str, Rule] = {TP: _tensor, PP: _pipeline, VP: _virtual, MICRO_BATCH: _micro_batch, SCHEDULE: _schedule}
