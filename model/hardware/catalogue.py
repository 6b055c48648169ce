"""The hardware catalogue: GPUs, node types and networks by name or from files.

One TOML per GPU, node type and network, read only when asked for. Third-party packages add GPUs by entry points, see
:mod:`joulecast.model.hardware.catalogue_packages`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from importlib.resources import files
from os.path import abspath, dirname, isfile, join
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from joulecast.errors import InputError, UnknownNameError
from joulecast.files import read_text
from joulecast.model.hardware.catalogue_packages import PackagedGpu, broken_package, packaged_gpus
from joulecast.model.hardware.derivation import complete
from joulecast.model.hardware.description import Facts, GpuDescription, Parameter
from joulecast.model.hardware.description_file import ParsedDescription, parse_description, parse_facts, parse_training

T = TypeVar("T")


def load_gpu(name_or_path: str | Path) -> GpuDescription:
    """A GPU by catalogue name or from a description file.

    Parameters
    ----------
    name_or_path
        A name of :func:`gpu_names`, what a driver calls the card, or a path (anything with a folder or the ending
        ``.toml``).

    Raises
    ------
    joulecast.errors.UnknownNameError
        No such GPU; the message lists the nearest names.
    joulecast.errors.InputError
        The file is missing or wrong; the message names the key.
    """
    return _load_gpu(str(name_or_path), ())


def gpu_names() -> list[str]:
    """Names of the shipped GPUs and of those that other packages add and that can be read, sorted."""
    return all_gpus()[0]


def all_gpus() -> tuple[list[str], list[InputError]]:
    """The same names, and what is wrong with other packages' GPUs: the package, its problem, and the remedy."""
    added, broken = _packaged()
    names = _built_in("gpus")
    for name, gpu in added.items():
        try:
            load_gpu(name)
        except InputError as error:
            broken.append(broken_package(gpu.package, str(error).removesuffix(f". {error.remedy}")))
        else:
            names.append(name)
    return sorted(names), broken


@lru_cache(maxsize=256)
def catalogue_name(name: str) -> str:
    """The catalogue's name of a GPU that is called as its driver does; other names, and paths, as they are.

    Of descriptions that state the same facts about one card it is the shortest name.

    Raises
    ------
    joulecast.errors.UnknownNameError
        Cards of other facts have this name too; the message lists them.

    Examples
    --------
    >>> catalogue_name("NVIDIA H100 80GB HBM3"), catalogue_name("h100-nvl")
    ('h100-sxm', 'h100-nvl')
    """
    if is_path(name) or (name.islower() and " " not in name) or name in (*_built_in("gpus"), *_packaged()[0]):
        return name
    same = gpus_called(name)
    facts = [{key: fact.value for key, fact in read_gpu(one).device.items()} for one in same]
    if any(other != facts[0] for other in facts):
        error = UnknownNameError("GPU", name, same)
        error.reword(f"several GPUs are called {name!r}", error.key, f"Give one of {', '.join(same)}.")
        raise error
    return same[0] if same else name


def gpus_called(product: str) -> list[str]:
    """Names in the catalogue of the GPUs that a driver calls so, with or without its maker, the shortest first."""
    same = (name for name, own in products().items() if _bare(own) == _bare(product))
    return sorted(same, key=lambda name: (len(name), name))


def products() -> dict[str, str]:
    """What drivers or data sheets call each GPU, by name."""
    return {name: str(read_gpu(name).device["product"].value) for name in gpu_names()}


def _bare(product: str) -> str:
    """A product's name without its maker, which drivers before 2021 leave out."""
    return product.casefold().strip().removeprefix("nvidia ")


def gpu_package(name_or_path: str | Path) -> str:
    """Name and version of the other package that adds a GPU; empty for shipped ones and for files.

    Raises
    ------
    joulecast.errors.UnknownNameError
        No such GPU.
    """
    name = catalogue_name(str(name_or_path))
    return "" if is_path(name) or name in _built_in("gpus") else _packaged_gpu(name).package


def load_node(name_or_path: str | Path) -> Facts:
    """A node type by catalogue name or from a file."""
    return _load_facts("node", str(name_or_path))


def node_names() -> list[str]:
    """Names of the shipped node types, sorted."""
    return _built_in("nodes")


def nodes_of(gpu: str) -> list[str]:
    """Names of the shipped node types that hold a GPU of the catalogue, sorted."""
    return [name for name in node_names() if load_node(name).text("gpu") == gpu]


def load_network(name_or_path: str | Path) -> Facts:
    """A network by catalogue name or from a file."""
    return _load_facts("network", str(name_or_path))


def network_names() -> list[str]:
    """Names of the shipped networks, sorted."""
    return _built_in("networks")


def load_site(name_or_path: str | Path) -> Facts:
    """What energy and hardware cost at a site, by catalogue name or from a file."""
    return _load_facts("site", str(name_or_path))


def site_names() -> list[str]:
    """Names of the shipped sites, sorted."""
    return _built_in("sites")


@lru_cache(maxsize=1)
def load_training() -> Mapping[str, Parameter]:
    """The shipped factors of long training runs; see :mod:`joulecast.model.training.factors`."""
    text = _built_in_text("training", "published") or ""
    return MappingProxyType(parse_training(text, file="published.toml"))


