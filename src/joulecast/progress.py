"""A progress bar on standard error: one line that is drawn again, or a line now and then where it is no terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType

WIDTH = 30
#: Seconds between two drawings on a terminal, and between two lines elsewhere.
REDRAW_S, LINE_S = 0.1, 10.0


class ProgressBar:
    """Shows how much is done; as a context manager it ends its line."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._start = self._last = time.monotonic()
        self._drawn = False

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn and self._terminal:
            print(file=sys.stderr, flush=True)

    def show(self, done: int, of: int, what: str) -> None:
        """``done`` of ``of`` are done."""
        now = time.monotonic()
        if now - self._last < (REDRAW_S if self._terminal else LINE_S) and not (self._terminal and done == of):
            return
        self._last, self._drawn = now, True
        share = done / of if of else 1.0
        left = f", {(now - self._start) / share * (1.0 - share):.0f} s left" if 0.0 < share < 1.0 else ""
        text = f"{100.0 * share:3.0f} %  {done}/{of} {what}{left}"
        if not self._terminal:
            print(text, file=sys.stderr, flush=True)
            return
        bar = "#" * round(WIDTH * share)
        print(f"\r[{bar:<{WIDTH}}] {text}\x1b[K", end="", file=sys.stderr, flush=True)
