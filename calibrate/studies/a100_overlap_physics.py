"""Time and energy of an attention layer with an all-reduce beside part of it, from a few physical parameters.

Two GPUs run seven operators of one nano-batch while ``n`` SMs with blocks of ``b`` threads reduce the output of the
other. An operator takes c alone at the highest clock f0, a share φ of it whatever the clock (memory):

    c(f) = c·(φ + (1 − φ)·f0/f),        beside the communication c(f)·(1 − n/SMs)^−a  (as in model.contention)
    X(f) = α + ((drag·K·(f0/f)^d/(n·(b/512)^g))^p + L^p)^(1/p)

X is the communication's time: its SMs' copying in series with the link. ``drag`` is 1 alone, little more beside matrix
products and attention, and much beside kernels that are bound by memory. What the window does not hide runs alone
behind it, or behind the layer where there is no window. Rows show that communication runs beside the operator before
its window as well, if that is a matrix product or attention (``lead``, a share of that operator), and not if it is
bound by memory: such kernels fill every thread slot of the SMs, so that its blocks wait for their end.

    E = (S·(1 − k) + S·k·(f/f0)·u²)·T + D·((1 − h)·u² + h) + W·(f/f0)·u²·n·t_comm + u²·Σ ε·(share moved beside)

with u = V(f)/V(f0): rest and leakage with the clock tree (k), the operators' own energy with HBM's and the link's
share h (a supply of their own), SMs that copy, and what sharing SMs and caches costs beside each kind of kernel. Where
the mean power would exceed the limit the board lowers the clock until it meets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.power.voltage import voltage_ratio

Values = Mapping[str, float]

#: GPUs of the tensor-parallel group; energies are sums over them.
GPUS = 2


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of the layer: the parameter of its time, its share of that, and what its parameters are called by."""

    time: str
    share: float
    kind: str
    loss: str
    sharing: str


#: In order. Bias-dropout-add and layer norm, and likewise post-processing and rotary embedding, are told apart by the
#: bytes that they move. Which of the last two is attention is not recorded; they share what they have in common.
OPERATORS = (
    Operator("norm_s", 0.6, "memory", "memory", "memory"),
    Operator("norm_s", 0.4, "memory", "memory", "memory"),
    Operator("qkv_s", 1.0, "matrix", "qkv", "qkv"),
    Operator("rotary_s", 0.5, "memory", "memory", "memory"),
    Operator("rotary_s", 0.5, "memory", "memory", "memory"),
    Operator("fifth_s", 1.0, "matrix", "fifth", "attention"),
    Operator("sixth_s", 1.0, "matrix", "sixth", "attention"),
)
#: Kinds of kernels beside which a message is moved at a cost of its own.
SHARING = ("memory", "qkv", "attention")
#: Threads of a block to which the copying time refers.
THREADS = 512.0
#: Steps in which the clock at the power limit is bisected.
_BISECTIONS = 20


@dataclass(frozen=True, eq=False)
class Configurations:
    """What was set, arrays of shape ``(n,)``.

    Attributes
    ----------
    start, end
        First and last operator of the window; both −1 without one.
    sms, threads
        SMs of the communication kernel, and threads of its block on each.
    clock_mhz
        SM clock that was asked for.
    """

    start: Array
    end: Array
    sms: Array
    threads: Array
    clock_mhz: Array

    def take(self, rows: Int) -> Configurations:
        """Some of the rows."""
        return Configurations(*(x[rows] for x in (self.start, self.end, self.sms, self.threads, self.clock_mhz)))


@dataclass(frozen=True, eq=False)
class Walked:
    """The layer over time, arrays of shape ``(n,)``.

    Attributes
    ----------
    time_s
        Of the layer with its communication.
    speaking_s
        How long the communication holds its SMs.
    moved
        Share of the message that is moved beside each kind of :data:`SHARING`.
    """

    time_s: Array
    speaking_s: Array
    moved: dict[str, Array]


