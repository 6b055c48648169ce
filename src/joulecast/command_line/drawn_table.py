"""Tables drawn on a terminal, of any width: no value is cut off.

What does not fit beside each other stands below: words of text columns and headings first; then a table of few rows
is turned, so that its columns become lines; else its columns follow in parts, each with the first column.
"""

from __future__ import annotations

from collections.abc import Sequence

#: A word of a column of text may be broken where it is longer than this.
NARROWEST = 24
#: And a long word of a heading, such as a plan's name, is broken to stay above its numbers.
NARROWEST_HEADING = 14
#: Rows of a table that may be turned.
MOST_TURNED = 6


def draw(names: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool], title: str | None) -> None:
    """Draw a table.

    Parameters
    ----------
    names, cells
        Headings, and rows of as many cells.
    right
        Which columns are numbers: these are aligned to the right and never broken.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for number, part in enumerate(fitting(names, cells, right, console.width)):
        table = Table(title=title if number == 0 else None, title_justify="left", header_style="bold")
        for name, numeric, width in zip(part[0], part[2], _widths(part, console.width), strict=True):
            table.add_column(name, justify="right" if numeric else "left", width=width, overflow="fold")
        for row in part[1]:
            table.add_row(*(Text(cell) for cell in row))
        console.print(table)


Part = tuple[list[str], list[list[str]], list[bool]]


def fitting(names: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool], width: int) -> list[Part]:
    """The tables as which a table fits: itself, turned, or in parts.

    >>> wide = [f"quantity_{i}" for i in range(4)]
    >>> [part[0] for part in fitting(wide, [["1.234"] * 4] * 9, [True] * 4, 40)]
    [['quantity_0', 'quantity_1', 'quantity_2'], ['quantity_0', 'quantity_3']]
    >>> fitting(wide, [["1.234"] * 4] * 2, [True] * 4, 40)[0][1][0]
    ['quantity_1', '1.234', '1.234']
    """
    whole = (list(names), [list(row) for row in cells], list(right))
    if _width(whole) <= width or len(names) < 3:
        return [whole]
    turned = (
        [names[0], *(row[0] for row in cells)],
        [[name, *(row[i] for row in cells)] for i, name in enumerate(names) if i],
        [False, *(all(right[1:]) for _ in cells)],
    )
    if len(cells) <= MOST_TURNED and _width(turned) <= width:
        return [turned]
    labels = _labels(whole, width)
    parts, members = [], labels
    for i in range(len(labels), len(names)):
        if len(members) > len(labels) and _width(_part(whole, [*members, i])) > width:
            parts.append(_part(whole, members))
            members = labels
        members = [*members, i]
    return [*parts, _part(whole, members)]


def _labels(whole: Part, width: int) -> list[int]:
    """The columns that every part repeats: those of text at the left, if they leave half the room, else the first."""
    first = next((i for i, numeric in enumerate(whole[2]) if numeric), 1)
    labels = list(range(max(1, first)))
    return labels if _width(_part(whole, labels)) <= width // 2 else labels[:1]


def _part(whole: Part, members: Sequence[int]) -> Part:
    names, cells, right = whole
    return [names[i] for i in members], [[row[i] for i in members] for row in cells], [right[i] for i in members]


def _columns(table: Part) -> list[tuple[str, list[str], bool]]:
    names, cells, right = table
    return [(name, [row[i] for row in cells], right[i]) for i, name in enumerate(names)]


def _width(table: Part) -> int:
    """Least width of a table with its lines."""
    return sum(_least(*column) for column in _columns(table)) + 3 * len(table[0]) + 1


def _widths(table: Part, width: int) -> list[int]:
    """Widths of the columns: what is left beyond the least goes to those that miss most, headings last."""
    columns = _columns(table)
    widths = [_least(*column) for column in columns]
    left = width - _width(table)
    for wanted in ([max(map(len, c), default=0) for _, c, _ in columns], [len(name) for name, _, _ in columns]):
        missing = [want - has for want, has in zip(wanted, widths, strict=True)]
        while left > 0 and max(missing) > 0:
            most = missing.index(max(missing))
            widths[most], missing[most], left = widths[most] + 1, missing[most] - 1, left - 1
    return widths


def _least(name: str, column: Sequence[str], numeric: bool) -> int:
    """Least width of a column: numbers stay whole, words may go below each other."""
    heading = min(NARROWEST_HEADING, _longest_word([name]))
    return max(heading, max(map(len, column), default=0) if numeric else min(_longest_word(column), NARROWEST))


def _longest_word(texts: Sequence[str]) -> int:
    return max((len(word) for text in texts for word in text.split()), default=0)
