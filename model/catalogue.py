"""The hardware catalogue: GPUs, node types and networks by name or from files.

One TOML per GPU, node type and network, read only when asked for. Third-party packages add GPUs by an entry point of
the group ``joulecast.gpus`` whose name is the GPU's and whose object is the path of a description or a function that
returns it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from joulecast.errors import InputError, UnknownNameError
from joulecast.model.derivation import complete
from joulecast.model.description import Facts, GpuDescription
from joulecast.model.description_file import (
    ParsedDescription,
    parse_description,
    parse_network,
    parse_node,
)

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: Entry-point group of third-party GPU descriptions.
ENTRY_POINT_GROUP = "joulecast.gpus"

Parsed = TypeVar("Parsed")


def load_gpu(name_or_path: str | Path) -> GpuDescription:
    """A GPU by catalogue name or from a description file.

    Parameters
    ----------
    name_or_path
        A name of :func:`gpu_names`, or a path (anything with a folder or the ending ``.toml``).

    Raises
    ------
    joulecast.errors.UnknownNameError
        No such GPU; the message lists the nearest names.
    joulecast.errors.InputError
        The file is missing or wrong; the message names the key.
    """
    return _load_gpu(str(name_or_path), ())


def gpu_names() -> list[str]:
    """Names of the shipped GPUs and of those that other packages add, sorted."""
    return sorted({*_built_in("gpus"), *_entry_points()})


def load_node(name_or_path: str | Path) -> Facts:
    """A node type by catalogue name or from a file."""
    return _load_facts("node", str(name_or_path), parse_node)


def node_names() -> list[str]:
    """Names of the shipped node types, sorted."""
    return _built_in("nodes")


def load_network(name_or_path: str | Path) -> Facts:
    """A network by catalogue name or from a file."""
    return _load_facts("network", str(name_or_path), parse_network)


def network_names() -> list[str]:
    """Names of the shipped networks, sorted."""
    return _built_in("networks")


def read_gpu(name_or_path: str | Path) -> ParsedDescription:
    """A GPU description as its file states it, without deriving what it leaves out."""
    name = str(name_or_path)
    if _is_path(name):
        return parse_description(_read_path(name), file=name)
    return parse_description(_gpu_text(name), file=f"{name}.toml")


@lru_cache(maxsize=64)
def _load_shipped(name: str, seen: tuple[str, ...]) -> GpuDescription:
    return _complete(read_gpu(name), (*seen, name))


def _load_gpu(name: str, seen: tuple[str, ...]) -> GpuDescription:
    # Files may change between two calls; what a package ships does not.
    if _is_path(name):
        return _complete(read_gpu(name), (*seen, name))
    return _load_shipped(name, seen)


def _complete(parsed: ParsedDescription, seen: tuple[str, ...]) -> GpuDescription:
    if parsed.relative is None:
        return complete(parsed, None)
    if parsed.relative in seen:
        raise InputError(
            f"derivation goes in a circle: {' -> '.join((*seen, parsed.relative))}",
            file=parsed.file,
            key="derivation.relative",
            remedy="Name a description with fitted tables.",
        )
    try:
        relative = _load_gpu(parsed.relative, seen)
    except UnknownNameError as error:
        raise InputError(error.message, file=parsed.file, key="derivation.relative", remedy=error.remedy) from None
    return complete(parsed, relative)


def _load_facts(kind: str, name: str, parse: Callable[..., Parsed]) -> Parsed:
    if _is_path(name):
        return parse(_read_path(name), file=name)
    text = _built_in_text(f"{kind}s", name)
    if text is None:
        raise UnknownNameError(kind, name, _built_in(f"{kind}s"))
    return parse(text, file=f"{name}.toml")


def _gpu_text(name: str) -> str:
    text = _built_in_text("gpus", name)
    if text is None:
        added = _entry_points()
        if name not in added:
            raise UnknownNameError("GPU", name, {*_built_in("gpus"), *added})
        target = added[name].load()
        text = _read_path(str(target() if callable(target) else target))
    return text


def _is_path(name: str) -> bool:
    return name.endswith(".toml") or "/" in name or "\\" in name


def _read_path(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", file=path, remedy="Check the path.") from error


def _built_in(folder: str) -> list[str]:
    entries: Iterable[str] = (
        entry.name for entry in files("joulecast.model").joinpath("catalogue_data", folder).iterdir()
    )
    return sorted(name.removesuffix(".toml") for name in entries if name.endswith(".toml"))


def _built_in_text(folder: str, name: str) -> str | None:
    file = files("joulecast.model").joinpath("catalogue_data", folder, f"{name}.toml")
    return file.read_text(encoding="utf-8") if file.is_file() else None


def _entry_points() -> dict[str, EntryPoint]:
    """GPUs that other packages add; looked up late, as the search reads the metadata of every installed package."""
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
