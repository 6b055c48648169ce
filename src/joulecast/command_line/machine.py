"""What is installed on this machine, which cards it has, and what can be done here, as plain data."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import joulecast
from joulecast.command_line import output
from joulecast.errors import DeviceError, MeasurementError

#: Distribution, the extra that installs it ("" = always needed), and what it is for.
PACKAGES = (
    ("numpy", "", "everything"),
    ("pydantic", "", "reading files"),
    ("pyyaml", "", "jobs that are configured in YAML"),
    ("typer", "", "the command line"),
    ("rich", "", "tables on a terminal"),
    ("simpy", "", "the simulator"),
    ("scipy", "fit", "fitting descriptions"),
    ("pandas", "fit", "to_frame()"),
    ("tomlkit", "fit", "writing descriptions"),
    ("numba", "fast", "evaluating many plans"),
    ("matplotlib", "plot", "figures"),
    ("pyarrow", "parquet", "Parquet files"),
    ("distributed", "dask", "sweeps over many machines"),
    ("torch", "torch", "measuring kernels on a GPU"),
    ("triton", "torch", "measuring kernels with given tiles"),
    ("nvidia-ml-py", "nvml", "reading NVIDIA GPUs"),
    ("amdsmi", "amd", "reading AMD GPUs"),
)

#: How long each card is watched [s]: a dozen steps of a slow energy counter.
WATCH_S = 1.3


def examine(devices: Sequence[str] | None) -> dict[str, Any]:
    """Everything that the command reports, as plain data; ``devices`` are the cards to examine, ``None``: all."""
    packages = [
        {"package": name, "version": version(name), "extra": extra or "required", "for": use}
        for name, extra, use in PACKAGES
    ]
    present = {name for name, _, _ in PACKAGES if version(name)}
    nvidia, amd = _guarded(nvidia_devices), _guarded(amd_devices)
    nvidia["nvidia_smi"] = shutil.which("nvidia-smi")
    found = [f"{kind}:{i}" for kind, those in (("nvml", nvidia), ("amd", amd)) for i in range(len(those["devices"]))]
    cards = examine_cards(found if devices is None else devices)
    return {
        "joulecast": joulecast.__version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        "packages": packages,
        "nvidia": nvidia,
        "amd": amd,
        "cards": cards,
        "libraries": _libraries() if cards and "torch" in present else {},
        "catalogue": catalogue(),
        "can": abilities(present, cards),
    }


def examine_cards(words: Sequence[str]) -> list[dict[str, Any]]:
    """Cards as plain data: facts, sensors, and what is wrong with each; every one is watched for a moment."""
    if not words:
        return []
    from dataclasses import asdict

    from joulecast.calibrate.devices import locator_of
    from joulecast.calibrate.devices.checks import examine_at

    cards = []
    for word in words:
        output.progress(f"examining {word}")
        try:
            examination = examine_at(locator_of(word), WATCH_S)
        except DeviceError as error:
            finding = {"code": "no-gpu", "severity": "error", "message": error.message, "remedy": error.remedy}
            cards.append({"locator": word, "fit": False, "facts": None, "sensors": {}, "findings": [finding]})
            continue
        facts = None if examination.facts is None else asdict(examination.facts)
        if facts is not None:
            clocks = facts.pop("sm_clocks_mhz")
            facts["lockable_clocks"] = len(clocks)
            facts["min_sm_clock_mhz"] = min(clocks, default=None)
        cards.append(
            {
                "locator": word if facts is None else facts["locator"],
                "fit": examination.fit,
                "facts": facts,
                "sensors": {
                    "readings": dict(examination.readings),
                    "energy_counter_step_s": examination.step_s,
                    "counter_power_w": examination.counter_power_w,
                    "polled_power_w": examination.polled_power_w,
                    "reading_s": examination.call_s,
                },
                "findings": [asdict(finding) for finding in examination.findings],
            }
        )
    return cards


def host_launch_us() -> tuple[float, float, float]:
    """Time of this host for each kernel that PyTorch launches: mean, shortest and longest reading [us].

    Raises
    ------
    MeasurementError
        PyTorch is missing, or sees no GPU.
    """
    from joulecast.calibrate.microbenchmarks.host_pace import host_launches_s
    from joulecast.calibrate.microbenchmarks.torch_backend import in_words, load_torch

    torch = load_torch()
    if not torch.cuda.is_available():
        raise MeasurementError("PyTorch sees no GPU to launch kernels on", remedy="Leave out --host.")
    with in_words(torch, "a small model"):
        readings = host_launches_s(torch, torch.device("cuda"))
    return 1e6 * sum(readings) / len(readings), 1e6 * min(readings), 1e6 * max(readings)


def version(distribution: str) -> str | None:
    """Installed version, ``None`` where the package is missing; the package is not imported."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def nvidia_devices() -> dict[str, Any]:
    """Driver and GPUs as NVML reports them."""
    import pynvml

    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return {
            "driver": str(pynvml.nvmlSystemGetDriverVersion()),
            "devices": [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles],
        }
    finally:
        pynvml.nvmlShutdown()


