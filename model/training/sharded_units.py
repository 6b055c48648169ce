"""Parameters sharded over the data-parallel ranks (FSDP, ZeRO-3): gathered unit by unit, gradients reduced likewise.

A unit is a layer; what lies outside the layers is one more, the root. Before a layer's forward, and again before its
backward, its parameters are gathered; after its backward its gradients are reduced and scattered. With prefetch the
next layer's parameters come beside the computation of this one; without, every communication is waited for. The root's
parameters stay from the forward to the backward of a micro-batch, those of layers too where nothing ``reshards`` them.
Gradients are reduced after every micro-batch, as PyTorch's ``fully_shard`` does by default, and added up as shards:
whole gradients are new in every backward. Under FSDP's ``no_sync`` (``sums_whole``) those of accumulated micro-batches
add up whole, and the last backward alone reduces them. In hybrid sharding the shards of ``members`` ranks have
``replicas`` copies, which add up their shards of the gradients.

PyTorch copies a unit's shards into one buffer before they are gathered, out of the gathered one, and gradients into one
before they are reduced; the first runs on a stream of its own, here in front of what it runs beside. Where parameters
are kept wider than they are computed with (``MixedPrecisionPolicy``), shards are cast before the first copy and
gradients, value by value, in the last.

Experts that are split over expert-parallel ranks have fewer copies than the rest. They are sharded over the ranks that
hold the same ones, with collectives of their own: of a layer the rest's first, then its experts'.

References: Zhao et al., PyTorch FSDP, arXiv:2304.11277; Rajbhandari et al., ZeRO, arXiv:1910.02054; Liang et al.,
TorchTitan, arXiv:2410.06511 (experts on a mesh of their own).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from joulecast.model.cluster.fabric import Fabric
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch, by_copy_engines, streaming
from joulecast.model.framework.placed import placed
from joulecast.model.kernels.multi_tensor import BLOCK_VALUES, MOST_BLOCKS
from joulecast.model.kernels.operators import DTYPE_BYTES, Collective
from joulecast.model.training.data_parallel import among_replicas
from joulecast.model.training.sharded_gaps import gaps, part
from joulecast.model.transformer.row_operators import widened

#: Values that one launch of PyTorch's ``_foreach_copy_`` copies at most: as many as AdamW steps.
FOREACH_VALUES = MOST_BLOCKS * BLOCK_VALUES
#: How much longer such a launch takes than its bytes [s]: its blocks are all at work at once, some SMs have one more
#: than others, and at its end too few copy. Copies of shards of five models' layers on an H200, in bf16 9.5 and from
#: fp32 6.5 µs (`validate/recorded/single_values/sharded_copies.csv`) [+-20 %].
FOREACH_LATE_S = 8e-6


@dataclass(frozen=True, slots=True)
class Sharding:
    """How parameters are sharded.

    Attributes
    ----------
    members, fabric
        Ranks that share one copy of the parameters, and their links.
    replicas, replica_fabric
        Copies, and the links between the ranks that hold the same shard.
    prefetch
        Whether communication runs beside computation.
    added_share
        Share of the backwards that find gradients of an earlier micro-batch and add theirs [1].
    experts
        How experts are sharded; ``None``: as the rest is, and with it.
    reshards
        Whether layers' parameters are let go after the forward.
    keeps
        Whether all parameters stay gathered throughout a step: gradients are added up whole, and reduced at its end.
    sums_whole
        Whether gradients are added up whole, and reduced in the last micro-batch's backward.
    """

    members: int
    fabric: Fabric
    replicas: int = 1
    replica_fabric: Fabric | None = None
    prefetch: bool = True
    added_share: float = 0.0
    experts: Sharding | None = None
    reshards: bool = True
    keeps: bool = False
    sums_whole: bool = False


@dataclass(frozen=True, slots=True)
class Unit:
    """One pass through parameters that are gathered together.

    Attributes
    ----------
    launches
        What runs with them.
    elements, gathered_bytes
        Elements of the parameters, 0 for what has none of its own, and their bytes when gathered.
    expert_elements, expert_bytes
        The same of experts that are sharded otherwise than the rest.
    frozen
        Elements among the first that have no gradients.
    """

    launches: tuple[Launch, ...]
    elements: int = 0
    gathered_bytes: float = 0.0
    expert_elements: int = 0
    expert_bytes: float = 0.0
    frozen: int = 0

    @property
    def reduced(self) -> int:
        """Elements that have gradients, but for experts'."""
        return self.elements - self.frozen


