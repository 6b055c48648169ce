"""Matrices among a layer's parameters, which an optimizer of matrices such as Muon takes whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Matrix:
    """Weight of a linear layer on one rank, ``outputs × inputs``.

    Attributes
    ----------
    rows
        Outputs; of a joint product of queries, keys and values those of each.
    columns
        Inputs.
    split
        Which of the two the tensor-parallel ranks share, empty where each has all of it.
    expert
        Whether these ranks are those that share an expert.
    """

    rows: tuple[int, ...]
    columns: int
    split: Literal["", "rows", "columns"] = ""
    expert: bool = False

    @property
    def elements(self) -> int:
        """Number of values on this rank.

        >>> Matrix((4096, 1024, 1024), 4096).elements
        25165824
        """
        return sum(self.rows) * self.columns


def values_of(matrices: Mapping[Matrix, int]) -> int:
    """Number of values in so many matrices of each shape.

    >>> values_of({Matrix((2,), 2): 3, Matrix((4,), 2): 1})
    20
    """
    return sum(matrix.elements * count for matrix, count in matrices.items())
