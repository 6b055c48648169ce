"""Which commands a launch script starts: its variables, arrays, conditions and functions are followed, nothing is run.

Variables that the script does not set count as unset where a condition or a default asks for them, which is noted;
where a word of the job needs one, the reader of that word says so. Scripts that it reads with ``source``, starts or
submits are followed where they lie near it or stand in it. Loops over words that it says are followed turn by turn,
others once. Other files, commands in ``$(…)`` and how often a loop turns are only known to a run: what depends on them
stays unknown.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from joulecast.errors import InputError
from joulecast.simulator.job_files.shell_conditions import TESTS, condition
from joulecast.simulator.job_files.shell_loops import is_over_arguments, options, turns
from joulecast.simulator.job_files.shell_slurm import slurm_variables
from joulecast.simulator.job_files.shell_sources import Started, is_own, sourced_tokens, started_script
from joulecast.simulator.job_files.shell_syntax import Block, Case, Function, Group, If, Loop, Node, Simple, parse
from joulecast.simulator.job_files.shell_tokens import COMPUTED, END, WRITES, Array, Operator, Word, tokens
from joulecast.simulator.job_files.shell_values import Spot, Variables, as_unset

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.S)
#: Commands that set variables.
_DECLARING = ("export", "local", "declare", "readonly", "typeset")
#: Commands whose words are shown or kept, not started.
_SHOWING = (
    "echo",
    "printf",
    "cat",
    "set",
    "unset",
    "cd",
    "mkdir",
    "source",
    ".",
    "exit",
    "return",
    "trap",
    "read",
)
#: Options of a shell that runs a text, alone or among others.
_TEXT = re.compile(r"-[a-z]*c")
#: Most scripts that one may read, each time that it does so.
MOST_SOURCED = 50
_MARKED = re.compile(f"{COMPUTED}[^{END}]*{END}")
#: Most turns of a script's loops, each time that they turn.
MOST_TURNS = 1000
#: How deep functions and texts of commands may hold each other.
MOST_DEPTH = 20


@dataclass(frozen=True, slots=True)
class Command:
    """A command that the script starts.

    Attributes
    ----------
    words
        Its words, with their lines.
    environment
        Variables that it finds: those that the script has exported by then or that stand in front of the command, and
        those of the script's own environment.
    """

    words: tuple[Spot, ...]
    environment: Mapping[str, str]

    @property
    def line(self) -> int:
        """Where it begins."""
        return self.words[0].line


@dataclass(frozen=True, slots=True)
class Script:
    """What a script starts.

    Attributes
    ----------
    commands
        In order.
    unset
        Variables that it does not set and that were taken as unset, with the lines of where that mattered.
    absent
        Scripts that it reads with ``source`` and that are not there, with their lines.
    written
        Texts that it has in it and writes to files, by their names.
    """

    commands: tuple[Command, ...]
    unset: Mapping[str, int]
    absent: Mapping[str, int]
    written: Mapping[str, str]


def read_script(text: str, file: str, given: Mapping[str, str]) -> Script:
    """The commands of a script.

    Parameters
    ----------
    text, file
        The script, and its name for errors.
    given
        Variables that the user says the environment has.

    Raises
    ------
    InputError
        The script cannot be read; names file and line.
    """
    environment = slurm_variables(text) | dict(given)
    variables = Variables(file, {name: Spot(value, 1) for name, value in environment.items()})
    reader = _Reader(variables, environment)
    reader.block(parse(tokens(text, file), file))
    return Script(tuple(reader.commands), variables.unset, reader.absent, reader.written)


class _Reader:
    def __init__(self, variables: Variables, environment: Mapping[str, str]) -> None:
        self.commands: list[Command] = []
        self._variables = variables
        self._exported = dict(environment)
        self._launcher: tuple[Spot, ...] = ()  # of srun, which starts the text that is followed
        self._functions: dict[str, Block] = {}
        self.absent: dict[str, int] = {}
        self.written: dict[str, str] = {}
        self._depth = self._sourced = self._turns = 0
        # Files of scripts that are being followed.
        self._inside: tuple[str, ...] = (str(Path(variables.file).resolve()),)

    def block(self, nodes: Block) -> bool | None:
        """Follow commands; how the last one ended, ``None`` if only a run knows."""
        status: bool | None = True
        for node in nodes:
            if (node.joined == "&&" and status is False) or (node.joined == "||" and status is True):
                continue
            if node.joined and status is None:
                self._forget((node,))
                continue
            status = self._node(node)
        return status

    def _node(self, node: Node) -> bool | None:
        if isinstance(node, Simple):
            return self._simple(node)
        if isinstance(node, Group):
            return self.block(node.body)
        if isinstance(node, Function):
            self._functions[node.name] = node.body
        elif isinstance(node, If):
            self._if(node)
        elif isinstance(node, Case):
            self._case(node)
        elif isinstance(node, Loop):
            self._loop(node)
        return True

    def _loop(self, node: Loop) -> None:
        """Follow a loop's turns, or a single one where only a run knows how many there are, and with what."""
        kind = getattr(node.head[0], "text", "")
        if is_over_arguments(node) and (kind != "for" or not self._variables.values.get("@")):
            self._arguments(node, ends=kind == "until")
            return
        name, words = turns(node, self._variables)
        for word in words or ():
            self._turns += 1
            if self._turns > MOST_TURNS:
                message = "the loops of this script have more turns than a job's"
                raise InputError(message, file=self._variables.file, line=node.line)
            self._variables.assign(name, word)
            self.block(node.body)
        if words is None:
            if name:
                self._variables.assign(
                    name, Spot(f"{COMPUTED}${name}, over which line {node.line} goes{END}", node.line)
                )
            self._forget(node.body)
            self.block(node.body)
            self._forget(node.body)

    def _arguments(self, node: Loop, *, ends: bool) -> None:
        """Follow a loop over what a script or function is called with, while there is any and a turn takes some."""
        asked, known = parse(list(node.head[1:]), self._variables.file), self._variables.values
        given = known.get("@", ())
        if said := options(node, given if isinstance(given, tuple) else ()):
            for letter, value in said[1]:
                known |= {said[0]: Spot(letter, value.line), "OPTARG": value}
                self.block(node.body)
            return
        while (left := known.get("@")) and (holds := self.block(asked)) is not None and holds != ends:
            self.block(node.body)
            if known.get("@") == left:
                return

    def _if(self, node: If) -> None:
        for condition_nodes, body in node.branches:
            holds = self.block(condition_nodes) if condition_nodes else True
            if holds is None:
                self._forget(tuple(node for _, branch in node.branches for node in branch))
                return
            if holds:
                self.block(body)
                return

    def _case(self, node: Case) -> None:
        word = as_unset(self._variables.text(node.word.text, node.word.line), self._variables, node.word.line)
        if word is None:
            self._forget(tuple(inner for _, body in node.arms for inner in body))
            return
        for patterns, body in node.arms:
            texts = [self._variables.text(pattern, node.word.line) for pattern in patterns]
            if any(fnmatch.fnmatchcase(word, text) for text in texts):
                self.block(body)
                return

    def _forget(self, nodes: Block) -> None:
        """What these commands set is not known any more: only a run knows whether they run."""
        for node in nodes:
            if isinstance(node, Simple) and isinstance(node.words[0], Word) and node.words[0].text == WRITES:
                self._simple(node)  # what it would write is known all the same
            elif isinstance(node, Simple):
                for name, line in _assigned(node):
                    why = f"{name}, which line {line} sets under a condition that only a run decides"
                    self._variables.values[name] = Spot(f"{COMPUTED}${why}{END}", line)
            elif isinstance(node, If):
                self._forget(tuple(inner for _, body in node.branches for inner in body))
            elif isinstance(node, Case):
                self._forget(tuple(inner for _, body in node.arms for inner in body))
            elif isinstance(node, Loop | Group):
                self._forget(node.body)

    def _simple(self, node: Simple) -> bool | None:
        words = list(node.words)
        negated = isinstance(words[0], Word) and words[0].text == "!"
        if negated:
            words.pop(0)
        if not words:
            return None
        first = words[0]
        if isinstance(first, Word) and (first.text in TESTS or first.text.startswith("((")):
            holds = condition(words, self._variables)
            return None if holds is None else holds != negated
        self._command([word for word in words if not isinstance(word, Operator)])
        return True

    def _command(self, words: list[Word | Array]) -> None:
        """Assignments, a call of a function, or a command that the script starts."""
        declares = isinstance(words[0], Word) and words[0].text in _DECLARING
        if declares:
            words = [word for word in words[1:] if not (isinstance(word, Word) and word.text.startswith("-"))]
        own: dict[str, str] = {}
        while words:
            name = self._assign(words[0])
            if name is None:
                break
            own[name] = self._variables.scalar(name, words[0].line)
            words = words[1:]
        if declares or not words:
            self._exported |= own if declares else {name: own[name] for name in own if name in self._exported}
            return
        spots = [
            spot for word in words if isinstance(word, Word) for spot in self._variables.words(word.text, word.line)
        ]
        if spots:
            self._start(spots, own)

    def _assign(self, word: Word | Array) -> str | None:
        """Set what a word sets: its name; ``None`` if it sets nothing."""
        known = self._variables
        if isinstance(word, Array):
            items = tuple(spot for item in word.items for spot in known.words(item.text, item.line))
            earlier = known.values.get(word.name, ()) if word.adds else ()
            earlier = (earlier,) if isinstance(earlier, Spot) else earlier
            known.assign(word.name, (*earlier, *items))
            return word.name
        match = _ASSIGNMENT.fullmatch(word.text)
        if match is None:
            return None
        earlier_text = known.scalar(match[1], word.line) if match[2] and match[1] in known.values else ""
        known.assign(match[1], Spot(earlier_text + known.text(match[3], word.line), word.line))
        return match[1]

    def _start(self, spots: list[Spot], own: Mapping[str, str]) -> None:
        name = spots[0].text
        if name not in (*_SHOWING, WRITES, "eval", *self._functions) and self._inner(spots) is None:
            started = started_script(spots, self._variables.file, self.written)
            if started is not None and started.name not in self._inside:
                self._child(started, own)
                return
        if name in self._functions or name == "eval" or self._inner(spots) is not None:
            self._depth += 1
            if self._depth > MOST_DEPTH:
                message = "functions or commands of this script call each other without end"
                raise InputError(message, file=self._variables.file, line=spots[0].line)
            if name in self._functions:
                with self._variables.arguments(tuple(spots[1:])):
                    self.block(self._functions[name])
            else:
                inner, outer = self._inner(spots), self._launcher
                text = " ".join(spot.text for spot in spots[1:]) if inner is None else inner
                if inner is not None and name.rpartition("/")[2] == "srun":
                    self._launcher = tuple(spots[: [spot.text for spot in spots].index(inner) - 2])
                self._again(text, spots[0].line)
                self._launcher = outer
            self._depth -= 1
        elif name in ("source", ".") and len(spots) > 1:
            self._source(spots[1])
        elif name == WRITES:
            self.written[spots[1].text] = spots[-1].text
        elif name == "shift":
            self._variables.shift(spots[1].text if len(spots) > 1 else "1")
        elif name not in _SHOWING:
            self.commands.append(Command((*self._launcher, *spots), {**self._exported, **own}))

    def _source(self, spot: Spot) -> None:
        """Follow a script that this one reads; one that is not there is noted if it is the job's own."""
        self._count((spot,))
        found = sourced_tokens(spot, self._variables.file)
        if found is not None:
            self.block(parse(found, self._variables.file))
        elif is_own(spot.text):
            self.absent[_MARKED.sub("…", spot.text)] = spot.line

    def _count(self, spots: tuple[Spot, ...]) -> None:
        self._sourced += 1
        if self._sourced > MOST_SOURCED:
            message = "the scripts that this one reads with source, or starts, read each other without end"
            raise InputError(message, file=self._variables.file, line=spots[0].line if spots else None)

    def _child(self, started: Started, own: Mapping[str, str]) -> None:
        """Follow a script that this one starts or submits; it sees what this one has exported, and its arguments."""
        self._count(started.before or started.arguments)
        known, outer = self._variables, (self._exported, self._functions, self._launcher, self._inside)
        values, environment = known.values, {**self._exported, **own, **started.slurm}
        known.values = {name: Spot(value, 1) for name, value in environment.items()}
        self._exported, self._functions, self._inside = environment, {}, (*self._inside, started.name or "\0")
        if started.before and started.before[0].text.rpartition("/")[2] == "srun":
            self._launcher = started.before
        with known.arguments(started.arguments):
            self.block(parse(started.tokens, known.file))
        known.values = values
        self._exported, self._functions, self._launcher, self._inside = outer

    def _inner(self, spots: list[Spot]) -> str | None:
        """The text of commands behind ``bash -c``."""
        texts = [spot.text for spot in spots]
        for place, text in enumerate(texts[:-2]):
            if text.rpartition("/")[2] in ("bash", "sh") and _TEXT.fullmatch(texts[place + 1]):
                return texts[place + 2]
        return None

    def _again(self, text: str, line: int) -> None:
        """Follow a text that is a command itself; its lines are that of where it stands."""
        shown = "\n" * (line - 1) + text
        self.block(parse(tokens(shown, self._variables.file), self._variables.file))


def _assigned(node: Simple) -> list[tuple[str, int]]:
    found = []
    for word in node.words:
        if isinstance(word, Array):
            found.append((word.name, word.line))
        elif isinstance(word, Word) and (match := _ASSIGNMENT.fullmatch(word.text)):
            found.append((match[1], word.line))
    return found