def amd_devices() -> dict[str, Any]:
    """GPUs as AMD SMI reports them."""
    from joulecast.calibrate.devices.amd_binding import AmdSmi

    smi = AmdSmi()
    try:
        handles = smi.lib.amdsmi_get_processor_handles()
        names = [str(smi.lib.amdsmi_get_gpu_asic_info(handle)["market_name"]) for handle in handles]
        return {"driver": str(smi.lib.amdsmi_get_gpu_driver_info(handles[0])["driver_version"]), "devices": names}
    finally:
        smi.shut_down()


def catalogue() -> str:
    """How many GPUs and models there are, and what is wrong with others that packages add."""
    from joulecast.model.architecture.hf import model_names
    from joulecast.model.hardware.catalogue import all_gpus

    names, broken = all_gpus()
    return "; ".join([f"{len(names)} GPUs, {len(model_names())} models", *map(str, broken)])


def abilities(present: set[str], cards: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What can be done here, and what is missing for the rest."""
    fit = {"scipy", "tomlkit", "pandas"} - present
    measure = _why_not_measure(present, cards)
    tiles = "triton" in present or _simulated(cards)
    fitting = 'no: pip install "joulecast[fit]"'
    return {
        "predict, gpus, models": "yes",
        "to_frame()": "yes" if "pandas" in present else fitting,
        "calibrate --rows, --replay, validate with a fit": fitting if fit else "yes",
        "evaluate many plans fast": "yes" if "numba" in present else 'slower: pip install "joulecast[fast]"',
        "--report": "yes",
        "plot": "yes" if "matplotlib" in present else 'no: pip install "joulecast[plot]"',
        "calibrate --passive": measure or (fitting if fit else "yes"),
        "calibrate --active": measure or _why_not_set(cards) or (fitting if fit else "yes, after asking"),
        "measure kernels with given tiles": measure or ("yes" if tiles else "no: triton is missing"),
        "measure energy by component": measure or _components(cards),
        "measure collectives": measure or ("yes" if len(cards) > 1 else "no: it takes two GPUs"),
    }


def _why_not_measure(present: set[str], cards: Sequence[Mapping[str, Any]]) -> str:
    if not cards:
        return "no: no GPU is reachable"
    if not any(card["fit"] for card in cards):
        errors = [f["message"] for card in cards for f in card["findings"] if f["severity"] == "error"]
        return f"no: {errors[0]}"
    return "" if "torch" in present or _simulated(cards) else 'no: pip install "joulecast[torch]"'


def _simulated(cards: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all cards are simulated, which run microbenchmarks without PyTorch."""
    return all(str(card["locator"]).startswith("sim:") for card in cards)


def _why_not_set(cards: Sequence[Mapping[str, Any]]) -> str:
    able = [card["facts"] for card in cards if card["facts"]]
    if any(facts["may_set_clocks"] for facts in able):
        return ""
    if any(facts["may_set_power_limit"] for facts in able):
        return "power limits only: this user, or this card, has no clocks to lock"
    return "no: it needs an administrator (in a container, the capability SYS_ADMIN)"


def _components(cards: Sequence[Mapping[str, Any]]) -> str:
    names = sorted({name for card in cards if card["facts"] for name in card["facts"]["components"]})
    return f"yes: {', '.join(names)}" if names else "no: the sensors speak of the whole card only"


def _libraries() -> dict[str, str]:
    """What PyTorch was built with; importing it takes seconds."""
    from joulecast.calibrate.measure.recording import software_versions

    # A broken installation of PyTorch fails in many ways; the packages above already say which version it is.
    try:
        return {name: found for name, found in software_versions().items() if name in ("cuda", "hip", "cudnn", "nccl")}
    except Exception as error:  # noqa: BLE001
        return {"import": f"{type(error).__name__}: {error}"}


def _guarded(probe: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    from joulecast.extras import missing_package

    # Vendor bindings fail in many ways where their driver is missing: ImportError, OSError for the shared library,
    # their own error classes, and for amdsmi a KeyError at import without ROCm. None of these may stop a diagnosis.
    try:
        return {**probe(), "problem": None}
    except DeviceError as error:
        problem = f"{error.message}. {error.remedy}"
    except Exception as error:  # noqa: BLE001
        missing = missing_package(error) if isinstance(error, ModuleNotFoundError) else None
        problem = f"{type(error).__name__}: {error}" if missing is None else f"{missing.message}. {missing.remedy}"
    return {"driver": None, "devices": [], "problem": problem}