def sharded_forward(
    units: Sequence[Unit], root: Unit, sharding: Sharding, implementation: Implementation
) -> tuple[Launch, ...]:
    """Forward of a stage for one micro-batch: the root's parameters first, then each layer's beside the one before.

    Nothing frees the root's parameters after a forward that no backward follows, so that the next one finds them whole
    (``fully_shard``'s default for a root; traces of two iterations with a reference have none for it).

    Parameters
    ----------
    units
        Layers in order of execution, and between them what has no parameters but the root's.
    root
        The parameters outside the layers.
    """
    weaver = _Weaver(sharding, implementation)
    if sharding.keeps:
        return tuple(launch for unit in units for launch in unit.launches)
    if root.elements:
        weaver.run(root, None if implementation.gradient_free else weaver.gather(root, "root"))
    weaver.layers(units, gather=True)
    return tuple(weaver.out)


def sharded_backward(
    units: Sequence[Unit], root: Unit, sharding: Sharding, implementation: Implementation, *, last: bool = False
) -> tuple[Launch, ...]:
    """Backward of a stage for one micro-batch, the ``last`` of a step or not; the root's gradients come last."""
    weaver = _Weaver(sharding, implementation)
    if sharding.keeps:
        return tuple(launch for unit in (*units, root) for launch in (*unit.launches, *weaver.added_whole(unit)))
    behind = weaver.reduce if last or not sharding.sums_whole else weaver.sum_whole
    weaver.layers(units, gather=sharding.reshards, behind=behind)
    if root.reduced:
        behind(root, "root")
    return tuple(weaver.out)


def once_a_step(
    units: Sequence[Unit], sharding: Sharding, implementation: Implementation, *, gathers: bool
) -> tuple[Launch, ...]:
    """Sums of all units' gradients behind a step's last backward, or all parameters gathered behind its optimizer.

    PyTorch gathers them in the next step's first forward, in part beside it; here they are waited for.
    """
    weaver = _Weaver(replace(sharding, prefetch=False, added_share=0.0), implementation)
    for unit in (one for one in units if one.elements):
        if gathers:
            weaver.run(unit, weaver.gather(unit, "step"))
        elif unit.reduced:
            weaver.reduce(unit, "step")
    return tuple(weaver.out)


