"""Jobs for the tests of a sweep's workers, in a module that other processes import quickly."""

import os
import signal
from pathlib import Path


def die_once(path: str, number: int) -> int:
    """Kills its process the first time that it is called for job 1."""
    if number == 1 and not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * 10


def die_always(number: int) -> int:
    """Kills its process."""
    os.kill(os.getpid(), signal.SIGKILL)
    return number
