"""Measures collectives among several GPUs: a group of processes of its own for each number of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from joulecast.errors import InputError, MeasurementError

#: Module that every process of a group runs.
ENTRY = "joulecast.calibrate.microbenchmarks.distributed"
#: How long a group may take to end beyond its budget [s]: starting, the last benchmark, and closing.
GRACE_S = 600.0
#: How long the launcher may take to end its processes: it gives them half a minute.
LEAVE_S = 40.0


def group_sizes(text: str, present: int) -> list[int]:
    """Numbers of GPUs such as ``2,4``.

    Raises
    ------
    InputError
        It is no list of numbers above 1, or more GPUs than are there.
    """
    try:
        sizes = sorted({int(word) for word in text.split(",")})
    except ValueError:
        raise InputError(f"{text!r} is no list of numbers", key="--gpus", remedy="Write 2 or 2,4.") from None
    if sizes[0] < 2:
        raise InputError("a group has at least two GPUs", key="--gpus", remedy="Write 2 or 2,4.")
    if sizes[-1] > present:
        raise InputError(f"there are {present} GPUs here, not {sizes[-1]}", key="--gpus", remedy="Ask for fewer.")
    return sizes


def group_folder(folder: Path, size: int) -> Path:
    """Where a group records, below the recording of the single card."""
    return folder / f"gpus-{size}"


def group_command(size: int, folder: Path, budget_s: float) -> list[str]:
    """What starts a group."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    options = ["--record", str(group_folder(folder, size)), "--budget", f"{budget_s:.0f}"]
    options += ["--starter", str(os.getpid())]
    return [sys.executable, *launcher, "-m", ENTRY, *options]


def measure_group(command: Sequence[str], budget_s: float) -> None:
    """Run a group to its end; what it measured stands in its recording, however it ends.

    Raises
    ------
    MeasurementError
        It ended with an error, or not at all; the message has its last words.
    """
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as group:
        try:
            _, said = group.communicate(timeout=budget_s + GRACE_S)
        except subprocess.TimeoutExpired:
            raise MeasurementError(
                f"the group of GPUs has not ended {GRACE_S:g} s after its budget",
                remedy="Look for a hanging collective.",
            ) from None
        finally:
            _end(group)
    if group.returncode:
        words = [line for line in said.splitlines() if line.strip()]
        own = [line for line in words if "joulecast" in line or "Error" in line] or words or ["no message"]
        raise MeasurementError(f"the group of GPUs failed: {own[-1].strip()}", remedy="What it measured is kept.")


def _end(group: subprocess.Popen[str]) -> None:
    """Let the launcher end its processes, which would hold the GPUs; a signal from a terminal does not reach it."""
    if group.poll() is not None:
        return
    group.terminate()
    try:
        group.wait(LEAVE_S)
    except subprocess.TimeoutExpired:
        os.killpg(group.pid, signal.SIGKILL)
