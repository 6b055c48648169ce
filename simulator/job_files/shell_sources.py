"""Scripts that a script reads with ``source`` or starts, where they lie near it or stand in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from joulecast.files import read_text
from joulecast.simulator.job_files.named_files import named_path
from joulecast.simulator.job_files.shell_slurm import slurm_variables
from joulecast.simulator.job_files.shell_tokens import COMPUTED, END, FED, Array, Token, tokens
from joulecast.simulator.job_files.shell_values import Spot, marks

#: Of a path that only a run could tell, what says that it begins in the script's own folder.
_OWN_FOLDER = ("dirname", "pwd", "PWD", "BASH_SOURCE")
#: Scripts that set up a machine's own environment, not the job.
_MACHINE = ("activate", ".bashrc", ".bash_profile", ".profile", "conda.sh", "setvars.sh")
#: How scripts are called, and commands behind which one may stand.
_CALLED = (".sh", ".bash", ".slurm", ".sbatch")
_STARTING = {"bash", "sh", "srun", "sbatch"}


@dataclass(frozen=True, slots=True)
class Started:
    """A script that a command starts.

    Attributes
    ----------
    name
        Its file; empty for a text.
    tokens
        What is in it.
    before, arguments
        Words of the command in front of it and behind it.
    slurm
        Variables that Slurm sets for it, if it is submitted.
    """

    name: str
    tokens: list[Token]
    before: tuple[Spot, ...]
    arguments: tuple[Spot, ...]
    slurm: Mapping[str, str]


def is_own(name: str) -> bool:
    """Whether a path is of the job's own, not of the machine's: relative, or from the script's folder."""
    if name.endswith(_MACHINE):
        return False
    return not name.startswith(("/", "~")) and all(any(word in mark for word in _OWN_FOLDER) for mark in marks(name))


def sourced_tokens(spot: Spot, file: str) -> list[Token] | None:
    """Tokens of a script that another one reads, all on the line where it does so; ``None`` if it is not there.

    Raises
    ------
    InputError
        It is there and cannot be read; names it.
    """
    path = _near(spot.text, file)
    return None if path is None else _read(read_text(path, "shell script"), str(path), spot.line)


def started_script(spots: list[Spot], file: str, written: Mapping[str, str]) -> Started | None:
    """The script that a command starts, with its arguments: a text, one that ``written`` has, or one that lies near.

    Raises
    ------
    InputError
        It is there and cannot be read; names it.
    """
    texts = [spot.text for spot in spots]
    if texts[0] == FED:
        return _submitted(spots[1:-1], "", tokens("\n" * (spots[-1].line - 1) + texts[-1], file), texts[-1], ())
    if wrapped := next((place for place, text in enumerate(texts) if text.startswith("--wrap")), 0):
        inner = texts[wrapped].partition("=")[2] or " ".join(texts[wrapped + 1 : wrapped + 2])
        found = _read(inner, file, spots[0].line)
        others = spots[:wrapped] + spots[wrapped + 1 :]
        return _submitted(others, "", found, inner, ()) if "sbatch" in texts[0] else None
    before: set[str] = set()
    for place, name in enumerate(texts):
        if name.endswith(".py"):
            return None
        if name.endswith(_CALLED) and (not place or before & _STARTING):
            own = written.get(name, written.get(name.removeprefix("./")))
            path = None if own is not None else _near(name, file)
            text = own if path is None else read_text(path, "shell script")
            if text is not None:
                found = _read(text, str(path or name), spots[place].line)
                return _submitted(spots[:place], str(path or name), found, text, tuple(spots[place + 1 :]))
        before.add(name.rpartition("/")[2])
    return None


def _submitted(
    before: Sequence[Spot], name: str, found: list[Token], text: str, arguments: tuple[Spot, ...]
) -> Started:
    """What a command starts; options of ``sbatch`` win over those that stand in the script."""
    submitted = any(spot.text.rpartition("/")[2] == "sbatch" for spot in before)
    options = "\n#SBATCH " + " ".join(spot.text for spot in before[1:])
    slurm = slurm_variables(text + options) if submitted else {}
    return Started(name, found, tuple(before), arguments, slurm)


def _near(name: str, file: str) -> Path | None:
    """Where a script lies that another one names; ``None`` if it is not there, or the machine's own."""
    if name.endswith(_MACHINE) or (marks(name) and not is_own(name)):
        return None
    own = name
    while COMPUTED in own:  # the script's own folder, however it is found
        own = own[: own.index(COMPUTED)] + own[own.index(END) + 1 :]
    return named_path(own.lstrip("/") if own != name else own, file)


def _read(text: str, file: str, line: int) -> list[Token]:
    """Tokens of another script, all on the line of the one that reads or starts it."""
    return [_at(token, line) for token in tokens(text, file)]


def _at(token: Token, line: int) -> Token:
    if isinstance(token, Array):
        items = tuple(replace(item, line=line) for item in token.items)
        return replace(token, items=items, line=line)
    return replace(token, line=line)
