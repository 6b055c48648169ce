"""What the published forms have in common: a table of times, and which cards they were measured on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from joulecast.errors import DataError
from joulecast.files import positive, positive_whole

#: Rows of a table as they stand in the file: words by column.
Line = Mapping[str, str]

#: Names of cards in the published files, and the products that they mean.
PRODUCTS = {
    "a100": ("NVIDIA A100-SXM4-80GB",),
    "a100_sxm": ("NVIDIA A100-SXM4-80GB",),
    "a100_pcie": ("NVIDIA A100 80GB PCIe",),
    "a40": ("NVIDIA A40",),
    "h100": ("NVIDIA H100 80GB HBM3",),
    "h100_sxm": ("NVIDIA H100 80GB HBM3",),
    "h200": ("NVIDIA H200",),
    "b200": ("NVIDIA B200",),
    "mi210": ("AMD Instinct MI210",),
}


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file, for messages."""

    file: str
    line: int

    def wrong(self, what: str, key: str, remedy: str = "Write it as the published table does.") -> DataError:
        """An error at this line."""
        return DataError(what, file=self.file, line=self.line, key=key, remedy=remedy)

    def number(self, line: Mapping[str, Any], key: str) -> float:
        """A positive number of a column."""
        return positive(str(line.get(key, "")), file=self.file, line=self.line, key=key, error=DataError)

    def whole(self, line: Mapping[str, Any], key: str) -> int:
        """A positive whole number of a column."""
        return positive_whole(str(line.get(key, "")), file=self.file, line=self.line, key=key, error=DataError)


def measured_on(label: str) -> dict[str, Any]:
    """The fields of a row that say on which card it was measured; an unknown label stands for itself."""
    return {"card_label": label, "products": list(PRODUCTS.get(label, (label,)))}
