"""Options of a command, as argparse takes them: a name, then values up to the next name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from joulecast.errors import InputError
from joulecast.simulator.job_files.shell_tokens import COMPUTED, END, UNSET
from joulecast.simulator.job_files.shell_values import Spot, marks

#: From which likeness on an unknown name is taken for a misspelt one.
ALIKE = 0.8
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
#: A word of which nothing is told.
_UNTOLD = re.compile(f"[{UNSET}{COMPUTED}][^{END}]*{END}")


@dataclass(frozen=True, slots=True)
class Given:
    """An option with its values; ``key`` is what it is called where it stands, if not by its name."""

    name: str
    values: tuple[str, ...]
    line: int
    key: str = ""


@dataclass
class Flags:
    """The options of a command.

    Attributes
    ----------
    file
        Named in errors.
    given
        By name, with the dashes; of one that is given again the last counts.
    known
        Names that somebody has asked for.
    whole_configuration
        Whether they come from a file that has every name of the tool, of which many are not known here.
    """

    file: str
    given: Mapping[str, Given]
    known: set[str] = field(default_factory=set)
    whole_configuration: bool = False

    def on(self, name: str) -> bool:
        """Whether a switch is given.

        Raises
        ------
        InputError
            It has a value, which such an option does not take.
        """
        found = self._get(name)
        values = () if found is None else tuple(value for value in found.values if not marks(value))
        if values:
            raise self.error(f"takes no value, and has {values[0]!r}", name, "Remove the value.")
        return found is not None

    def text(self, name: str, choices: Collection[str] = ()) -> str | None:
        """Its one value; ``None`` without it.

        Raises
        ------
        InputError
            It has no value or several, one that the script does not tell, or one that is no choice.
        """
        found = self._get(name)
        if found is None:
            return None
        if not found.values:
            raise self.error("has no value", name, "Give one.")
        if len(found.values) > 1:
            raise self.error(f"has {len(found.values)} values: {' '.join(found.values)}", name, "Give one.")
        value = self._told(found.values[0], name)
        if choices and value not in choices:
            near = difflib.get_close_matches(value, choices, n=1)
            remedy = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(choices)}."
            raise self.error(f"{value!r} is not a known value", name, remedy)
        return value

    def texts(self, name: str) -> tuple[str, ...] | None:
        """All its values."""
        found = self._get(name)
        return None if found is None else tuple(self._told(value, name) for value in found.values)

    def whole(self, name: str, default: int | None = None, *, least: int = 1) -> int | None:
        """A whole number.

        Raises
        ------
        InputError
            As :meth:`text` does, or it is no whole number, or below the least.
        """
        value = self.text(name)
        if value is None:
            return default
        plain = value.replace("_", "")
        if not _WHOLE.fullmatch(plain):
            raise self.error(f"{value!r} is not a whole number", name, "Write a whole number.")
        if int(plain) < least:
            raise self.error(f"{value} is below {least}", name, f"Use at least {least}.")
        return int(plain)

    def number(self, name: str, default: float | None = None) -> float | None:
        """A number."""
        value = self.text(name)
        if value is None:
            return default
        try:
            return float(value)
        except ValueError:
            raise self.error(f"{value!r} is not a number", name, "Write a number.") from None

    def needed(self, name: str, value: int | None) -> int:
        """A value that must be there.

        Raises
        ------
        InputError
            It is not.
        """
        if value is None:
            raise InputError(
                f"the job has no {name}", file=self.file, key=name, remedy="Add it: no plan goes without it."
            )
        return value

    def line(self, name: str) -> int | None:
        """Where an option stands."""
        found = self.given.get(name)
        return None if found is None else found.line

    def error(self, message: str, name: str, remedy: str) -> InputError:
        """An error at an option."""
        return InputError(message, file=self.file, line=self.line(name), key=self.key(name), remedy=remedy)

    def key(self, name: str) -> str:
        """What an option is called where it stands."""
        found = self.given.get(name)
        return name if found is None or not found.key else found.key

    def _get(self, name: str) -> Given | None:
        self.known.add(name)
        return self.given.get(name)

    def _told(self, value: str, name: str) -> str:
        if marks(value):
            message, remedy = untold(value)
            raise self.error(message, name, remedy)
        return value


def read_flags(words: Sequence[Spot], file: str) -> tuple[Flags, list[Spot]]:
    """Options of a command's words, and the words that belong to none."""
    given: dict[str, Given] = {}
    loose: list[Spot] = []
    name, line = "", 0
    values: list[str] = []
    for spot in [*words, Spot("--", 0)]:
        if not spot.text.startswith("--"):
            if name:
                values.append(spot.text)
            else:
                loose.append(spot)
            continue
        if name:
            behind = [value for value in values[1:] if _UNTOLD.fullmatch(value)]
            if len(behind) == len(values) - 1 and not marks(values[0]) and not name.endswith("-path"):
                loose += [Spot(value, line) for value in behind]  # more options, which nothing tells
                values = values[:1]
            given[name] = Given(name, tuple(values), line)
        name, equals, value = spot.text.partition("=")
        line, values = spot.line, [value] if equals else []
    return Flags(file, given), loose


def untold(value: str) -> tuple[str, str]:
    """What is wrong with a value that the script does not tell, and the remedy."""
    what = marks(value)[0]
    if what.isidentifier() or what.isdigit():
        return f"the value is ${what}, which the script does not set", f"Say what it is: --env {what}=VALUE."
    message = f"the value depends on {what}, which only a run of the script could tell"
    return message, "Write the value into the script, or give the job's command."


def misspelt(name: str, known: Collection[str]) -> str | None:
    """The known name that an unknown one is a misspelling of; ``None`` if it is like none."""
    for alike in (name.replace("_", "-"), name.replace("-", "_")):
        if alike in known:
            return alike
    found = difflib.get_close_matches(name, known, n=1, cutoff=ALIKE)
    return found[0] if found else None
