"""Nano-batches: a micro-batch in parts without dependency, the communication of one beside the computation of another.

Tensor parallelism stands still while it communicates, as the next operator needs the result. Cut into parts between its
sequences, a micro-batch has other work meanwhile (Domino: Wang et al., 2024). Every part is the same list of launches.
It is cut into blocks where its computation waits for communication, and the blocks of all parts take turns: the first
of every part, the second of every part, and so on across the borders of layers,

    attention₀ ⟨reduce₀⟩ attention₁ ⟨reduce₁⟩ MLP₀ ⟨reduce₀⟩ MLP₁ ⟨reduce₁⟩ next layer's attention₀ …

where each communication runs beside the block behind it, and only the block that needs its result waits for it. A
window narrows that: communication runs beside some operators of the block only, and what follows them waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import zip_longest
from typing import Literal

from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Framework, Implementation
from joulecast.model.framework.launch_shares import shares
from joulecast.model.framework.launches import Launch, streaming
from joulecast.model.framework.layer_shard import shard
from joulecast.model.kernels.operators import Collective
from joulecast.model.training.step import layer_backward, layer_forward

HALVES = ("attention", "mlp")
#: When communication of a window is issued: as soon as it can be, or before the window.
LaunchPoint = Literal["asap", "window"]

#: Operators of the attention half; any other is one of the MLP half.
_ATTENTION = (
    *("norm1", "norm1_after", "qkv", "query_norm", "key_norm", "rotary", "attention", "output", "residual2"),
    *("query_down", "query_up", "key_down", "key_up", "key", "latent"),
)
#: Share of a pass's largest communication below which one is waited for where it stands.
NEXT_TO_NOTHING = 0.01
#: Ends of the names of additions that join the residual stream's gradient: of no half.
_JOINS = (".grad.join", ".grad.leaf")


@dataclass(frozen=True, slots=True)
class Window:
    """Operators of half a layer beside which communication may run.

    Attributes
    ----------
    half
        ``attention`` or ``mlp``.
    operators
        Names as :func:`operators_of_half` gives them, in the forward's order. In the backward the gradients of the same
        operators count.
    """

    half: str
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Nanobatches:
    """How a micro-batch is cut and when its communication runs.

    Attributes
    ----------
    parts
        Number of parts; 1 leaves the micro-batch whole.
    windows
        At most one for each half; a half without one is a window as a whole.
    launch
        When a communication is issued: ``asap``, as soon as its input is ready, or ``window``, before the first
        operator of the window of the block behind it. Either way what follows the window's last operator waits for it.
    shared
        The parts stand for different micro-batches that take turns: layers with experts are shares of whole ones
        (:mod:`joulecast.model.framework.launch_shares`), others stay as they are.
    """

    parts: int = 1
    windows: tuple[Window, ...] = ()
    launch: str = "asap"
    shared: bool = False


@lru_cache(maxsize=64)
def operators_of_half(config: ModelConfig, framework: Framework, half: str) -> tuple[str, ...]:
    """Names of the operators of half a layer's forward, in order.

    A half begins with the residual addition before its norm, which waits for the other half's communication: the
    attention half's is ``residual2`` of the layer before.
    """
    launched = (operator_of(launch) for launch in layer_forward(config, Implementation(framework=framework), 1, 1))
    names = [name for name in dict.fromkeys(launched) if half_of(name) == half]
    return tuple(sorted(names, key=lambda name: name != "residual2"))


def half_of(operator: str) -> str:
    """Half of the layer that an operator belongs to."""
    return "attention" if operator in _ATTENTION else "mlp"


def operator_of(launch: Launch) -> str:
    """Operator that a kernel is part of, forward or backward; empty for the joining of residual gradients."""
    name = launch.operator.name
    return "" if name.endswith(_JOINS) else name.partition(".")[0]


@lru_cache(maxsize=128)
def layers_forward(
    config: ModelConfig, implementation: Implementation, batch: int, sequence: int, layers: int, cut: Nanobatches
) -> tuple[Launch, ...]:
    """Forward of a stack of layers for one micro-batch; parts are views of its input, their outputs copied together.

    ``cut.parts`` must divide ``batch``.
    """
    return _stack(layer_forward, (config, implementation, batch, sequence), layers, cut, "parts.cat")


@lru_cache(maxsize=128)
def layers_backward(
    config: ModelConfig, implementation: Implementation, batch: int, sequence: int, layers: int, cut: Nanobatches
) -> tuple[Launch, ...]:
    """Backward of a stack of layers for one micro-batch; every part accumulates its own weight gradients."""
    return _stack(layer_backward, (config, implementation, batch, sequence), layers, cut, "parts.grad.cat")


def _stack(
    layer: Callable[[ModelConfig, Implementation, int, int], tuple[Launch, ...]],
    size: tuple[ModelConfig, Implementation, int, int],
    layers: int,
    cut: Nanobatches,
    joined: str,
) -> tuple[Launch, ...]:
    """Layers of a micro-batch in parts; where micro-batches take turns, shares of those with experts, others whole."""
    config, implementation, batch, sequence = size
    if cut.shared or cut.parts == 1 or not layers:
        one = layer(*size)
        takes_turns = cut.shared and config.experts is not None and layers
        return take_turns(shares(one, cut.parts) * layers, cut) if takes_turns else one * layers
    s = shard(*size)
    copy = streaming("cat", joined, s.stream_values, dtype=s.dtype)
    part = layer(config, implementation, batch // cut.parts, sequence) * layers
    return (*take_turns(part, cut), replace(copy, waits=True))


def take_turns(part: Sequence[Launch], cut: Nanobatches) -> tuple[Launch, ...]:
    """Launches of all parts of a micro-batch, block by block.

    Parameters
    ----------
    part
        Launches of one part; all parts do the same.

    Returns
    -------
    As many kernels and communications of each kind as ``cut.parts`` times ``part``, none of the communications
    synchronous. A parameter's gradient is complete when the last part has added to it.
    """
    turns = _Turns(cut)
    for block in _blocks(part):
        extent = _extent([one.launch for one in block], cut.windows)
        for number in range(cut.parts):
            turns.take(number, block, extent)
    return turns.finish()


def in_turns(first: Sequence[Launch], second: Sequence[Launch]) -> tuple[Launch, ...]:
    """Launches of two passes that do not need each other, block by block: a backward first, then a forward.

    Each waits for its own communication alone, which runs beside the other's block (DeepSeek-V3, arXiv 2412.19437,
    figure 4: tokens are dispatched beside the experts' backward, and combined beside the attention's). Communication
    of next to nothing, such as of the experts' numbers of rows, is waited for where it stands.
    """
    turns = _Turns(Nanobatches(2))
    for blocks in zip_longest(_long_blocks(first), _long_blocks(second), fillvalue=()):
        for number, block in enumerate(blocks):
            turns.take(1 - number, block, None)
    return turns.finish()


@dataclass(frozen=True, slots=True)
class _Step:
    """A launch of one part, and the communication of that part, by number, that must have ended before it; −1 none."""

    launch: Launch
    needs: int = -1


def _blocks(part: Sequence[Launch]) -> Iterator[list[_Step]]:
    """Cut a part before every kernel that waits for communication."""
    block: list[_Step] = []
    issued, due, waited = 0, -1, -1
    for launch in part:
        if launch.stream == "communication":
            block.append(_Step(launch))
            due = issued if launch.waits else due
            issued += 1
            continue
        needs = max(due, issued - 1 - launch.outstanding if launch.waits else -1)
        if needs <= waited:
            block.append(_Step(launch))
            continue
        if block:
            yield block
        block, waited = [_Step(launch, needs)], needs
    yield block


def _long_blocks(part: Sequence[Launch]) -> list[list[_Step]]:
    """Blocks that end with communication worth to be hidden."""
    blocks = list(_blocks(part))
    moved = [max((_bytes_of(step.launch) for step in block), default=0.0) for block in blocks]
    joined: list[list[_Step]] = []
    ended = True
    for block, size in zip(blocks, moved, strict=True):
        if ended:
            joined.append(list(block))
        else:
            joined[-1] += block
        ended = size > NEXT_TO_NOTHING * max(moved)
    return joined


def _bytes_of(launch: Launch) -> float:
    return launch.operator.bytes if isinstance(launch.operator, Collective) else 0.0


def _extent(block: Sequence[Launch], windows: Sequence[Window]) -> tuple[int, int] | None:
    """First and last place of a block inside its half's window; ``None`` where no window narrows it."""
    named = [operator_of(launch) if launch.stream == "compute" else "" for launch in block]
    last = next((name for name in reversed(named) if name), "")
    for window in windows:
        if last and window.half == half_of(last):
            inside = [i for i, name in enumerate(named) if name in window.operators]
            return (inside[0], inside[-1]) if inside else None
    return None


