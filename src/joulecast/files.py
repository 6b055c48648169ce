"""Files that are read with one readable error, and written whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from joulecast.errors import InputError, short


def read_text(
    path: str | Path,
    kind: str,
    *,
    error: type[InputError] = InputError,
    encoding: str = "utf-8-sig",
    absent: str = "no such file",
    missing: str = "Check the path.",
) -> str:
    """The text of a file; a byte-order mark is passed over.

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
    absent, missing
        What is wrong where there is no such file, and the remedy.

    Raises
    ------
    InputError
        The file is missing, or cannot be read.
    """
    if "\n" in str(path):
        raise error(
            f"a text of several lines is no path of a {kind} file",
            remedy="Give its path; in Python, or its tables (tomllib.loads).",
        )
    try:
        return Path(path).read_text(encoding=encoding)
    except FileNotFoundError:
        raise error(absent, file=str(path), remedy=missing) from None
    except OSError as cause:
        why = cause.strerror or str(cause)
        raise error(f"cannot be read: {why}", file=str(path), remedy=f"It must be a {kind} text file.") from None
    except UnicodeDecodeError as cause:
        why = f"byte {cause.start + 1} is not UTF-8"
        raise error(f"cannot be read: {why}", file=str(path), remedy=f"It must be a {kind} text file.") from None
    except ValueError as cause:  # a zero byte in the name
        raise error(f"is no path: {cause}", file=str(path), remedy="Correct the path.") from None


def toml_value(value: Any) -> str:
    """A value as TOML writes it.

    >>> toml_value({"forward": [1410, 1200.5], "on": True})
    '{forward = [1410, 1200.5], on = true}'
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml_key(k)} = {toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, float):
        return repr(value)  # inf and nan are TOML as well
    return json.dumps(value, ensure_ascii=False)


def toml_key(key: str) -> str:
    """A key as TOML writes it, in quotes where it needs them."""
    plain = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if plain else json.dumps(key)


def parse_toml(text: str, file: str) -> dict[str, Any]:
    """Tables of a TOML text.

    Raises
    ------
    InputError
        It is not TOML, is nested too deeply, or has a whole number beyond the 64 bits of TOML; names file and line.
    """
    try:
        tables = tomllib.loads(text)
        _refuse_large(tables)
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).partition(" (at ")
        found = re.match(r"line (\d+)", where)
        line = int(found[1]) if found else len(text.splitlines())
        if twice := _said_twice(what):
            raise InputError(twice, file=file, line=line, remedy="Keep one of them.") from None
        message = f"not valid TOML: {what[:1].lower()}{what[1:]}"
        raise InputError(message, file=file, line=line, remedy="Correct this line.") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"not valid TOML: {error}", file=file, remedy="Correct this file.") from None
    return tables


def _said_twice(what: str) -> str | None:
    """In other words than :mod:`tomllib`: a key or a table stands twice. ``None`` where something else is wrong."""
    if table := re.fullmatch(r"Cannot declare \((.*)\) twice", what):
        name = ".".join(re.findall(r"'([^']*)'", table[1]))
        return f"the table [{name}] stands here for the second time"
    if key := re.fullmatch(r"Duplicate inline table key (.*)", what):
        return f"the key {key[1]} stands here for the second time"
    return "an earlier line says the same key" if what == "Cannot overwrite a value" else None


