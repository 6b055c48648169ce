"""Measured medians of collectives within and between nodes, and the systems that they were measured on.

The table (Vidur's profiles of the network, MIT licence) names four systems and says how many GPUs of a node took part;
nothing of the network between the nodes. Its rates tell that the A100 nodes were joined by something far slower than
one InfiniBand card a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from joulecast.errors import DataError
from joulecast.tables import Line, read_table

COLUMNS = ("system", "collective", "num_gpus", "bytes", "median_time_s", "gpus_per_node_used")
KINDS = ("all_reduce", "send_recv")


@dataclass(frozen=True, slots=True)
class System:
    """What a system's name stands for.

    Attributes
    ----------
    gpu
        Catalogue name.
    domain_gpus
        GPUs joined by NVLink: a pair by a bridge, eight by switches.
    """

    gpu: str
    domain_gpus: int


SYSTEMS = {
    "a100_dgx": System("a100-sxm-80gb", 8),
    "a100_pairwise_nvlink": System("a100-pcie-80gb", 2),
    "h100_dgx": System("h100-sxm", 8),
    "h100_pairwise_nvlink": System("h100-pcie", 2),
}


@dataclass(frozen=True, slots=True)
class NetworkRow:
    """One median; ``time_s`` is measured."""

    line: int
    system: str
    kind: str
    gpus: int
    bytes: float
    per_node: int
    time_s: float

    @property
    def name(self) -> str:
        """What it is, for people."""
        return f"{self.system} {self.kind} {self.bytes / 2**20:g} MiB, {self.gpus} GPUs, {self.per_node} a node"

    @property
    def nodes(self) -> int:
        """Nodes that took part."""
        return -(-self.gpus // self.per_node)

    @property
    def joined_by(self) -> str:
        """The slowest kind of link that it crosses: ``links``, ``host`` or ``network``."""
        if self.nodes > 1:
            return "network"
        return "links" if self.gpus <= SYSTEMS[self.system].domain_gpus else "host"


def read_network_rows(path: str | Path) -> list[NetworkRow]:
    """Rows of a table like ``allreduce_medians.csv``.

    Raises
    ------
    DataError
        The file cannot be read, lacks a column, or has a row of an unknown system or without positive numbers.
    """
    table = read_table(path, name="allreduce_medians.csv", needed=COLUMNS, wrong=DataError)
    return [_row(line) for line in table.lines]


def _row(line: Line) -> NetworkRow:
    for column, known in (("system", SYSTEMS), ("collective", KINDS)):
        if line[column] not in known:
            raise line.error(f"unknown {line[column]!r}", column, f"Known: {', '.join(known)}.")
    return NetworkRow(
        line.number,
        line["system"],
        line["collective"],
        line.whole("num_gpus"),
        line.positive("bytes"),
        line.whole("gpus_per_node_used"),
        line.positive("median_time_s"),
    )


def every_second_size(rows: Sequence[NetworkRow]) -> tuple[list[int], list[int]]:
    """Places of the rows of every second size of each series, smallest first, and of the others."""
    series: dict[tuple[str, str, int, int], list[int]] = {}
    for place, row in enumerate(rows):
        series.setdefault((row.system, row.kind, row.gpus, row.per_node), []).append(place)
    ordered = [sorted(places, key=lambda i: rows[i].bytes) for places in series.values()]
    return sorted(i for s in ordered for i in s[::2]), sorted(i for s in ordered for i in s[1::2])
