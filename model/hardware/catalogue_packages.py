"""GPU descriptions that other packages add.

A package names them by an entry point of the group ``joulecast.gpus``, in its ``pyproject.toml`` for instance::

    [project.entry-points."joulecast.gpus"]
    our-cards = "our_package:FOLDER"

The object is the path of a folder of descriptions, each GPU being named after its file, the path of one description,
which is named after the entry point, or a function without arguments that returns one of the two.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.errors import InputError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: Entry-point group of third-party GPU descriptions.
ENTRY_POINT_GROUP = "joulecast.gpus"


@dataclass(frozen=True, slots=True)
class PackagedGpu:
    """A description in another package.

    Attributes
    ----------
    file
        The description.
    package
        Name and version of the package.
    """

    file: Path
    package: str


def packaged_gpus(shipped: Collection[str]) -> tuple[dict[str, PackagedGpu], list[InputError]]:
    """GPUs that installed packages add, by name, and what is wrong with the others of such packages.

    Wrong is an object that cannot be loaded or is no path, and a name that exists already.

    Looked up late, and only for names that are not shipped: the search reads the metadata of every installed package.

    Parameters
    ----------
    shipped
        Names that are taken.
    """
    found: dict[str, PackagedGpu] = {}
    broken: list[InputError] = []
    for entry in _entries(tuple((folder, _changed_ns(folder)) for folder in sys.path)):
        package = _package_of(entry)
        try:
            files = _files(entry, package)
        except InputError as error:
            broken.append(error)
            continue
        for name, file in files.items():
            if name in shipped or name in found:
                taken = found[name].package if name in found else "joulecast"
                broken.append(_broken(package, entry, f"adds GPU {name!r}, which {taken} has already"))
            else:
                found[name] = PackagedGpu(file, package)
    return found, broken


@lru_cache(maxsize=1)
def _entries(folders: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    """Entry points of the group: read again where a folder of packages, or the time of its last change, is another."""
    from importlib.metadata import entry_points

    return tuple(entry_points(group=ENTRY_POINT_GROUP))


def _changed_ns(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


def _files(entry: EntryPoint, package: str) -> dict[str, Path]:
    try:
        target = entry.load()
        target = target() if callable(target) else target
    except Exception as error:  # foreign code may raise anything; the user must learn whose it is
        raise _broken(package, entry, f"cannot be loaded ({type(error).__name__}: {error})") from error
    if not isinstance(target, str | os.PathLike):
        raise _broken(package, entry, f"gives {type(target).__name__}, not a path")
    path = Path(target)
    if path.is_dir():
        return {file.stem: file for file in sorted(path.glob("*.toml"))}
    if not path.is_file():
        raise _broken(package, entry, f"names {path}, which does not exist")
    return {entry.name: path}


def _package_of(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value.partition(":")[0]


def _broken(package: str, entry: EntryPoint, problem: str) -> InputError:
    return broken_package(package, f"its entry point {entry.name!r} of {ENTRY_POINT_GROUP} {problem}")


def broken_package(package: str, problem: str) -> InputError:
    """The error of a package whose GPUs, or one of them, cannot be read."""
    return InputError(problem, file=package, remedy="Update or uninstall that package.")
