"""A Triton kernel that reads clocks. Importing this module does not need Triton, compiling it does."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

# The kernel is Triton's language: it compiles annotations too, so that only its own words may stand there.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, valid-type, name-defined"

#: Triton's language, under the name by which the kernel's source knows it; :func:`compiled` brings it in.
tl: Any = None


def _stamp(stamps):
    """Each program writes its SM's time [ns] and cycles to row ``%smid`` of ``stamps[MOST_SMS, 2]``."""
    time = tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    cycles = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    sm = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    tl.store(stamps + 2 * sm, time)
    tl.store(stamps + 2 * sm + 1, cycles)


@cache
def compiled() -> Any:
    """The kernel as Triton's, to be launched as ``kernel[(sms,)](stamps, num_warps=1)``.

    Raises
    ------
    ImportError
        Triton is missing.
    """
    global tl
    triton: Any = importlib.import_module("triton")
    tl = importlib.import_module("triton.language")
    return triton.jit(_stamp)
