"""``joulecast doctor``: what this machine can and cannot do."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

import typer

import joulecast
from joulecast import output

#: Distribution, the extra that installs it ("" = always needed), and what it is for.
PACKAGES = (
    ("numpy", "", "everything"),
    ("pydantic", "", "reading files"),
    ("typer", "", "the command line"),
    ("rich", "", "tables on a terminal"),
    ("simpy", "", "the simulator"),
    ("scipy", "fit", "fitting descriptions"),
    ("pandas", "fit", "to_frame()"),
    ("tomlkit", "fit", "writing descriptions"),
    ("numba", "fast", "evaluating many plans"),
    ("torch", "torch", "measuring kernels on a GPU"),
    ("nvidia-ml-py", "nvml", "reading NVIDIA GPUs"),
    ("amdsmi", "amd", "reading AMD GPUs"),
)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("doctor")(doctor)


def doctor(json: output.JsonOption = False) -> None:
    """Report versions, GPUs, data and what can be done here."""
    report = examine()
    if json:
        output.print_json(report)
        return
    output.print_pairs([("joulecast", report["joulecast"]), ("python", report["python"]), ("system", report["system"])])
    print()
    output.print_table(report["packages"])
    print()
    output.print_pairs(
        [
            ("NVIDIA GPUs", _devices_line(report["nvidia"])),
            ("nvidia-smi", report["nvidia"]["nvidia_smi"] or "not found"),
            ("AMD GPUs", _devices_line(report["amd"])),
            ("catalogue", report["catalogue"]),
        ]
    )
    print()
    output.print_pairs((action, answer) for action, answer in report["can"].items())


def examine() -> dict[str, Any]:
    """Everything that the command reports, as plain data."""
    packages = [
        {"package": name, "version": version(name), "extra": extra or "required", "for": use}
        for name, extra, use in PACKAGES
    ]
    present = {name for name, _, _ in PACKAGES if version(name)}
    nvidia, amd = _guarded(nvidia_devices), _guarded(amd_devices)
    nvidia["nvidia_smi"] = shutil.which("nvidia-smi")
    return {
        "joulecast": joulecast.__version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        "packages": packages,
        "nvidia": nvidia,
        "amd": amd,
        "catalogue": catalogue(),
        "can": abilities(present),
    }


def version(distribution: str) -> str | None:
    """Installed version, ``None`` where the package is missing; nothing is imported."""
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
    import amdsmi

    amdsmi.amdsmi_init()
    try:
        handles = amdsmi.amdsmi_get_processor_handles()
        names = [str(amdsmi.amdsmi_get_gpu_asic_info(handle)["market_name"]) for handle in handles]
        return {"driver": str(amdsmi.amdsmi_get_gpu_driver_info(handles[0])["driver_version"]), "devices": names}
    finally:
        amdsmi.amdsmi_shut_down()


def catalogue() -> str:
    """How many GPUs and models are shipped."""
    from joulecast.model.catalogue import gpu_names
    from joulecast.model.hf import model_names

    return f"{len(gpu_names())} GPUs, {len(model_names())} models"


def abilities(present: set[str]) -> dict[str, str]:
    """What can be done here, and what is missing for the rest."""
    fit = {"scipy", "tomlkit", "pandas"} - present
    return {
        "predict, gpus, models": "yes",
        "to_frame()": "yes" if "pandas" in present else 'no: pip install "joulecast[fit]"',
        "calibrate --rows, validate with a fit": "yes" if not fit else 'no: pip install "joulecast[fit]"',
        "evaluate many plans fast": "yes" if "numba" in present else 'slower: pip install "joulecast[fast]"',
        "measure on a GPU": "not yet in this version",
    }


def _guarded(probe: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    # Vendor bindings fail in many ways where their driver is missing: ImportError, OSError for the shared library,
    # their own error classes, and for amdsmi a KeyError at import without ROCm. None of these may stop a diagnosis.
    try:
        return {**probe(), "problem": None}
    except Exception as error:  # noqa: BLE001
        return {"driver": None, "devices": [], "problem": f"{type(error).__name__}: {error}"}


def _devices_line(found: dict[str, Any]) -> str:
    if found["problem"]:
        return f"not reachable ({found['problem']})"
    return f"{len(found['devices'])} (driver {found['driver']}): {', '.join(found['devices'])}"
