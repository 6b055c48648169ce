"""The clock that SMs ran at: its arithmetic, and when a runner counts it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from joulecast.calibrate.microbenchmarks import clock_counter
from joulecast.calibrate.microbenchmarks.clock_counter import ClockCounter, clock_counter_for, counted_mhz

GPU = SimpleNamespace(type="cuda")


def stamps(*rows: tuple[int, int]) -> np.ndarray:
    return np.array(rows, dtype=np.int64)


def test_cycles_over_time_of_the_same_sm() -> None:
    """Two SMs whose counters began at different times, at 1.8 and 1.7 GHz for a second."""
    first = stamps((10**18, 5), (10**18 + 40, 7 * 10**12))
    last = first + stamps((10**9, 1_800_000_000), (10**9, 1_700_000_000))
    assert counted_mhz(first, last) == pytest.approx(1750.0, rel=1e-12)


def test_only_sms_that_both_stamps_saw_count() -> None:
    first = stamps((100, 100), (0, 0), (100, 100), (0, 0))
    last = stamps((1100, 1600), (1100, 9100), (0, 0), (0, 0))
    assert counted_mhz(first, last) == pytest.approx(1500.0)
    assert counted_mhz(first[1:], last[1:]) is None
    assert counted_mhz(first[:0], last[:0]) is None


@pytest.mark.parametrize("last", [(100, 1600), (90, 1600), (1100, 100), (1100, 90)])
def test_a_time_or_counter_that_does_not_rise_tells_nothing(last: tuple[int, int]) -> None:
    good = (1100, 1600)
    assert counted_mhz(stamps((100, 100), (100, 100)), stamps(good, good)) == pytest.approx(1500.0)
    assert counted_mhz(stamps((100, 100), (100, 100)), stamps(good, last)) is None


def fake_torch(hip: str | None = None) -> Any:
    return SimpleNamespace(
        version=SimpleNamespace(hip=hip),
        cuda=SimpleNamespace(get_device_properties=lambda _: SimpleNamespace(multi_processor_count=132)),
    )


def test_where_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(clock_counter, "ClockCounter", lambda *rest: made.append(rest) or "a counter")
    monkeypatch.setattr(clock_counter, "compiled", lambda _: None)
    assert clock_counter_for(fake_torch(), GPU) == "a counter" and len(made) == 1
    assert clock_counter_for(fake_torch(), SimpleNamespace(type="cpu")) is None
    assert clock_counter_for(fake_torch(hip="6.4"), GPU) is None
    assert len(made) == 1


@pytest.mark.parametrize(
    "error", [ImportError("no module named triton"), RuntimeError("no C compiler"), KeyError("sm")]
)
def test_without_a_compiler_nothing_is_counted(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(clock_counter, "compiled", fail)
    assert clock_counter_for(fake_torch(), GPU) is None


def test_the_kernel_is_launched_once_on_every_sm(monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[tuple[Any, ...]] = []

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *arguments, **options: launches.append((grid, *arguments, options))

    monkeypatch.setattr(clock_counter, "compiled", lambda _: Kernel())
    monkeypatch.setattr(clock_counter, "ClockCounter", lambda torch, device, stamp: stamp("where"))
    clock_counter_for(fake_torch(), GPU)
    assert launches == [((132,), "where", {"num_warps": 1})]


class FakeCard:
    """SMs at 1.5 GHz, a second between two stamps; ``sees`` are the SMs that the next stamps reach."""

    def __init__(self) -> None:
        self.stamped, self.sees = 0, slice(0, 132)

    def stamp(self, where: Any) -> None:
        self.stamped += 1
        where[self.sees, 0], where[self.sees, 1] = self.stamped * 10**9, self.stamped * 1_500_000_000


def test_a_counter_is_warm_and_forgets_older_stamps() -> None:
    torch = pytest.importorskip("torch")
    card = FakeCard()
    counter = ClockCounter(torch, torch.device("cpu"), card.stamp)
    assert card.stamped == 2
    counter.begin()
    assert counter.end() == pytest.approx(1500.0)
    counter.begin()
    card.sees = slice(10, 20)  # what the others showed at the last end is before this begin
    assert counter.end() == pytest.approx(1500.0)
    card.sees = slice(0, 10)
    counter.begin()
    card.sees = slice(10, 20)
    assert counter.end() is None


class FakeCounter:
    """Tells 1700, 1701, … MHz, and when it was called."""

    def __init__(self, events: list[str]) -> None:
        self.events, self.told = events, iter(range(1700, 1800))

    def begin(self) -> None:
        self.events.append("begin")

    def end(self) -> float:
        self.events.append("end")
        return float(next(self.told))


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened in runners that have a fake counter."""
    pytest.importorskip("torch")
    from joulecast.calibrate.microbenchmarks import torch_runner

    found: list[str] = []
    monkeypatch.setattr(torch_runner, "clock_counter_for", lambda torch, device: FakeCounter(found))
    return found


def prepared(row: dict[str, Any]) -> Any:
    from joulecast.calibrate.microbenchmarks.protocol import Microbenchmark
    from joulecast.calibrate.microbenchmarks.torch_runner import TorchRunner

    return TorchRunner("cpu").prepare(Microbenchmark("x", row, "stratum"))


PRODUCT = {"op": "gemm", "M": 64, "N": 64, "K": 64, "dtype": "bf16"}


def test_a_runner_on_a_cpu_counts_nothing() -> None:
    pytest.importorskip("torch")
    load = prepared(PRODUCT)
    assert load.counted_clock_mhz is None
    load.run(0.002)
    assert load.counted_clock_mhz is None


def test_every_run_is_stamped_around_its_work(events: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    load = prepared(PRODUCT)
    assert load.counted_clock_mhz is None and not events
    real = load._runs.run
    monkeypatch.setattr(load._runs, "run", lambda duration_s: events.append("work") or real(duration_s))
    assert load.run(0.002)[0] >= 1
    assert (load.counted_clock_mhz, events) == (1700.0, ["begin", "work", "end"])
    load.run(0.002)
    assert load.counted_clock_mhz == 1701.0 and events[3:] == ["begin", "work", "end"]


def test_a_run_that_fails_has_no_clock(events: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from joulecast.errors import MeasurementError

    load = prepared(PRODUCT)
    load.run(0.002)

    def fail(duration_s: float) -> None:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(load._runs, "run", fail)
    with pytest.raises(MeasurementError, match="CUDA error"):
        load.run(0.002)
    assert load.counted_clock_mhz is None


@pytest.mark.parametrize(
    "row",
    [
        {"op": "idle"},
        {"op": "duty", "duty": 0.5},
        {**PRODUCT, "op": "pulse", "busy_s": 0.001, "idle_s": 0.001},
        {**PRODUCT, "companion": "none"},
    ],
    ids=["idle", "duty", "pulse", "beside"],
)
def test_pauses_and_company_are_not_counted(events: list[str], row: dict[str, Any]) -> None:
    load = prepared(row)
    load.run(0.002)
    assert load.counted_clock_mhz is None and not events
