"""Files of what was last accepted, one line for each leaf."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from paths import TESTS

DIGITS = 6


def short(value: float) -> float:
    """As many digits as are accepted."""
    return float(f"{value:.{DIGITS}g}")


def read(name: str) -> dict[str, Any]:
    """What was accepted under a name."""
    return dict(json.loads((TESTS / "accepted" / f"{name}.json").read_text(encoding="utf-8")))


def write(name: str, found: dict[str, Any]) -> None:
    """Accept what is found now; lists of numbers stand on one line."""
    text = re.sub(r"\n +(?=[-\d\]])", " ", json.dumps(found, indent=1)).replace("[ ", "[").replace(" ]", "]")
    (TESTS / "accepted" / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def differences(found: Mapping[str, Sequence[Any]], before: Mapping[str, Sequence[Any]]) -> list[str]:
    """What is no longer as it was accepted: parts that are new or gone, and the first entry that differs of others."""
    said = [f"{part} is {'new' if part in found else 'gone'}" for part in sorted(found.keys() ^ before.keys())]
    for part in sorted(found.keys() & before.keys()):
        if list(found[part]) != list(before[part]):
            pairs = zip_longest(found[part], before[part])
            said.append(next(f"{part}: {one!r}, was {other!r}" for one, other in pairs if one != other))
    return said
