"""Files that a job names: they are looked for near its own file, and read, never run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from os.path import isfile  # of a name that no file can have, too: pathlib raises
from pathlib import Path
from types import MappingProxyType

from joulecast.errors import InputError
from joulecast.files import parse_json, read_text
from joulecast.simulator.job_files.flags import untold
from joulecast.simulator.job_files.settings_file import SettingsFile
from joulecast.simulator.job_files.shell_values import marks
from joulecast.simulator.job_files.yaml_tables import SUFFIXES, parse_yaml

#: Folders above a job's own in which names may begin: jobs are started from the top of a repository.
MOST_ABOVE = 3
_WRITTEN: ContextVar[Mapping[str, str]] = ContextVar("texts by files", default=MappingProxyType({}))


@contextmanager
def written_by_script(texts: Mapping[str, str]) -> Iterator[None]:
    """Take files that the job's script writes, by their names, for there."""
    token = _WRITTEN.set({name.removeprefix("./"): text for name, text in texts.items()})
    try:
        yield
    finally:
        _WRITTEN.reset(token)


def named_path(name: str, file: str) -> Path | None:
    """Where a file lies that a job names: in the job's folder, in one above it, or where the command was given."""
    if name.removeprefix("./") in _WRITTEN.get():
        return Path(name)
    folder = Path(file).resolve().parent
    places = [folder, *list(folder.parents)[:MOST_ABOVE], Path.cwd()]
    return next((place / name for place in places if isfile(place / name)), None)


def named_text(path: Path, kind: str) -> str:
    """The text of a file that :func:`named_path` has found."""
    written = _WRITTEN.get().get(str(path))
    return read_text(path, kind) if written is None else written


def named_settings(name: str, file: str, key: str, line: int | None) -> SettingsFile:
    """The settings of a YAML or JSON that a job names.

    Raises
    ------
    InputError
        There is no such file, or it is neither.
    """
    path = named_path(name, file)
    if path is None and marks(name):
        what, remedy = untold(name)
        raise InputError(what, file=file, line=line, key=key, remedy=remedy)
    if path is None:
        remedy = "Put it beside the job's file: paths begin in its folder, or in one above it."
        raise InputError(f"no such file: {name}", file=file, line=line, key=key, remedy=remedy)
    text = named_text(path, "YAML or JSON")
    if path.suffix in SUFFIXES:
        tables, lines = parse_yaml(text, str(path))
        return SettingsFile(str(path), text, tables, lines=lines, named=path.name)
    if marks(text):
        what, remedy = untold(text)
        raise InputError(what, file=file, line=line, key=name, remedy=remedy)
    tables = parse_json(text, str(path))
    if not isinstance(tables, dict):
        raise InputError("this JSON is no table of names and values", file=str(path), remedy="Correct this file.")
    return SettingsFile(str(path), text, tables, named=path.name)
