"""Damaging files: a kind of file, what can be done to it, and what its reader must then say."""

import re
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from itertools import count
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paths import EXAMPLES

from joulecast.calibrate.rows.measured import RecordingWarning
from joulecast.cli import one_line
from joulecast.errors import InputError, JoulecastError

#: Inputs of each format among the other tests.
SHORT = 8


@dataclass(frozen=True)
class Format:
    """A kind of file: valid contents by file name, of which one is damaged, and who reads it."""

    read: Callable[[Path], object]
    sources: tuple[Callable[[], str], ...]
    name: str
    #: Other files that the reader needs beside it.
    beside: Callable[[], dict[str, str]] = dict
    #: The reader takes the folder.
    folder: bool = False


def shipped(*parts: str) -> Callable[[], str]:
    return lambda: files("joulecast.model").joinpath("catalogue_data", *parts).read_text(encoding="utf-8")


def example(name: str) -> Callable[[], str]:
    return lambda: (EXAMPLES / name).read_text(encoding="utf-8")


def head(package: str, lines: int, *parts: str) -> Callable[[], str]:
    def read() -> str:
        text = files(package).joinpath("recorded", *parts).read_text(encoding="utf-8")
        return "".join(text.splitlines(keepends=True)[:lines])

    return read


def table(*rows: str) -> Callable[[], str]:
    return lambda: "\n".join(rows) + "\n"


class Refused(Exception):
    """A readable refusal of what was read well, which need not name the file."""


def unnamed(work: Callable[[], object]) -> object:
    try:
        return work()
    except JoulecastError as error:
        assert isinstance(error, InputError), error
        raise Refused(str(error)) from error


TOKEN = re.compile(r'"[^"\n]*"|[\w.+-]+|[^\w\s]')
HOSTILE = (
    "", "0", "-1", "-0.0", "0.5", "1e-300", "1e308", "1e999", "nan", "inf", "9" * 30, "9" * 5000, "true", "null",
    "[]", "{}",
    '""', '"x"', "'", '"', "\\", "\x00", "é", "\ufeff", "\u2028", "\r", "\n", ",", "=", "[" * 3000, "{" * 300, "[[1]]",
    '{"a": 1}', "1_000", "0x10", "１", "2020-01-01", '"a\\u0000"', '"\\ud800"', "h200-sxm", "../../x", "%s",
)  # fmt: skip
OPERATIONS = ("token", "token", "token", "drop line", "double line", "cut", "insert", "swap", "drop token", "byte")


def damaged(data: bytes, operation: str, where: int, what: int) -> bytes:
    """A valid file's content with one thing wrong."""
    text = data.decode("utf-8", errors="surrogateescape")
    lines, tokens = text.splitlines(keepends=True), list(TOKEN.finditer(text))
    value = HOSTILE[what % len(HOSTILE)]
    if operation in ("token", "drop token", "swap") and tokens:
        token = tokens[where % len(tokens)]
        new = {"token": value, "drop token": "", "swap": tokens[what % len(tokens)][0]}[operation]
        text = text[: token.start()] + new + text[token.end() :]
    elif operation == "drop line" and lines:
        del lines[where % len(lines)]
        text = "".join(lines)
    elif operation == "double line" and lines:
        lines.insert(what % len(lines), lines[where % len(lines)])
        text = "".join(lines)
    elif operation == "cut":
        text = text[: where % (len(text) + 1)]
    elif operation == "insert":
        place = where % (len(text) + 1)
        text = text[:place] + value + text[place:]
    raw = text.encode("utf-8", errors="surrogateescape")
    if operation == "byte" and raw:
        place = where % len(raw)
        raw = raw[:place] + bytes([what % 256]) + raw[place + 1 :]
    return raw


damages = st.lists(
    st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=3
)
numbers = count()


def refused_in_one_line(form: Format, tmp: Path) -> Counter[str]:
    """Damage a format's files in many ways: each is then good, or refused in one line that names it; how many are."""
    contents = [source().encode() for source in form.sources]
    for content in contents:
        assert outcome(form, content, tmp) == "good", "what is damaged must be good before"
    long = settings.get_current_profile_name() == "long"
    outcomes: Counter[str] = Counter()

    @settings(
        max_examples=settings().max_examples if long else SHORT,
        derandomize=not long,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, len(contents) - 1), damages)
    def check(source: int, wrong: list[tuple[str, int, int]]) -> None:
        data = contents[source]
        for operation, where, what in wrong:
            data = damaged(data, operation, where, what)
        outcomes[outcome(form, data, tmp)] += 1

    check()
    return outcomes


def outcome(form: Format, data: bytes, tmp: Path) -> str:
    """Whether a file is good or refused; anything else is an error here."""
    folder = tmp / str(next(numbers))
    folder.mkdir()
    for other, text in form.beside().items():
        (folder / other).write_text(text, encoding="utf-8")
    path = folder / form.name
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecordingWarning)
        try:
            form.read(folder if form.folder else path)
        except Refused:
            return "refused as a whole"
        except JoulecastError as error:
            assert isinstance(error, InputError), f"not an error of the input: {error}"
            assert folder.name in str(error) or form.name in str(error), f"does not name the file: {error}"
            assert len(one_line(str(error))) < 2000, "too long for one line"
            return "refused"
    return "good"


def outcome_of_change(form: Format, good: str, bad: str, tmp: Path) -> str:
    """:func:`outcome` of a form's first file with a part of it replaced, which it must have."""
    text = form.sources[0]()
    assert good in text
    return outcome(form, text.replace(good, bad, 1).encode(), tmp)
