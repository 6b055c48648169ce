"""Colours by what they stand for, in light and dark; kinds stay apart for the colour-blind (Okabe and Ito, 2008)."""

from __future__ import annotations

from joulecast.plan.comparison.reasons import WORDS as WORDS_OF_PARTS

#: Role to (light, dark).
ROLES: dict[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#15181c"),
    "ink": ("#1b1f24", "#e9e7e2"),
    "muted": ("#5c6670", "#9aa4ae"),
    "grid": ("#e4e7ea", "#2b3138"),
    "forward": ("#0072b2", "#4aa8e0"),
    "backward": ("#e69f00", "#f2b441"),
    "backward_weight": ("#b8500a", "#ee8a4a"),
    "grad_reduce": ("#8f4c7c", "#c983b4"),
    "optimizer": ("#009e73", "#33c79d"),
    "communication": ("#cc79a7", "#e39cc3"),
    "group_waiting": ("#56b4e9", "#8fd0f7"),
    "waiting": ("#cfd4d9", "#434b54"),
    "other": ("#7f8890", "#8c96a0"),
    "power": ("#3b4650", "#c4ccd4"),
    "limit": ("#c0321f", "#ff7d66"),
    "bound": ("#7f8890", "#7f8a95"),
    "plan": ("#0072b2", "#4aa8e0"),
    "chosen": ("#c0321f", "#ff7d66"),
    "forecast": ("#1b1f24", "#ffffff"),
    "band": ("#009e73", "#33c79d"),
    "static": ("#8a939b", "#7b858f"),
    "clock": ("#8fcdf0", "#a5dcfb"),
    "sm": ("#0072b2", "#4a9fd8"),
    "tensor": ("#d55e00", "#f0803a"),
    "vector": ("#e69f00", "#f2b441"),
    "onchip": ("#e8dc3d", "#efe66a"),
    "hbm": ("#009e73", "#33c79d"),
    "link": ("#cc79a7", "#e39cc3"),
    "series0": ("#0072b2", "#4aa8e0"),
    "series1": ("#d55e00", "#f0803a"),
    "series2": ("#009e73", "#33c79d"),
    "series3": ("#cc79a7", "#e39cc3"),
    "series4": ("#e69f00", "#f2b441"),
    "series5": ("#56b4e9", "#8fd0f7"),
    "series6": ("#6a5acd", "#a79cf0"),
    "series7": ("#7f8890", "#9aa4ae"),
}

#: Roles on whose light colour dark letters are legible.
BRIGHT = ("onchip", "clock", "vector", "backward", "waiting", "communication", "link")
#: Marker of each of the series, so that colour is not the only difference; a star is what a chart points out.
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down", "hexagon")

#: Instructions and components by the words that people read.
WORDS = {
    "backward_input": "input gradient",
    "backward_weight": "weight gradient",
    "forward_backward": "forward and backward",
    "grad_reduce": "gradient reduction",
    "group_waiting": "waiting for the slowest",
    "comm_ctas": "communication blocks",
    "comm_threads": "threads of a communication block",
    **WORDS_OF_PARTS,
}


def role_of(name: str) -> str:
    """The role of an instruction or component.

    >>> role_of("forward"), role_of("backward_input"), role_of("forward chunk 1"), role_of("network")
    ('forward', 'backward', 'forward', 'other')
    """
    plain = name.split(" ")[0].split(".")[0]
    if plain in ("backward_input", "forward_backward"):
        return "backward"
    return plain if plain in ROLES else "other"


def word(name: str) -> str:
    """How people call an instruction or component.

    >>> word("hbm"), word("forward")
    ('HBM', 'forward')
    """
    return WORDS.get(name, name.replace("_", " "))


def scheme(dark: bool) -> dict[str, str]:
    """Colour of every role in one of the two schemes."""
    return {role: pair[dark] for role, pair in ROLES.items()}


def series_role(index: int) -> str:
    """Role of the n-th of several series; after eight they repeat."""
    return f"series{index % len(SYMBOLS)}"


def series_symbol(index: int) -> str:
    """Marker of the n-th of several series; where colours repeat, the marker is another.

    >>> [(series_role(i), series_symbol(i)) for i in (0, 7, 8)]
    [('series0', 'circle'), ('series7', 'hexagon'), ('series0', 'square')]
    """
    return SYMBOLS[(index + index // len(SYMBOLS)) % len(SYMBOLS)]
