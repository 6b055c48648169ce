"""What a script's words stand for: variables, arrays, defaults and sums; what only a run could tell stays marked."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from joulecast.errors import InputError
from joulecast.files import is_whole
from joulecast.simulator.job_files.shell_tokens import COMPUTED, END, MARKS, UNSET

_MARK = re.compile(f"[{UNSET}{COMPUTED}]([^{END}]*){END}")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_PARAMETER = re.compile(r"(#?)([A-Za-z_]\w*|[0-9]+|[@*])(?:\[([@*]|[^\]]*)\])?(.*)", re.S)
#: Names of a job's nodes, which are as many as it has, and how many there are.
_NODES = re.compile(r"scontrol\s+show\s+hostnames?\b[^|)`]*")
_COUNTED = re.compile(rf"(?:\$\(|`)\s*{_NODES.pattern}\|\s*wc\s+-l\s*[)`]")
#: ``expr`` with whole numbers and variables: stars and brackets are quoted there.
_EXPR = re.compile(r"""\$\(\s*expr((?:\s+(?:[-+/%]|\\[*()]|(['"])[*()]\2|\d+|"?\$\w+"?|"?\$\{\w+\}"?))+)\s*\)""")
_DEFAULT = re.compile(r"(:?)([-=+?])(.*)", re.S)
#: A word of an array whose words have names.
_NAMED = re.compile(r"\[([^\]]*)\]=(.*)", re.S)
#: What makes a word of each of an array's in quotes, and none of an empty one.
_EACH = re.compile(r"\$@|\$\{(?:@|\w+\[@\])(?::\d+)?\}")
#: Where a part of an array begins; and names of what a function is called with.
_FROM, _POSITION = re.compile(r":(\d+)"), re.compile(r"\d+|[@*#]")
#: Most letters that an expansion may have: a script that doubles a variable again and again ends here.
MOST_LETTERS = 1_000_000


@dataclass(frozen=True, slots=True)
class Spot:
    """A word of a command with its line."""

    text: str
    line: int


Value = Spot | tuple[Spot, ...]


@dataclass
class Variables:
    """A script's variables while it is read.

    Attributes
    ----------
    file
        Named in errors.
    values
        What the script, or the user, sets.
    unset
        Names that were taken as unset where that decided something, with their lines.
    """

    file: str
    values: dict[str, Value] = field(default_factory=dict)
    unset: dict[str, int] = field(default_factory=dict)

    def words(self, raw: str, line: int) -> list[Spot]:
        """The words that a raw word becomes: one, several from an array or an unquoted variable, or none."""
        pieces = _Pieces(self, line)
        pieces.take(raw)
        return pieces.words()

    def text(self, raw: str, line: int) -> str:
        """A raw word as one text, as an assignment takes it."""
        return " ".join(spot.text for spot in _whole(self, raw, line))

    def lookup(self, name: str, line: int) -> Value:
        """A variable's value, or a text that marks that nothing sets it."""
        if name in self.values:
            return self.values[name]
        if name in ("@", "*"):
            return ()
        if name == "#":
            return Spot("0", line)
        if name in ("?", "$", "!", "-", "PWD", "HOME", "USER", "RANDOM", "HOSTNAME"):
            return Spot(f"{COMPUTED}${name}{END}", line)
        return Spot(f"{UNSET}{name}{END}", line)

    def scalar(self, name: str, line: int) -> str:
        """The same as one text; an array's first word."""
        value = self.lookup(name, line)
        if isinstance(value, Spot):
            return value.text
        return value[0].text if value else ""

    @contextmanager
    def arguments(self, words: tuple[Spot, ...]) -> Iterator[None]:
        """What a function is called with, while it runs: ``$1``, ``$@``, ``$#``."""
        outer = {name: value for name, value in self.values.items() if _POSITION.fullmatch(name)}
        self._bind(words)
        try:
            yield
        finally:
            self._unbind()
            self.values |= outer

    def shift(self, count: str) -> None:
        """Drop the first of a function's words; of the script's own none is known."""
        words = self.values.get("@")
        if isinstance(words, tuple):
            self._bind(words[int(count) if is_whole(count) else 1 :])

    def _bind(self, words: tuple[Spot, ...]) -> None:
        self._unbind()
        line = words[0].line if words else 1
        self.values |= {str(place): word for place, word in enumerate(words, 1)}
        together = " ".join(word.text for word in words)
        self.values |= {"@": words, "*": Spot(together, line), "#": Spot(str(len(words)), line)}

    def _unbind(self) -> None:
        for name in [name for name in self.values if _POSITION.fullmatch(name)]:
            del self.values[name]

    def assign(self, name: str, value: Value) -> None:
        """Set a variable."""
        size = len(value.text) if isinstance(value, Spot) else sum(len(spot.text) for spot in value)
        if size > MOST_LETTERS:
            raise InputError(f"${name} grows beyond what a job's script holds", file=self.file)
        self.values[name] = value


def marks(text: str) -> list[str]:
    """What a text has in it that nothing tells: names of variables, and commands."""
    return [found[1] for found in _MARK.finditer(text)]


def as_unset(text: str, variables: Variables, line: int) -> str | None:
    """A text with unset variables as empty, which is noted; ``None`` if a run alone could tell it."""
    if COMPUTED in text:
        return None
    for name in marks(text):
        variables.unset.setdefault(name, line)
    return _MARK.sub("", text)


def _whole(variables: Variables, raw: str, line: int) -> list[Spot]:
    pieces = _Pieces(variables, line, splits=False)
    pieces.take(raw)
    return pieces.words()


class _Pieces:
    """Builds the words of one raw word."""

    def __init__(self, variables: Variables, line: int, *, splits: bool = True) -> None:
        self._variables, self._line, self._splits = variables, line, splits
        self._words: list[Spot] = []
        self._open: str | None = None

    def words(self) -> list[Spot]:
        """What has been built."""
        if self._open is not None:
            self._words.append(Spot(self._open, self._line))
            self._open = None
        return self._words

    def take(self, raw: str, *, quoted: bool = False) -> None:
        """Go through a raw text."""
        at = 0
        while at < len(raw):
            letter = raw[at]
            if letter in MARKS:
                end = raw.find(END, at) + 1
                self._add(raw[at:end])
                at = end
            elif letter == "\\":
                self._add(raw[at + 1 : at + 2] if not quoted or raw[at + 1 : at + 2] in '$`"\\' else raw[at : at + 2])
                at += 2
            elif letter == "'" and not quoted:
                end = raw.find("'", at + 1)
                self._add(raw[at + 1 : end])
                at = end + 1
            elif letter == '"' and not quoted:
                end = _end_of_quote(raw, at)
                if not _EACH.fullmatch(raw, at + 1, end):  # which may be no words at all
                    self._add("")
                self.take(raw[at + 1 : end], quoted=True)
                at = end + 1
            elif letter == "`":
                end = raw.find("`", at + 1)
                self._add(self._computed(raw[at : end + 1]))
                at = end + 1 if end > 0 else len(raw)
            elif letter == "$":
                at = self._expansion(raw, at, quoted)
            else:
                self._add(letter)
                at += 1

    def _expansion(self, raw: str, at: int, quoted: bool) -> int:
        """Take what a dollar sign begins; where it ends."""
        if raw.startswith("$((", at):
            end = _end_of_bracket(raw, at + 1)
            self._add(arithmetic(raw[at + 3 : end - 2], self._variables, self._line))
            return end
        if raw.startswith("$(", at):
            end = _end_of_bracket(raw, at + 1)
            self._add(self._computed(raw[at:end]))
            return end
        if raw.startswith("${", at):
            end = _end_of_bracket(raw, at + 1)
            self._put(self._parameter(raw[at + 2 : end - 1]), quoted)
            return end
        if match := _NAME.match(raw, at + 1):
            self._put(self._variables.lookup(match[0], self._line), quoted)
            return match.end()
        self._add("$")
        return at + 1

    def _computed(self, raw: str) -> str:
        """What a command would print: a sum where it is ``expr`` with one, a number of nodes, else a mark."""
        if _COUNTED.fullmatch(raw):
            return self._variables.scalar("SLURM_NNODES", self._line)
        if found := _EXPR.fullmatch(raw):
            text = arithmetic(re.sub(r"[\\\"']", "", found[1]), self._variables, self._line)
            if not text.startswith(COMPUTED):
                return text
        return f"{COMPUTED}{_readable(raw)}{END}"

    def _parameter(self, inside: str) -> Value:
        """``${…}``: a variable, an array, or one with a default."""
        match = _PARAMETER.fullmatch(inside)
        unknown = Spot(f"{COMPUTED}${{{_readable(inside)}}}{END}", self._line)
        if match is not None and match[1] and match[3] in ("@", "*") and not match[4]:
            return self._size(self._variables.lookup(match[2], self._line), unknown)
        if match is None or match[1]:
            return unknown
        name, index, rest = match[2], match[3], match[4]
        value = self._variables.lookup(name, self._line)
        if not isinstance(value, Spot) and "@" not in (name, index) and "*" not in (name, index):
            value = self._element(value, index or "0")
        if not rest:
            return value
        if not isinstance(value, Spot) and (cut := _FROM.fullmatch(rest)):
            return value[max(0, int(cut[1]) - (name == "@")) :]
        default = _DEFAULT.fullmatch(rest)
        if default is None:
            return unknown
        missing = isinstance(value, Spot) and UNSET in value.text
        empty = missing or value == () or (bool(default[1]) and isinstance(value, Spot) and not value.text)
        if default[2] == "+":
            return Spot("" if empty else self._variables.text(default[3], self._line), self._line)
        if not empty or default[2] == "?":
            return value
        found = Spot(self._variables.text(default[3], self._line), self._line)
        if missing:
            self._variables.unset.setdefault(name, self._line)
        if default[2] == "=":
            self._variables.assign(name, found)
        return found

    def _size(self, array: Value, unknown: Spot) -> Spot:
        """How many words an array has; of the names of a job's nodes, as many as it has nodes."""
        words = (array,) if isinstance(array, Spot) else array
        if len(words) == 1 and any(_NODES.search(mark) and "|" not in mark for mark in marks(words[0].text)):
            return Spot(self._variables.scalar("SLURM_NNODES", self._line), self._line)
        return unknown if any(marks(spot.text) for spot in words) else Spot(str(len(words)), self._line)

    def _element(self, array: tuple[Spot, ...], index: str) -> Spot:
        """A word of an array by its place, or by its name in one that has names: ``([a]=1 [b]=2)``."""
        named = {match[1]: match[2] for spot in array if (match := _NAMED.fullmatch(spot.text))}
        found = self._variables.text(index, self._line) if named else arithmetic(index, self._variables, self._line)
        if marks(found):
            return Spot(found, self._line)
        if named:
            return Spot(named.get(found, ""), self._line)
        place = int(found)
        return array[place] if -len(array) <= place < len(array) else Spot("", self._line)

    def _put(self, value: Value, quoted: bool) -> None:
        """Add a variable's value: its words, or in quotes those of an array."""
        if isinstance(value, Spot) and (quoted or not self._splits):
            self._add(value.text)
            return
        spots = (value,) if isinstance(value, Spot) else value
        pieces = [(piece, spot.line) for spot in spots for piece in ([spot.text] if quoted else _split(spot.text))]
        for number, (piece, line) in enumerate(pieces):
            if number:
                self.words()
            self._add(piece)
            if (piece.startswith("--") and number + 1 < len(pieces)) or isinstance(value, tuple):
                self._close(line)

    def _close(self, line: int) -> None:
        if self._open is not None:
            self._words.append(Spot(self._open, line))
            self._open = None

    def _add(self, text: str) -> None:
        self._open = (self._open or "") + text
        if len(self._open) > MOST_LETTERS:
            message = "a word here grows beyond what a job's script holds"
            raise InputError(message, file=self._variables.file, line=self._line)


def _split(text: str) -> list[str]:
    """Words of an unquoted text, what is marked in one piece."""
    return re.findall(rf"(?:[{UNSET}{COMPUTED}][^{END}]*{END}|\S)+", text)


def _readable(text: str) -> str:
    return re.sub(f"[{UNSET}{COMPUTED}{END}]", "", " ".join(text.split()))[:80]


def _end_of_quote(raw: str, start: int) -> int:
    """Where the double quote that opens at ``start`` closes; the scanner has seen that it does."""
    at = start + 1
    while at < len(raw) and raw[at] != '"':
        if raw[at] == "\\":
            at += 2
        elif raw[at] == "$" and raw[at + 1 : at + 2] in ("(", "{"):
            at = _end_of_bracket(raw, at + 1)
        else:
            at += 1
    return at


def _end_of_bracket(raw: str, start: int) -> int:
    """Behind the bracket that closes the one at ``start``."""
    opening, closing, depth, at = raw[start], ")" if raw[start] == "(" else "}", 0, start
    while at < len(raw):
        letter = raw[at]
        if letter == "\\":
            at += 2
            continue
        if letter == '"' and at > start:
            at = _end_of_quote(raw, at) + 1
            continue
        depth += (letter == opening) - (letter == closing)
        at += 1
        if not depth:
            break
    return at


_OPERATIONS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARED: Mapping[type, Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def arithmetic(expression: str, variables: Variables, line: int) -> str:
    """Value of an arithmetic expansion as text; a mark where a part of it is not known."""
    text = variables.text(expression, line)
    text = re.sub(r"[A-Za-z_]\w*(?![^\x01\x02]*\x03)", lambda name: variables.scalar(name[0], line) or "0", text)
    if unknown := marks(text):
        kind = COMPUTED if COMPUTED in text else UNSET
        return f"{kind}{unknown[0]}{END}"
    try:
        return str(int(_value(ast.parse(text.strip().replace("/", "//"), mode="eval").body)))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return f"{COMPUTED}$(({_readable(expression)})){END}"


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        found = _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
        if abs(found) > 10**18:
            raise ValueError("beyond a shell's whole numbers")
        return found
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARED:
        return int(_COMPARED[type(node.ops[0])](_value(node.left), _value(node.comparators[0])))
    raise ValueError("not a sum")