def walk(values: Values, rows: Configurations, gpu: GpuModel) -> Walked:
    """Run the layer: communication and compute slow each other while both are there."""
    slower = gpu.max_clock_mhz / rows.clock_mhz
    copy = values["copy_s"] / (rows.sms * (rows.threads / THREADS) ** values["threads_exponent"])
    copy = copy * slower ** values["copy_clock_exponent"]
    alone = _in_series(copy, values)
    whole = alone + values["latency_s"]
    left = whole
    time, communicating = np.zeros_like(whole), np.zeros_like(whole)
    moved = {kind: np.zeros_like(whole) for kind in SHARING}
    rates = {kind: alone / _in_series(copy * (1.0 + values[f"drag.{kind}"]), values) for kind in ("memory", "matrix")}
    windowed = rows.start >= 0
    for i, operator in enumerate(OPERATORS):
        fixed = values[f"fixed_share.{operator.kind}"]
        own = values[operator.time] * operator.share * (fixed + (1.0 - fixed) * slower)
        slow = (1.0 - rows.sms / gpu.sm_count) ** -values[f"sm_exponent.{operator.loss}"]
        rate = rates[operator.kind]
        beside = np.where(windowed & (rows.start <= i) & (i <= rows.end), 1.0, 0.0)
        if operator.kind == "matrix":
            beside = np.where(windowed & (rows.start == i + 1), values["lead"], beside)
        both = np.minimum(beside * own * slow, left / rate)
        time = time + both + own - both / slow
        communicating = communicating + both
        moved[operator.sharing] = moved[operator.sharing] + both * rate / whole
        left = np.maximum(left - both * rate, 0.0)
    return Walked(time + left, communicating + left, moved)


def _in_series(copy: Array, values: Values) -> Array:
    """Time of the communication whose copying needs ``copy`` and whose link needs its own time [s]."""
    p = values["series_exponent"]
    return np.asarray((copy**p + values["link_s"] ** p) ** (1.0 / p))


def energy_j(values: Values, rows: Configurations, walked: Walked, gpu: GpuModel) -> Array:
    """Energy of all GPUs, shape ``(n,)`` [J]; see the module's equation."""
    squared = (voltage_ratio(rows.clock_mhz, gpu) / voltage_ratio(gpu.max_clock_mhz, gpu)) ** 2
    clocked = rows.clock_mhz / gpu.max_clock_mhz * squared
    hbm, tree = values["memory_energy_share"], values["clock_power_share"]
    resting = values["base_w"] * (1.0 - tree + tree * clocked) * walked.time_s
    operators = values["operators_j"] * ((1.0 - hbm) * squared + hbm)
    copying = values["copying_w"] * clocked * rows.sms * walked.speaking_s
    sharing = sum((values[f"sharing_j.{kind}"] * walked.moved[kind] for kind in SHARING), np.zeros_like(squared))
    return np.asarray(resting + operators + copying + sharing * squared)


def forecast(values: Values, rows: Configurations, gpu: GpuModel) -> tuple[Array, Array, Array]:
    """Time [s], energy of all GPUs [J] and clock [MHz], each of shape ``(n,)``, under the board's power limit."""
    gpu = card(values, gpu)
    limit = GPUS * gpu.device["power_limit_w"]
    walked = walk(values, rows, gpu)
    energy = energy_j(values, rows, walked, gpu)
    clock = rows.clock_mhz
    if np.any(energy > limit * walked.time_s):
        low, high = np.full_like(clock, gpu.device["min_clock_mhz"]), clock
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            trial = replace(rows, clock_mhz=middle)
            walked = walk(values, trial, gpu)
            over = energy_j(values, trial, walked, gpu) > limit * walked.time_s
            low, high = np.where(over, low, middle), np.where(over, middle, high)
        clock = np.where(energy > limit * walk(values, rows, gpu).time_s, low, clock)
        settled = replace(rows, clock_mhz=clock)
        walked = walk(values, settled, gpu)
        energy = energy_j(values, settled, walked, gpu)
    return walked.time_s, energy, clock


def card(values: Values, gpu: GpuModel) -> GpuModel:
    """The GPU with the voltage curve of ``values``, where they have one."""
    own = {name: values[name] for name in ("voltage.floor_ratio", "voltage.slope") if name in values}
    return gpu.with_values(own) if own else gpu


def undisturbed(values: Values) -> dict[str, float]:
    """The same layer if nothing slowed anything: time is the longer of window and communication, or their sum."""
    quiet = ("drag.", "sm_exponent.", "sharing_j.", "lead")
    return {name: 0.0 if name.startswith(quiet) else value for name, value in values.items()}
