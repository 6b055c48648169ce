"""A GPU under several joint deviations of its parameters at once: columns of one walk through launches.

Only what no kernel alone reads deviates here: how kernels of compute and communication slow each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from joulecast.model.hardware.gpu_model import GpuModel

#: Parameters that no kernel alone reads, by the beginnings of their names.
BESIDE = ("contention.", "collective.transfer_ctas")


def in_columns_of(gpu: GpuModel, deviations: Sequence[Mapping[str, float]], columns: int) -> GpuModel:
    """The GPU with arrays for these parameters: its own values first, then each deviation's, ``columns`` of each.

    What reads them gives columns in the same order, shape ``(…, (1 + k)·columns)`` for ``k`` deviations.
    """
    names = [name for name in deviations[0] if name.startswith(BESIDE)]
    values = {name: np.array([gpu[name], *(each[name] for each in deviations)]) for name in names}
    # A number and an array of them broadcast alike, wherever these parameters are read.
    several: dict[str, float] = {name: np.repeat(value, columns) for name, value in values.items()}  # type: ignore[misc]
    return gpu.with_values(several)


def for_lists(gpu: GpuModel, lists: int) -> GpuModel:
    """The GPU for several lists side by side, each of which has the columns of such arrays."""
    if lists == 1:
        return gpu
    arrays = {name: value for name, value in gpu.parameters.items() if isinstance(value, np.ndarray)}
    several: dict[str, float] = {name: np.tile(value, lists) for name, value in arrays.items()}  # type: ignore[misc]
    return gpu.with_values(several) if several else gpu
