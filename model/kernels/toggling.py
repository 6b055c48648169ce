"""Switching activity of data paths by input values, relative to random-normal values.

Energy follows the bits that flip. Measured on bf16 products: zeros about 0.08, ±1 about 0.4, half zeros about 0.9.
Training data is taken to be random-normal-like.
"""

from __future__ import annotations

from joulecast.errors import InputError
from joulecast.model.hardware.gpu_model import GpuModel


def toggle_factor(data: str, gpu: GpuModel) -> float:
    """Factor on tensor and on-chip energy for input ``data``; reads ``power.toggle.*``.

    ``sparseX`` follows z + (1 − z)·(1 − X^c): zeros interrupt runs of random values and only pay off when
    they are many.
    """
    zeros = gpu["power.toggle.zeros"]
    if data == "randn":
        return 1.0
    if data in ("zeros", "ones", "pow2"):
        return gpu[f"power.toggle.{data}"]
    if data.startswith("sparse"):
        share = _zero_share(data)
        return float(zeros + (1.0 - zeros) * (1.0 - share ** gpu["power.toggle.sparse_exponent"]))
    raise _unknown(data)


def memory_toggle(data: str) -> float:
    """Share of bits that flip on the memory's wires, relative to random-normal values."""
    if data in ("zeros", "ones"):
        return 0.0
    if data == "pow2":
        return 0.3
    if data.startswith("sparse"):
        return 1.0 - _zero_share(data)
    return 1.0


def _zero_share(data: str) -> float:
    """The X of ``sparseX``, from 0 to 1."""
    try:
        share = float(data.removeprefix("sparse"))
    except ValueError:
        raise _unknown(data) from None
    if not 0.0 <= share <= 1.0:
        raise _unknown(data)
    return share


def _unknown(data: str) -> InputError:
    remedy = "Use randn, zeros, ones, pow2 or sparseX with X from 0 to 1."
    return InputError(f"unknown input data {data!r}", key="data", remedy=remedy)
