"""Files that a command is to write: looked at before the work is done, which may take minutes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from joulecast.errors import InputError


def check_destinations(outputs: Mapping[str, Path | None], inputs: Iterable[Path | None]) -> None:
    """Refuse files that could not be written, or whose writing would destroy something that is wanted.

    Parameters
    ----------
    outputs
        Files to write, by the option that names them; ``None``: not asked for.
    inputs
        Files that are read.

    Raises
    ------
    InputError
        A folder, a file in a folder that does not exist or is not to be written to, one that is read, or one that is
        named twice.
    """
    read = [path for path in inputs if path is not None]
    seen: dict[str, Path] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        if path.is_dir():
            raise InputError("is a folder", file=str(path), key=option, remedy="Give a file.")
        if not path.parent.is_dir():
            raise InputError("no such folder", file=str(path.parent), key=option, remedy="Create it first.")
        if path.is_file() or not path.exists():  # no device or pipe
            check_writable(path.resolve().parent, option)
        if any(_same(path, other) for other in read):
            raise InputError("is what is read", file=str(path), key=option, remedy="Write to another file.")
        for earlier, other in seen.items():
            if _same(path, other):
                raise InputError(f"is that of {earlier} too", file=str(path), key=option, remedy="Name two files.")
        seen[option] = path


def check_writable(folder: Path, option: str) -> None:
    """Refuse a folder that nothing can be written to.

    Raises
    ------
    InputError
        Naming the folder and the option that asks for it.
    """
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError("cannot be written to", file=str(folder), key=option, remedy="Choose a folder that is yours.")


def _same(one: Path, other: Path) -> bool:
    """Whether both are one plain file; a device or a pipe takes what several write."""
    if not (one.exists() and other.exists()):
        return one.resolve() == other.resolve()
    return one.is_file() and one.samefile(other)
