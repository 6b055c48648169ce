"""Every error that Joulecast raises on purpose; each message names the file, the key and the remedy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate

#: Most letters of the names that an error lists.
MOST_NAMED = 470


class JoulecastError(Exception):
    """Base of all expected errors; the command line prints it without a traceback."""

    exit_status = 2

    def __reduce__(self) -> tuple[object, ...]:
        """As it is, so that a worker's error reaches the process that asked."""
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[JoulecastError], args: tuple[object, ...], state: dict[str, object]) -> JoulecastError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class InputError(JoulecastError):
    """Input that cannot be used.

    Parameters
    ----------
    message
        What is wrong, as one sentence without a final full stop.
    file, line, key
        Where it is wrong, as far as known.
    remedy
        What the user can do about it.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        key: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.file, self.line = file, line
        self.reword(message, key, remedy)

    def reword(self, message: str, key: str | None, remedy: str | None) -> None:
        """Say it otherwise."""
        self.message, self.key = short(message), None if key is None else short(key)
        self.remedy = None if remedy is None else short(remedy)
        place = self.file or ""
        if self.line is not None:
            place += f":{self.line}"
        if self.key is not None:
            place += f" [{self.key}]" if place else f"[{self.key}]"
        text = f"{place}: {self.message}" if place else self.message
        self.args = (f"{text}. {self.remedy}" if self.remedy else text,)


@contextmanager
def arguments_for_options(names: Mapping[str, str]) -> Iterator[None]:
    """Let errors name a function's arguments where they name options of the command line.

    Parameters
    ----------
    names
        Arguments by option, with a value where the option is a switch, such as ``{"--resume": "resume=True"}``.

    Examples
    --------
    >>> with arguments_for_options({"--out": "out", "--resume": "resume=True"}):
    ...     raise InputError("no file", key="--resume", remedy="Give --out FILE.")
    Traceback (most recent call last):
    joulecast.errors.InputError: [resume]: no file. Give out FILE.
    """

    def said(text: str | None) -> str | None:
        option = r"--[a-z-]*[a-z](?![\w-])"  # all of it: a job's flag may begin as one
        return None if text is None else re.sub(option, lambda found: names.get(found[0], found[0]), text)

    try:
        yield
    except InputError as error:
        key = None if error.key is None else (said(error.key) or "").partition("=")[0]
        error.file = said(error.file)
        error.reword(said(error.message) or "", key, said(error.remedy))
        raise


class UnknownNameError(InputError):
    """A name that no catalogue holds; the message lists the nearest known names."""

    def __init__(
        self, kind: str, name: str, known: Iterable[str], *, file: str | None = None, key: str | None = None
    ) -> None:
        super().__init__(f"unknown {kind} {name!r}", file=file, key=key, remedy=did_you_mean(name, sorted(known)))


class DoesNotFitError(InputError):
    """A plan whose memory exceeds the GPU's."""


class NotYetError(InputError):
    """A reserved option that is understood but not implemented."""


class DataError(InputError):
    """A broken line of a data file."""


class DeviceError(InputError):
    """A GPU that is missing, does not answer, or is not fit to be measured."""


class PermissionDeniedError(DeviceError):
    """The driver refuses a change of clocks or limits to this user."""


class MeasurementError(InputError):
    """A microbenchmark that could not be run or measured."""


class GuardError(JoulecastError):
    """A conservation law was violated inside a simulation: a defect of Joulecast, not of the input.

    Parameters
    ----------
    message
        Which law, and where.
    plan
        The plan with which it was found, as far as known: it makes the message a report of the defect.
    """

    exit_status = 3

    def __init__(self, message: str, plan: object | None = None) -> None:
        self.message, self.plan = message, plan
        report = f". This is a defect of Joulecast: please report it with this plan: {plan!r}"
        super().__init__(message if plan is None else f"{message}{report}")


def short(text: str, most: int = 500) -> str:
    """A text without its middle where it is longer than a reader wants: a damaged file may repeat itself in it.

    >>> short("0123456789", most=5)
    '01…89'
    """
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def counted(count: int, thing: str) -> str:
    """So many of a thing.

    >>> counted(1, "plan"), counted(2, "plan")
    ('1 plan', '2 plans')
    """
    return f"{count} {thing}{'' if count == 1 else 's'}"


def nearest(name: str, known: Iterable[str], count: int = 3, alike: float = 0.5) -> list[str]:
    """Known names closest in spelling to ``name``, best first; at least this alike (difflib's ratio), all of them or as
    far as their first hyphen.

    Before them come names that begin with all of it, or are, as far as their first hyphen, one of its words.

    >>> nearest("A100", ["a40", "a100-sxm", "h100-sxm"]), nearest("NVIDIA H100 80GB HBM3", ["gh200", "h100-sxm"])
    (['a100-sxm', 'h100-sxm', 'a40'], ['h100-sxm'])
    >>> nearest("h2000", ["gh200", "b200", "h200-sxm"])[0]
    'h200-sxm'
    """
    by_fold, word = {k.lower(): k for k in known}, short(name.lower())
    words = set(re.split(r"[^a-z0-9.]+", word))
    forms: dict[str, list[str]] = {}
    for k in by_fold:
        for form in {k, k.split("-")[0]}:
            forms.setdefault(form, []).append(k)
    close = [k for form in difflib.get_close_matches(word, forms, n=1 + len(forms), cutoff=alike) for k in forms[form]]
    begin = [k for k in by_fold if len(word) > 1 and (k.startswith(word) or k.split("-")[0] in words)]
    begin.sort(key=lambda k: difflib.SequenceMatcher(None, word, k).ratio(), reverse=True)
    return [by_fold[k] for k in dict.fromkeys([*begin, *close])][:count]


def did_you_mean(
    name: str, known: Iterable[str], count: int = 3, *, alike: float = 0.5, otherwise: str | None = None
) -> str:
    """The remedy of a misspelt name: the nearest known ones; where none is near ``otherwise``, by default all.

    >>> did_you_mean("sofmax", ["softmax", "copy"]), did_you_mean("x", ["softmax", "copy"])
    ("Did you mean 'softmax'?", 'Known: softmax, copy.')
    """
    known = list(known)
    if near := nearest(name, known, count, alike):
        return f"Did you mean {' or '.join(map(repr, near))}?"
    return listed(known) if otherwise is None else otherwise


def listed(known: Sequence[str]) -> str:
    """The remedy of a name that resembles none: known ones, as many as can be read.

    >>> listed(["softmax", "copy"])
    'Known: softmax, copy.'
    """
    fit = sum(end <= MOST_NAMED for end in accumulate(len(name) + len(", ") for name in known))
    more = f" and {len(known) - fit} more" if len(known) > fit else ""
    return f"Known: {', '.join(known[:fit])}{more}."