def parse_json(text: str, file: str, *, remedy: str = "Correct this line.", once: bool = False) -> Any:
    """Content of a JSON text.

    Parameters
    ----------
    once
        Whether a key that stands twice in a table is an error; otherwise the last one counts, as elsewhere.

    Raises
    ------
    InputError
        It is not JSON, is nested too deeply, or has a whole number beyond 64 bits; names file and line.
    """
    try:
        return json.loads(text, parse_int=whole_number, object_pairs_hook=_each_once if once else None)
    except json.JSONDecodeError as error:
        raise InputError(f"not valid JSON: {error.msg}", file=file, line=error.lineno, remedy=remedy) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"not valid JSON: {error}", file=file, remedy=remedy) from None


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A table of JSON whose keys all differ; a :exc:`ValueError` names one that does not."""
    table = dict(pairs)
    if len(table) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} stands twice")
    return table


def whole_number(text: str) -> int:
    """A whole number of 64 bits; larger ones have no meaning here, and do not fit what computes with them.

    Raises
    ------
    ValueError
        It is larger.
    """
    if len(text) > _DIGITS or not -_LARGEST <= int(text) < _LARGEST:
        raise ValueError(f"{text[:_DIGITS]}… is too large for a whole number")
    return int(text)


_LARGEST, _DIGITS = 2**63, 20


def is_whole(text: str) -> bool:
    """Whether a text is a whole number without a sign, in digits that ``int`` reads and so few that 64 bits hold it.

    >>> [is_whole(text) for text in ("8", "²", "9" * 5000, "")]
    [True, False, False, False]
    """
    return text.isascii() and text.isdigit() and len(text) < _DIGITS - 1


def _refuse_large(value: object) -> None:
    if isinstance(value, Mapping):
        for inner in value.values():
            _refuse_large(inner)
    elif isinstance(value, list):
        for inner in value:
            _refuse_large(inner)
    elif isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        raise ValueError(f"{value:e} is too large for a whole number" if abs(value) < 10**300 else "a number too large")


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a draft beside ``path``, then put it in its place.

    A device or a pipe, such as ``/dev/stdout``, stays what it is and gets the bytes. Of a link, what it points to is
    replaced.

    Raises
    ------
    InputError
        The file cannot be written; what stood there before is unchanged.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        _write_through(path, write)
        return
    if path.is_dir():
        raise InputError("is a folder", file=str(path), remedy="Give a file.")
    path = path.resolve() if path.is_symlink() else path
    draft = _draft_of(path)
    try:
        write(draft)
        draft.replace(path)
    except OSError as error:
        raise _cannot(path, error) from error
    finally:
        with suppress(OSError):  # a disk that cannot be written refuses this, too
            draft.unlink(missing_ok=True)


def _write_through(path: Path, write: Callable[[Path], object]) -> None:
    from tempfile import TemporaryDirectory

    try:
        with TemporaryDirectory() as folder:
            draft = Path(folder) / "draft"
            write(draft)
            with path.open("wb") as file:
                file.write(draft.read_bytes())
    except OSError as error:
        raise _cannot(path, error) from error


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
    check_new_folder(path)
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


def check_new_folder(path: Path, key: str | None = None) -> None:
    """Refuse a folder to write that is there and holds something, is a file, or is the current one.

    Raises
    ------
    InputError
        It is; names ``key``, such as the option that names the folder.
    """
    remedy = "Choose a folder that does not exist yet."
    if path.exists() and not path.is_dir():
        raise InputError("is a file", file=str(path), key=key, remedy=remedy)
    if path.is_dir() and any(path.iterdir()):
        raise InputError("is not empty", file=str(path), key=key, remedy=remedy)
    if not path.name:
        raise InputError("is the current folder", file=str(path), key=key, remedy=remedy)
    if not path.parent.is_dir():
        raise InputError("no such folder", file=str(path.parent), key=key, remedy="Create it first.")


def _draft_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def _fill(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def lock(file: int, path: Path, does: str, remedy: str) -> None:
    """Refuse an open file that another process has locked, else lock it until it is closed.

    Parameters
    ----------
    file
        Its number, as the system has it.
    does
        What the other process does, after ``another process``.

    Raises
    ------
    InputError
        It is locked.
    """
    try:
        import fcntl
    except ImportError:  # no such locks on Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(f"another process {does}", file=str(path), remedy=remedy) from None
    except OSError:  # nor on some network disks
        return


def write_all(file: int, data: bytes) -> None:
    """Write all bytes to an open file, by its number; a nearly full disk takes a part before it refuses the rest."""
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def sync_folder(folder: Path) -> None:
    """Wait until the names of new files in a folder are on the disk, which ``fsync`` of a file does not see to."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def is_full(error: OSError) -> bool:
    """Whether the system says that there is no room: the disk, a quota, or the longest file that is allowed."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def unusable_path(error: OSError) -> InputError | None:
    """What is told of a path whose folder may not be entered, or that is no name; ``None`` of other errors."""
    if error.errno not in (errno.EACCES, errno.ENAMETOOLONG, errno.ELOOP) or error.filename is None:
        return None
    remedy = "Choose a path that you may use." if error.errno == errno.EACCES else "Correct the path."
    return InputError(f"cannot be used: {error.strerror}", file=short(os.fsdecode(error.filename)), remedy=remedy)


def _cannot(path: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot be written: {error.strerror or error}",
        file=str(path),
        remedy="Make room, or choose another disk." if is_full(error) else "Choose a folder that exists and is yours.",
    )
