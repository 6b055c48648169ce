"""Files of what was last accepted, one line for each leaf."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DIGITS = 6


def short(value: float) -> float:
    """As many digits as are accepted."""
    return float(f"{value:.{DIGITS}g}")


def read(name: str) -> dict[str, Any]:
    """What was accepted under a name."""
    return dict(json.loads((HERE / f"{name}.json").read_text(encoding="utf-8")))


def write(name: str, found: dict[str, Any]) -> None:
    """Accept what is found now; lists of numbers stand on one line."""
    text = re.sub(r"\n +(?=[-\d\]])", " ", json.dumps(found, indent=1)).replace("[ ", "[").replace(" ]", "]")
    (HERE / f"{name}.json").write_text(text + "\n", encoding="utf-8")