class _Weaver:
    """Puts communications of units between launches, and adjusts the launches' waits so that they wait for the same."""

    def __init__(self, sharding: Sharding, implementation: Implementation) -> None:
        self.sharding, self.implementation = sharding, implementation
        self.out: list[Launch] = []
        self.issued = 0
        self._due = -1  # communication that the next computation waits for
        self._known: dict[tuple[int, int], Launch] = {}
        self._held: tuple[Launch, ...] = ()  # communications that run among those of the next unit
        self._placed = 0  # communications up to the last part of these
        self._found: dict[int, dict[int, float]] = {}
        self._parts: dict[tuple[int, float], Launch] = {}
        self._operators: dict[tuple[str, float, int, str], tuple[Launch, ...]] = {}

    def layers(
        self, units: Sequence[Unit], *, gather: bool, behind: Callable[[Unit, str, Unit | None], None] | None = None
    ) -> None:
        """All units, each layer gathered while what is before it runs, where layers ``gather``.

        ``behind`` is what a backward does with each layer's gradients.
        """
        gathered: dict[int, int | None] = {}
        layers = [i for i, unit in enumerate(units) if unit.elements]
        for i, unit in enumerate(units):
            if gather and unit.elements and i not in gathered:
                gathered[i] = self.gather(unit, "layer")
            ahead = next((j for j in layers if j > i), None)
            ahead = ahead if gather and self.sharding.prefetch and ahead not in gathered else None
            if ahead is not None:
                gathered[ahead] = self.gather(units[ahead], "layer", beside=unit)
            self.run(unit, gathered.get(i))
            if ahead is not None and gathered[ahead] is not None:
                gathered[ahead] = max(gathered[ahead] or 0, self._placed - 1)
            if unit.reduced and behind is not None:
                behind(unit, "layer", units[i + 1] if i + 1 < len(units) else None)

    def gather(self, unit: Unit, name: str, beside: Unit | None = None) -> int | None:
        """All-gather of a unit's parameters; its number among the communications, if there is one."""
        launches = self._communication("all_gather", unit, name)
        if launches:
            self.out.extend(self._cast_shards(unit))
            self.out.extend(self._foreach("all_gather.shards.copy", self._of_one_rank(unit) * self._width(unit)))
        self._speak(launches, beside)
        return self.issued - 1 if launches else None

    def reduce(self, unit: Unit, name: str, beside: Unit | None = None) -> None:
        """Reduce-scatter of a unit's gradients, and the sum over the copies of its shard."""
        if self.sharding.sums_whole:
            self.sum_whole(unit, name)
        self.out.extend(self._gradient_copy(unit.reduced + unit.expert_elements))
        self._speak(self._communication("reduce_scatter", unit, name), beside)
        if self.sharding.sums_whole:
            return
        added = (self._of_one_rank(unit) - unit.frozen / self.sharding.members) * self.sharding.added_share
        if added:
            kept = self.implementation.kept_gradient_dtype
            self.out.extend(self._eager("shards.accumulate", added, "add", reads=2, dtype=kept))

    def sum_whole(self, unit: Unit, name: str, beside: Unit | None = None) -> None:
        """Gradients of a micro-batch added to those before it, where there are any, instead of being reduced."""
        self.out.extend(self.added_whole(unit, self.sharding.added_share))

    def added_whole(self, unit: Unit, share: float = 1.0) -> tuple[Launch, ...]:
        """Gradients of a micro-batch added to those before it, in the type that they are reduced in."""
        of, elements = self.implementation, (unit.reduced + unit.expert_elements) * share
        read = 1.0 + 1.0 / _widening(of.dtype, of.gradient_dtype)
        return (
            self._eager("gradients.accumulate", elements, "add", reads=read, dtype=of.gradient_dtype)
            if elements
            else ()
        )

    def _speak(self, launches: tuple[Launch, ...], beside: Unit | None = None) -> None:
        """Issue communications now, or in parts among those of the unit beside which they run."""
        if beside is not None and self.sharding.prefetch and self._gaps(beside):
            self._held += launches
            return
        self.out.extend(launches)
        self.issued += len(launches)

    def _gaps(self, unit: Unit) -> dict[int, float]:
        key = id(unit.launches)
        if key not in self._found:
            self._found[key] = dict(gaps(unit.launches))
        return self._found[key]

    def _issue_parts(self, share: float, count: int) -> None:
        """A part of each communication that is held; equal parts are the same object."""
        for launch in self._held:
            key = (id(launch), share)
            if key not in self._parts:
                self._parts[key] = part(launch, share, count)
            self.out.append(self._parts[key])
        self.issued += len(self._held)
        self._placed = self.issued

    def _of_one_rank(self, unit: Unit) -> float:
        """Elements of a unit's shard."""
        apart = self.sharding.experts or self.sharding
        return unit.elements / self.sharding.members + unit.expert_elements / apart.members

    def _cast_shards(self, unit: Unit) -> tuple[Launch, ...]:
        """Shards of parameters in the type that they are gathered in, where they are kept in another."""
        of, width = self.implementation, self._width(unit)
        if of.parameter_dtype == of.dtype and width == 1.0:
            if of.trained_dtype == of.dtype or not unit.reduced:
                return ()
            adapters, read = unit.reduced / self.sharding.members, _widening(of.dtype, of.trained_dtype)
            return self._foreach("all_gather.shards.cast", adapters, reads=read)
        read = _widening(of.dtype, of.parameter_dtype) / width
        return self._foreach("all_gather.shards.cast", self._of_one_rank(unit) * width, reads=read)

    def _width(self, unit: Unit) -> float:
        """Bytes of a gathered parameter over those of one in the type of the computation."""
        if self.implementation.megatron or not unit.elements:
            return 1.0
        return unit.gathered_bytes / (unit.elements * DTYPE_BYTES[self.implementation.dtype])

    def _gradient_copy(self, elements: float) -> tuple[Launch, ...]:
        """Gradients in one buffer, in the type that they are reduced in."""
        of = self.implementation
        if of.megatron or of.gradient_dtype == of.dtype:
            return self._eager("reduce_scatter.copy", elements)
        key = ("widened", elements, 0, "reduce_scatter.copy")
        if key not in self._operators:
            self._operators[key] = (widened("reduce_scatter.copy", elements, of.dtype),)
        return self._operators[key]

    def _foreach(self, name: str, elements: float, reads: float = 1) -> tuple[Launch, ...]:
        """A unit's shards copied in as few launches as hold them."""
        return self._eager(name, elements, reads=reads, late_s=FOREACH_LATE_S * math.ceil(elements / FOREACH_VALUES))

    def _eager(
        self, name: str, elements: float, pattern: str = "copy", reads: float = 1, dtype: str = "", late_s: float = 0.0
    ) -> tuple[Launch, ...]:
        """What runs on shards and gathered tensors, which Megatron's one buffer needs not."""
        of = self.implementation
        if of.megatron:
            return ()
        key = (pattern, elements, 0, name)
        if key not in self._operators:
            launch = streaming(pattern, name, elements, reads=reads, dtype=dtype or of.dtype, late_s=late_s)
            self._operators[key] = (launch,)
        return self._operators[key]

    def run(self, unit: Unit, gathered: int | None) -> None:
        """A unit's launches, the first computation waiting for its parameters."""
        number: list[int] = []  # of each communication of the unit among all
        values = unit.elements * self._width(unit) + unit.expert_elements
        copied = () if gathered is None else self._eager("all_gather.copy", values)
        self._due = max(self._due, -1 if gathered is None else gathered)
        parts = self._gaps(unit) if self._held else {}
        for place, launch in enumerate((*copied, *unit.launches), -len(copied)):
            if place in parts:
                self._issue_parts(parts[place], len(parts))
            if launch.stream == "communication":
                number.append(self.issued)
                self.issued += 1
                self.out.append(launch)
                continue
            awaited = -1
            if launch.waits and len(number) > launch.outstanding:
                awaited = number[len(number) - 1 - launch.outstanding]
            awaited, self._due = max(awaited, self._due), -1
            self.out.append(launch if awaited < 0 else self._waiting(launch, self.issued - 1 - awaited))
        self._held = ()

    def _waiting(self, launch: Launch, outstanding: int) -> Launch:
        """The same object for the same launch, so that equal layers are recognised as such."""
        key = (id(launch), outstanding)
        if key not in self._known:
            self._known[key] = replace(launch, waits=True, outstanding=outstanding)
        return self._known[key]

    def _communication(self, kind: str, unit: Unit, name: str) -> tuple[Launch, ...]:
        elements = unit.elements if kind == "all_gather" else unit.reduced
        key = (kind, elements, unit.expert_elements, name)
        if key not in self._operators:
            own = self._make(kind, elements, unit.gathered_bytes, name, self.sharding)
            if self.sharding.experts is not None and unit.expert_elements:
                size = unit.expert_elements, unit.expert_bytes
                own += self._make(kind, *size, f"{name}.experts", self.sharding.experts)
            self._operators[key] = own
        return self._operators[key]

    def _make(self, kind: str, elements: int, gathered: float, name: str, s: Sharding) -> tuple[Launch, ...]:
        """One communication of parameters that are sharded alike; none where each of their ranks has them whole."""
        of, gathers = self.implementation, kind == "all_gather"
        dtype = of.dtype if gathers else of.gradient_dtype
        size = gathered if gathers else float(elements * DTYPE_BYTES[dtype])
        steps = []
        if s.members > 1:
            engine = by_copy_engines(kind, s.fabric, of)
            whole = placed(among_replicas(kind, size, s.members, dtype, f"{name}.{kind}", of), s.fabric)
            steps.append(_launch(replace(whole, copy_engine=engine), s, of))
        if kind == "reduce_scatter" and s.replicas > 1:
            rest = among_replicas("all_reduce", size / s.members, s.replicas, dtype, f"{name}.all_reduce", of)
            steps.append(_launch(placed(rest, s.replica_fabric or Fabric()), s, of))
        return tuple(steps)


def _widening(narrow: str, wide: str) -> float:
    return DTYPE_BYTES[wide] / DTYPE_BYTES[narrow]


def _launch(operator: Collective, s: Sharding, of: Implementation) -> Launch:
    return Launch(operator, stream="communication", waits=not s.prefetch, prompt=of.comm_first)
