"""A progress bar on standard error: a line that is drawn again, and wiped at the end; nothing where no terminal is."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType

WIDTH = 30
#: Seconds between two drawings.
REDRAW_S = 0.1


class ProgressBar:
    """Shows how much is done; as a context manager it wipes its line."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._start = self._last = time.monotonic()
        self._drawn = False

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def show(self, done: int, of: int, what: str) -> None:
        """``done`` of ``of`` are done."""
        now = time.monotonic()
        if not self._terminal or (now - self._last < REDRAW_S and done < of):
            return
        self._last, self._drawn = now, True
        share = done / of if of else 1.0
        left = f", {(now - self._start) / share * (1.0 - share):.0f} s left" if 0.0 < share < 1.0 else ""
        bar = "#" * round(WIDTH * share)
        text = f"[{bar:<{WIDTH}}] {100.0 * share:3.0f} %  {done}/{of} {what}{left}"
        print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)
