"""Files that are read with one readable error, and written whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from joulecast.errors import InputError


def read_text(
    path: str | Path,
    kind: str,
    *,
    error: type[InputError] = InputError,
    encoding: str = "utf-8",
    missing: str = "Check the path.",
) -> str:
    """The text of a file.

    Parameters
    ----------
    path
        The file.
    kind
        What it must be, such as ``TOML``; for the error.
    error
        Class of the error.
    encoding
        Of the text.
    missing
        Remedy where there is no such file.

    Raises
    ------
    InputError
        The file is missing, or cannot be read.
    """
    try:
        return Path(path).read_text(encoding=encoding)
    except FileNotFoundError:
        raise error("no such file", file=str(path), remedy=missing) from None
    except (OSError, UnicodeDecodeError) as cause:
        raise error(f"cannot be read ({cause})", file=str(path), remedy=f"It must be a {kind} text file.") from None


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a draft beside ``path``, then put it in its place.

    Raises
    ------
    InputError
        The file cannot be written; what stood there before is unchanged.
    """
    draft = _draft_of(path)
    try:
        write(draft)
        draft.replace(path)
    except OSError as error:
        raise _cannot(path, error) from error
    finally:
        draft.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file with lines that end alike everywhere.

    Raises
    ------
    InputError
        The file cannot be written; what stood there before is unchanged.
    """
    write_whole(path, lambda draft: _fill(draft, text))


def write_folder(path: Path, files: Mapping[str, str]) -> None:
    """Write a new folder of text files.

    Raises
    ------
    InputError
        Something other than an empty folder stands there already, or it cannot be written.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise InputError("is not empty", file=str(path), remedy="Choose a folder that does not exist yet.")
    draft = _draft_of(path)
    try:
        draft.mkdir()
        for name, text in files.items():
            _fill(draft / name, text)
        draft.replace(path)
    except OSError as error:
        raise _cannot(path, error) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _draft_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def _fill(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _cannot(path: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot be written: {error.strerror or error}",
        file=str(path),
        remedy="Choose a folder that exists and is yours.",
    )
