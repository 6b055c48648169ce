"""Which processes are there, and which on a card are our own."""

from __future__ import annotations

import os
from pathlib import Path


def lives(pid: int) -> bool:
    """Whether a process is there; taken for granted where asking would end it."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_ours(pid: int) -> bool:
    """Whether a process is this one, one that it descends from, or one that descends from it."""
    own = os.getpid()
    return pid == own or own in _ancestors(pid) or pid in _ancestors(own)


def _ancestors(pid: int) -> list[int]:
    """Parents of a process up to the first, without it; empty where the process is not visible."""
    found: list[int] = []
    while pid > 1:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            break
        # The second field, the name in parentheses, may hold anything.
        pid = int(stat.rpartition(")")[2].split()[1])
        if pid in found:
            break
        found.append(pid)
    return [parent for parent in found if parent > 1]
