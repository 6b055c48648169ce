"""Shared fixtures."""

import gc
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from fake_nvml import FakeNvml
from hypothesis import HealthCheck, settings
from paths import EXAMPLES, ROOT, SHARED_DATA
from plan_tables import changed

from joulecast.threads import use_one_thread

use_one_thread()

from joulecast.model.hardware.catalogue import load_gpu  # noqa: E402
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model  # noqa: E402

#: How long an input takes depends on what else the machine does.
settings.register_profile("project", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")
#: For `make slow`: 10,000 damaged files of every format.
settings.register_profile("long", max_examples=10_000, print_blob=True)
#: For `benchmarks/mutations.py`: the same inputs with and without a mutation.
settings.register_profile("mutations", derandomize=True, database=None, deadline=None)
#: What takes longest starts first: started last, one file would keep one of two processes busy while the other rests.
#: Of the files on fronts one is first, so that the others find the compiled loops that it leaves behind.
LONGEST_FIRST = (
    *("sessions_live", "front_cli", "validate_clock_suites", "power_profile_limited", "sweep_files", "front_plans"),
    *(
        "measure_sampler",
        "guardian",
        "plan_keys",
        "docs",
        "cli_calibrate",
        "a100_overlap",
        "properties",
        "front_profile",
    ),
    *("cli_profile", "sessions_other_cards", "sessions_design", "rank_limits", "plot", "forecasts_stand", "reports"),
    *("front_forecast", "published", "power_profile_sensors", "terminal", "closed_form", "reports_browser", "typed"),
    *("sweep_workers", "regenerate", "perseus", "public_times", "power_profile_accuracy", "sweep", "packaging"),
    *("kernel_timeline", "forecast_rules", "recorded_validation", "from_rows", "overlap_plans", "iteration_trace"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put :data:`LONGEST_FIRST` first."""
    place = {f"test_{name}.py": number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


def pytest_collection_finish() -> None:
    """Keep thousands of tests out of every search for garbage: it took a tenth of their time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what became of damaged files, whichever process read them."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    damaged = [v for r in reports if getattr(r, "when", "") == "call" for k, v in r.user_properties if k == "damaged"]
    outcomes = sum(map(Counter, damaged), Counter())
    if outcomes:
        told = ", ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()))
        terminalreporter.write_line(f"{outcomes.total()} damaged files of {len(damaged)} formats: {told}")


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def examples() -> Path:
    """The example plans."""
    return EXAMPLES


@pytest.fixture(scope="session")
def data() -> Path:
    """The measured rows, which lie beside the repository and are not part of it."""
    folder = SHARED_DATA
    if not folder.is_dir():
        pytest.skip(f"no measured data in {folder}")
    return folder


@pytest.fixture(scope="session")
def h200() -> GpuModel:
    """The numbers of the shipped H200, without uncertainty."""
    return replace(gpu_model(load_gpu("h200-sxm-rows")), description=None)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """A fake binding of NVML in place of the real one."""
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


@pytest.fixture(scope="session")
def calls_of() -> Callable[[Callable[[], object]], int]:
    """Calls that some work makes, of Python's functions and of compiled ones: the same on a machine that is busy."""

    def count(work: Callable[[], object]) -> int:
        calls = 0

        def seen(frame: FrameType, event: str, argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(seen)
        try:
            work()
        finally:
            sys.setprofile(before)
        return calls

    return count


@pytest.fixture(scope="session")
def tables() -> Callable[..., dict[str, dict[str, Any]]]:
    """Tables of a small SPACE.toml; ``table__key=value`` changes a key, ``None`` removes it."""

    def make(**changes: Any) -> dict[str, dict[str, Any]]:
        whole: dict[str, dict[str, Any]] = {
            "workload": {"model": "llama-3.2-1b", "sequence_length": 2048, "global_batch_size": 16},
            "cluster": {"gpu": "h200-sxm", "gpus": 8},
            "parallelism": {},
            "schedule": {},
            "implementation": {"framework": "megatron", "cuda_graphs": True},
            "power": {},
            "constraints": {},
            "objective": {"top": 0},
        }
        return changed(whole, changes)

    return make