def read_gpu(name_or_path: str | Path) -> ParsedDescription:
    """A GPU description as its file, and the one that it is like, state it: what they leave out is not derived."""
    name = catalogue_name(str(name_or_path))
    return _read_gpu(name, ()) if is_path(name) else _read_shipped(name)


@cache  # bounded by the catalogue, most of whose descriptions ask for the same relative
def _read_shipped(name: str) -> ParsedDescription:
    return _read_gpu(name, ())


def _read_gpu(name: str, seen: tuple[str, ...]) -> ParsedDescription:
    text, file = (read_text(name, "TOML"), name) if is_path(name) else _gpu_text(name)

    def read_like(other: str) -> ParsedDescription:
        kin = _named_in(file, "like", other, (*seen, _beside("", name)), _read_gpu)
        return replace(kin, relative=_beside(kin.file, kin.relative)) if kin.relative else kin

    return parse_description(text, file=file, read_like=read_like)


@cache  # bounded by the catalogue: a description is asked for by name, and once more by each that is derived from it
def _load_shipped(name: str, seen: tuple[str, ...]) -> GpuDescription:
    return _complete(read_gpu(name), (*seen, name))


def _load_gpu(name: str, seen: tuple[str, ...]) -> GpuDescription:
    # Files may change between two calls; what a package ships does not.
    if is_path(name):
        return _complete(read_gpu(name), (*seen, _beside("", name)))
    if isfile(name) and name not in (*_built_in("gpus"), *_packaged()[0]):
        remedy = "Give a TOML file, as joulecast calibrate --out GPU.toml writes it."
        raise InputError("a description of a GPU ends in .toml", file=name, remedy=remedy)
    return _load_shipped(catalogue_name(name), seen)


def _complete(parsed: ParsedDescription, seen: tuple[str, ...]) -> GpuDescription:
    if parsed.relative is None:
        return complete(parsed, None)
    relative = _named_in(parsed.file, "derivation.relative", parsed.relative, seen, _load_gpu)
    try:
        return complete(parsed, relative)
    except InputError as error:
        raise InputError(error.message, file=parsed.file, key=error.key, remedy=error.remedy) from None


def _named_in(file: str, key: str, name: str, seen: tuple[str, ...], read: Callable[[str, tuple[str, ...]], T]) -> T:
    """The description that a key of a file names, read unless it has been ``seen`` on the way there."""
    found = _beside(file, name)
    if found in seen:
        remedy = (
            "Name a description with fitted tables." if key == "derivation.relative" else "Name another description."
        )
        raise InputError(f"{key} goes in a circle: {' -> '.join((*seen, found))}", file=file, key=key, remedy=remedy)
    if is_path(name) and not isfile(found):
        remedy = "Check the path, which starts in the folder of this file, or name a description of the catalogue."
        raise InputError(f"{name}: no such file", file=file, key=key, remedy=remedy)
    try:
        return read(found, seen)
    except UnknownNameError as error:
        raise InputError(error.message, file=file, key=key, remedy=error.remedy) from None


def _load_facts(kind: str, name: str) -> Facts:
    if is_path(name):
        return parse_facts(kind, read_text(name, "TOML"), file=name)
    return _load_shipped_facts(kind, name)


@lru_cache(maxsize=64)
def _load_shipped_facts(kind: str, name: str) -> Facts:
    text = _built_in_text(f"{kind}s", name)
    if text is None:
        raise UnknownNameError(kind, name, _built_in(f"{kind}s"))
    return parse_facts(kind, text, file=f"{name}.toml")


def _gpu_text(name: str) -> tuple[str, str]:
    """A description's text and its file: of a package the whole path, in whose folder its own paths start."""
    text = _built_in_text("gpus", name)
    if text is not None:
        return text, f"{name}.toml"
    file = str(_packaged_gpu(name).file)
    return read_text(file, "TOML"), file


def _packaged_gpu(name: str) -> PackagedGpu:
    added, broken = _packaged()
    if name not in added:
        error = UnknownNameError("GPU", name, {*_built_in("gpus"), *added})
        if broken:  # which may be where it is
            error.reword(f"{error.message}; {broken[0]}", error.key, error.remedy)
        raise error
    return added[name]


def _packaged() -> tuple[dict[str, PackagedGpu], list[InputError]]:
    return packaged_gpus(_built_in("gpus"))


def _beside(file: str, name: str) -> str:
    """The whole path of a description that a file names by a path from its own folder; a catalogue's name as it is."""
    return abspath(join(dirname(file), name)) if is_path(name) else name


def is_path(name: str) -> bool:
    """Whether a name is the path of a file, not a name of the catalogue."""
    return name.endswith(".toml") or "/" in name or "\\" in name


def _built_in(folder: str) -> list[str]:
    entries: Iterable[str] = (
        entry.name for entry in files("joulecast.model").joinpath("catalogue_data", folder).iterdir()
    )
    return sorted(name.removesuffix(".toml") for name in entries if name.endswith(".toml"))


def _built_in_text(folder: str, name: str) -> str | None:
    if name not in _built_in(folder):  # not every name could be a file's: the system refuses very long ones
        return None
    return files("joulecast.model").joinpath("catalogue_data", folder, f"{name}.toml").read_text(encoding="utf-8")
