"""Opens the bench on which the kernels that a user names run: a simulated card, or PyTorch on a real one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from joulecast.calibrate.devices import locator_of, open_device
from joulecast.calibrate.devices.checks import examine
from joulecast.calibrate.devices.findings import Code
from joulecast.calibrate.devices.protocol import CardFacts
from joulecast.calibrate.devices.simulated import SimulatedCard
from joulecast.calibrate.microbenchmarks.catalogue import footprint_bytes
from joulecast.calibrate.microbenchmarks.protocol import Microbenchmark
from joulecast.calibrate.microbenchmarks.torch_backend import torch_index
from joulecast.calibrate.power_profile.card_bench import CardBench
from joulecast.calibrate.power_profile.kernels import kernel_benchmark
from joulecast.calibrate.power_profile.poller import Poller
from joulecast.calibrate.power_profile.protocol import Bench
from joulecast.calibrate.power_profile.torch_bench import TorchBench
from joulecast.errors import InputError

#: Faults of one sensor that a profile can do without: it learns of each sensor whether and how it moves.
BEARABLE = frozenset(
    {
        Code.COUNTER_STILL,
        Code.COUNTER_BACKWARD,
        Code.COUNTER_WRONG,
        Code.NO_CLOCK,
        Code.NO_COUNTER,
        Code.NO_READINGS,
    }
)


def _check_memory(word: str, benchmark: Microbenchmark, facts: CardFacts) -> None:
    """Refuse a kernel that the card cannot hold, before anybody waits for it."""
    need, memory = footprint_bytes(benchmark.row), facts.memory_bytes
    if memory is not None and need > memory:
        raise InputError(
            f"{word} takes {need / 1e9:.3g} GB, and {facts.name} has {memory / 1e9:.3g}",
            key="KERNEL",
            remedy="Give a smaller one.",
        )


def open_bench(kernels: Sequence[str], device: str, say: Callable[[str], None]) -> tuple[Bench, str]:
    """A bench for kernels on a card that was found fit, and the card's name.

    Parameters
    ----------
    kernels
        See :func:`~joulecast.calibrate.power_profile.kernels.kernel_benchmark`.
    device
        Index of a GPU, or a locator such as ``sim:FILE``.
    say
        Prints a line for people: what is odd about the card.

    Raises
    ------
    InputError
        A kernel that is not known, or a card that cannot run any.
    DeviceError
        The card, its driver or the package that talks to it is missing, or the card is not fit: others work on it, it
        is too hot, or partitioned.
    MeasurementError
        A kernel cannot run there.
    """
    benchmarks = [kernel_benchmark(word) for word in kernels]
    locator = locator_of(device)
    if locator.startswith("replay:"):
        raise InputError("a recording runs no kernels", key="--device", remedy="Profile a GPU or a simulated card.")
    card = open_device(locator)
    try:
        for word, benchmark in zip(kernels, benchmarks, strict=True):
            _check_memory(word, benchmark, card.facts)
        examine(card).demand_fit(say, bearable=BEARABLE)
        if isinstance(card, SimulatedCard):
            return CardBench(benchmarks, card), card.facts.name
        where = f"cuda:{torch_index(card)}"
    except BaseException:
        card.close()
        raise
    card.close()
    log = Poller(locator)
    try:
        return TorchBench(benchmarks, where, log, card.facts.power_limit_w), card.facts.name
    except BaseException:
        log.close()
        raise