class _Turns:
    """Launches under construction: what has been issued, and which communication waits to be."""

    def __init__(self, cut: Nanobatches) -> None:
        self.cut = cut
        self.out: list[Launch] = []
        self.communications = 0  # issued so far
        self.place: dict[tuple[int, int], int] = {}  # of a part's communication on the communication stream
        self.held: list[tuple[int, Launch]] = []
        self.count = [0] * cut.parts  # communications of each part so far
        self.waited = -1
        self.deadline = -1  # communication that the next kernel waits for since a window has closed
        self.issued: dict[tuple[int, int], Launch] = {}

    def take(self, number: int, block: Sequence[_Step], extent: tuple[int, int] | None) -> None:
        """Issue a block of part ``number``; communication of earlier blocks runs beside ``extent`` of it."""
        first, last = extent or (0, len(block))
        earlier = self.communications + len(self.held) - 1
        for at, step in enumerate(block):
            if at == first:
                self._issue_held()
            if step.launch.stream == "communication":
                self.held.append((number, step.launch))
                if self.cut.launch == "asap":
                    self._issue_held()
            else:
                self._compute(number, step)
            if at == last:
                self.deadline = earlier

    def finish(self) -> tuple[Launch, ...]:
        """Everything issued."""
        self._issue_held()
        return tuple(self.out)

    def _issue_held(self) -> None:
        for number, launch in self.held:
            self.place[number, self.count[number]] = self.communications
            self.count[number] += 1
            self.communications += 1
            self.out.append(self._once(launch, 0, lambda one: replace(one, waits=False)))
        self.held.clear()

    def _compute(self, number: int, step: _Step) -> None:
        needs = max(self.place[number, step.needs] if step.needs >= 0 else -1, self.deadline)
        waits = needs > self.waited
        self.waited = max(self.waited, needs)
        outstanding = self.communications - 1 - needs if waits else 0
        complete = number == self.cut.parts - 1

        def placed(launch: Launch) -> Launch:
            completes = launch.completes if complete else ""
            return replace(launch, waits=waits, outstanding=outstanding, completes=completes)

        self.out.append(self._once(step.launch, 4 * outstanding + 2 * waits + complete, placed))

    def _once(self, launch: Launch, how: int, made: Callable[[Launch], Launch]) -> Launch:
        """The same object for the same launch in every layer."""
        key = (id(launch), how)
        if key not in self.issued:
            self.issued[key] = made(launch)
        return self.issued[key]
