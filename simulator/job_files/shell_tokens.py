"""A shell script in tokens: words as they stand, quotes and all, arrays, and what separates commands.

Only what launch scripts are written in is known of the language; nothing is ever executed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from joulecast.errors import InputError

#: What stands between commands; a line's end counts as ``;``.
OPERATORS = (";;", "&&", "||", ";", "|", "&", "(", ")")
#: Marks, within a text, what nothing in the script sets, and what only a run of the script could tell; and its end.
UNSET, COMPUTED, END = "\x01", "\x02", "\x03"
MARKS = (UNSET, COMPUTED)
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\(")
_REDIRECTION = re.compile(r"\d*(?:&>>?|<<<|<<-?|>>|[<>]&?)[ \t]*")
_HEREDOC = re.compile(r"<<(-?)[ \t]*(['\"\\]?)(\w+)")
#: Stands as the command that writes a text which the script has in it: the file, and the text.
WRITES = "\x04"
#: The same in front of a command that runs such a text, with the text behind its words.
FED = "\x05"
_SHELLS = ("bash", "sh")
_CLOSING = {"(": ")", "{": "}"}


@dataclass(frozen=True, slots=True)
class Word:
    """A word as the script has it, with its line."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Array:
    """``NAME=( … )``, or ``NAME+=( … )``, which adds to the array."""

    name: str
    adds: bool
    items: tuple[Word, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Operator:
    """What separates or joins commands."""

    text: str
    line: int


Token = Word | Array | Operator


def tokens(text: str, file: str) -> list[Token]:
    """Tokens of a script.

    Raises
    ------
    InputError
        A quote or bracket that is not closed; names file and line.
    """
    return _Scanner(text, file).run()


class _Scanner:
    """Goes through a script once, from its first letter to its last."""

    def __init__(self, text: str, file: str) -> None:
        self._text, self._file, self._at, self._line = text, file, 0, 1
        self._heredocs: list[re.Match[str]] = []
        self._written = ""  # where the output of this line's command goes

    def run(self) -> list[Token]:
        """All tokens."""
        found: list[Token] = []
        while self._skip_blanks():
            token = self._next()
            if token is not None:
                found.append(token)
            if self._heredocs and token == Operator(";", self._line - 1):
                found += self._texts(_teed(found) or self._written, _read(found), _fed(found))
            if isinstance(token, Operator):
                self._written = ""
        return found

    def _skip_blanks(self) -> bool:
        """Go past spaces, continued lines and comments; whether anything is left."""
        text = self._text
        while self._at < len(text):
            if text.startswith("\\\n", self._at):
                self._advance(self._at + 2)
            elif text[self._at] in " \t\r":
                self._at += 1
            elif text[self._at] == "#":
                end = text.find("\n", self._at)
                self._at = len(text) if end < 0 else end
            else:
                return True
        return False

    def _next(self) -> Token | None:
        text, at, line = self._text, self._at, self._line
        if text[at] == "\n":
            self._advance(at + 1)
            return Operator(";", line)
        if text.startswith("((", at):
            return self._word(self._closed(at))
        if match := _REDIRECTION.match(text, at):
            self._redirected(match)
            return None
        for operator in OPERATORS:
            if text.startswith(operator, at):
                self._at += len(operator)
                return Operator(operator, line)
        if match := _ARRAY.match(text, at):
            self._at = match.end()
            return Array(match[1], bool(match[2]), self._items(line), line)
        return self._word(self._word_end(at))

    def _redirected(self, match: re.Match[str]) -> None:
        """Pass over where output goes or input comes from; note which file a text goes to."""
        heredoc = _HEREDOC.match(self._text, self._at)
        if heredoc and not self._text.startswith("<<<", self._at):
            self._heredocs.append(heredoc)
        self._advance(match.end())
        if self._at < len(self._text) and self._text[self._at] not in "\n;|":
            start = self._at
            self._advance(max(self._word_end(start), start))
            if match[0].strip() in (">", "1>"):
                self._written = self._text[start : self._at]

    def _texts(self, file: str, variable: str, fed: list[Token]) -> list[Token]:
        """Commands that write, assign or run the texts that begin here, each up to its last line; else none."""
        found: list[Token] = []
        for heredoc in self._heredocs:
            end = re.compile(rf"^[ \t]*{heredoc[3]}[ \t]*$", re.M).search(self._text, self._at)
            start, line = self._at, self._line
            self._advance(len(self._text) if end is None else end.end())
            text = self._text[start : len(self._text) if end is None else end.start()]
            text = re.sub(r"^\t+", "", text, flags=re.M) if heredoc[1] else text
            raw = _single(text) if heredoc[2] else _double(text.replace("\\\n", ""))
            if variable:
                found += [Word(f"{variable}={raw}", line), Operator(";", line)]
            elif file:
                found += [Word(WRITES, line), Word(file, line), Word(raw, line), Operator(";", line)]
            elif fed:
                found += [Word(FED, line), *fed, Word(raw, line), Operator(";", line)]
        self._heredocs.clear()
        return found

    def _items(self, line: int) -> tuple[Word, ...]:
        """Words of an array up to its bracket; ends of lines are spaces."""
        items: list[Word] = []
        while self._skip_blanks():
            if self._text[self._at] == "\n":
                self._advance(self._at + 1)
            elif self._text[self._at] == ")":
                self._at += 1
                return tuple(items)
            elif self._text[self._at] == "(":
                break
            else:
                items.append(self._word(max(self._word_end(self._at), self._at + 1)))
        raise self._error("this array is not closed", line, "Write ) behind its last word.")

    def _word(self, end: int) -> Word:
        text, line = self._text[self._at : end], self._line
        self._advance(end)
        return Word(text.replace("\\\n", ""), line)

    def _word_end(self, at: int) -> int:
        """Where a word that begins here ends: at a space or an operator outside quotes and brackets."""
        text = self._text
        while at < len(text) and text[at] not in " \t\r\n;|&()<>":
            at = self._past(at)
        return at

    def _past(self, at: int) -> int:
        """Behind a letter, a quoted text or an expansion."""
        text, letter = self._text, self._text[at]
        if letter in MARKS:
            return self._found(END, at, at) + 1
        if letter == "\\":
            return at + 2
        if letter in "'`":
            return self._found(letter, at + 1, at) + 1
        if letter == '"':
            return self._quoted(at)
        if letter == "$" and text[at + 1 : at + 2] in ("(", "{"):
            return self._closed(at + 1)
        return at + 1

    def _quoted(self, start: int) -> int:
        at = start + 1
        while at < len(self._text):
            if self._text[at] == '"':
                return at + 1
            at = at + 1 if self._text[at] == "'" else self._past(at)
        raise self._unclosed(start)

    def _closed(self, start: int) -> int:
        """Behind the bracket that closes the one at ``start``."""
        opening, depth, at = self._text[start], 0, start
        while at < len(self._text):
            letter = self._text[at]
            if letter in (opening, _CLOSING[opening]):
                depth += 1 if letter == opening else -1
                at += 1
                if not depth:
                    return at
            else:
                at = self._past(at)
        raise self._unclosed(start)

    def _found(self, letter: str, at: int, start: int) -> int:
        end = self._text.find(letter, at)
        if end < 0:
            raise self._unclosed(start)
        return end

    def _unclosed(self, start: int) -> InputError:
        line = self._line + self._text.count("\n", self._at, start)
        return self._error(f"{self._text[start]} is not closed", line, "Close it.")

    def _error(self, message: str, line: int, remedy: str) -> InputError:
        return InputError(message, file=self._file, line=line, remedy=remedy)

    def _advance(self, to: int) -> None:
        to = min(to, len(self._text))
        self._line += self._text.count("\n", self._at, to)
        self._at = to


def _teed(found: list[Token]) -> str:
    """The file that the last command writes its input to, if it is ``tee``."""
    names: list[str] = []
    for token in reversed(found[:-1]):
        if isinstance(token, Operator):
            break
        if isinstance(token, Word) and not token.text.startswith("-"):
            names.append(token.text)
    return names[-2] if names[-1:] == ["tee"] and len(names) > 1 else ""


def _fed(found: list[Token]) -> list[Token]:
    """Words of the last command, if it runs what it reads: ``sbatch``, or a shell without a script."""
    words: list[Token] = []
    for token in reversed(found[:-1]):
        if isinstance(token, Operator):
            break
        words.insert(0, token)
    texts = [token.text for token in words if isinstance(token, Word)]
    bare = texts[:1] and texts[0] in _SHELLS and all(text.startswith("-") for text in texts[1:])
    return words if bare or texts[:1] == ["sbatch"] else []


def _read(found: list[Token]) -> str:
    """The variable that the last command reads a whole text into, if it is ``read -d ''``."""
    words = [token.text for token in found[-6:-1] if isinstance(token, Word)]
    whole = any(re.fullmatch("-[a-z]*d", one) and after in ("''", '""') for one, after in pairwise(words))
    return words[-1] if whole and "read" in words else ""


def _single(text: str) -> str:
    """A text as a word in which nothing is expanded."""
    return "'" + text.replace("'", "'\\''") + "'"


def _double(text: str) -> str:
    """A text as a word in which variables are expanded, and quotes stay."""
    return '"' + re.sub(r'(\\?)"', lambda found: r"\\" * bool(found[1]) + r"\"", text) + '"'
