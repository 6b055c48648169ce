"""A board of known physics over time: what a simulated card is made of.

Power of the work at a clock is that of :mod:`joulecast.calibrate.devices.simulated_work`; here it meets the board's
governor (the loops of :mod:`joulecast.simulator.fluid.governor`), a temperature that follows power, and settings that
take effect late:

    dE/dt = P = P_dynamic(f) + P_static + λ·(T − T₀) + P_neighbour,      τ·dT/dt = T_inlet + R·P − T
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from joulecast.calibrate.devices.simulated_work import COMPONENT_GROUPS, SimulatedWork, WorkTable
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.power.kernel_power import REFERENCE_TEMPERATURE_C, idle_power_w
from joulecast.simulator.fluid.governor import CLOCK_TO_AVERAGE, POWER_PER_CLOCK, SLOW_GAIN

#: Times closer than this are one [s].
SAME_TIME_S = 1e-9


@dataclass(frozen=True, slots=True)
class Dynamics:
    """How a simulated board moves.

    Attributes
    ----------
    tick_s
        Longest step of the integration, and the governor's own step [s].
    thermal_tau_s
        Time constant of the temperature [s].
    throttle_c
        Temperature above which the clock is lowered, by a step of the clock for every 0.1 K [°C].
    memory_s
        How long the past is remembered, for sensors that average and for :meth:`Board.energy_at` [s].
    """

    tick_s: float = 5e-3
    thermal_tau_s: float = 8.0
    throttle_c: float = 87.0
    memory_s: float = 60.0


@dataclass(frozen=True, slots=True)
class _Laws:
    """Numbers of a card that every step asks for: its static power, its temperature and its governor."""

    static_w: float
    leakage_w_per_k: float
    inlet_c: float
    resistance_k_per_w: float
    fast_s: float
    slow_s: float
    settled_share: float
    burst_share: float
    clock_gain: float
    tensor_clock: float  # index of the clock at which the whole tensor rate is used, and of 0 MHz
    zero_clock: float

    @classmethod
    def of(cls, gpu: GpuModel) -> _Laws:
        """Of a card."""
        return cls(
            gpu["power.static_w"],
            gpu["power.leakage_w_per_k"],
            gpu["power.inlet_c"],
            gpu["power.thermal_resistance_k_per_w"],
            gpu["governor.fast_s"],
            gpu["governor.slow_s"],
            gpu["governor.settled_share"],
            gpu["governor.burst_share"],
            gpu.max_clock_mhz / gpu.device["clock_step_mhz"],
            (gpu["governor.tensor_clock_mhz"] - gpu.clocks_mhz[0]) / gpu.device["clock_step_mhz"],
            -gpu.clocks_mhz[0] / gpu.device["clock_step_mhz"],
        )

    def top(self, tensor_use: float) -> float:
        """Highest clock that the second limiter grants, as an index between steps; see ``tensor_clock_mhz``."""
        return self.zero_clock + (self.tensor_clock - self.zero_clock) / max(tensor_use, 1e-9)


@dataclass(slots=True)
class BoardState:
    """What a board remembers; all that another process needs to go on from here.

    Attributes
    ----------
    time_s, energy_j, groups_j
        Now, and the energy since the start, whole and by :data:`COMPONENT_GROUPS`.
    temperature_c
        Of the die.
    clock
        The governor's clock as an index into the card's clocks, between steps.
    fast_w, tensor_use
        The governor's fast averages.
    times_s, energies_j
        The past: energy at the ends of all steps, linear between them.
    """

    time_s: float
    energy_j: float
    groups_j: list[float]
    temperature_c: float
    clock: float
    fast_w: float
    tensor_use: float = 0.0
    times_s: list[float] = field(default_factory=list)
    energies_j: list[float] = field(default_factory=list)


class Board:
    """One simulated board: state, settings, and the laws that move it.

    Parameters
    ----------
    gpu
        The true numbers.
    dynamics
        Time constants.
    start_s
        Time at which it stands idle, warm and settled.
    neighbour_w
        Power of somebody else's work on the card [W].
    highest, limit_w
        Index of the highest clock that is allowed, and the power limit, as long as nothing else is set; by default the
        card's own.

    Attributes
    ----------
    megacycles
        Cycles that its clock has made here; another process does not go on from them.
    """

    def __init__(
        self,
        gpu: GpuModel,
        dynamics: Dynamics,
        start_s: float = 0.0,
        neighbour_w: float = 0.0,
        *,
        highest: int | None = None,
        limit_w: float | None = None,
    ) -> None:
        self.gpu, self.dynamics, self.neighbour_w = gpu, dynamics, neighbour_w
        self._laws = _Laws.of(gpu)
        self.clocks_mhz: list[float] = gpu.clocks_mhz.tolist()
        self.idle = SimulatedWork((), (), gpu)
        self.limit_w = gpu.device["power_limit_w"] if limit_w is None else limit_w
        self.highest = len(self.clocks_mhz) - 1 if highest is None else highest
        self._index, self._carry, self.megacycles = self.highest, 0.0, 0.0
        self._pending: list[tuple[float, int, float]] = []
        power = float(idle_power_w(self.clocks_mhz[self.highest], gpu)) + neighbour_w
        warm = self._laws.inlet_c + self._laws.resistance_k_per_w * power
        past, energies = [start_s - dynamics.memory_s, start_s], [-power * dynamics.memory_s, 0.0]
        nothing = [0.0] * len(COMPONENT_GROUPS)
        self.state = BoardState(start_s, 0.0, nothing, warm, float(self.highest), power, 0.0, past, energies)
        self.work = self.idle

    @property
    def index(self) -> int:
        """Index of the clock that runs now."""
        return min(self._index, self.highest)

    @property
    def tensor_top(self) -> float:
        """Index, between steps, of the highest clock that the second limiter grants."""
        return self._laws.top(self.state.tensor_use)

    @property
    def top(self) -> float:
        """The same that settings grant as well."""
        return min(self.tensor_top, float(self.highest))

    def _choose(self) -> int:
        """Clock of the next step: between two clocks of its own a board alternates, as often as the mean asks."""
        hot = 10.0 * max(0.0, self.state.temperature_c - self.dynamics.throttle_c)
        wanted = max(min(self.state.clock, self.top) - hot, 0.0)
        self._carry += wanted - int(wanted)
        self._index = int(wanted) + (self._carry >= 1.0)
        self._carry %= 1.0
        return self._index

    def set_later(self, when_s: float, highest: int, limit_w: float) -> None:
        """Let settings take effect at a time: index of the highest clock allowed, and the power limit."""
        self._pending.append((when_s, highest, limit_w))
        self._settle_settings()

    def run(self, work: SimulatedWork, until_s: float, repetitions: float = float("inf")) -> float:
        """Run work until a time or until it has run so often, whichever is first; returns the repetitions done."""
        done, state, self.work = 0.0, self.state, work
        while state.time_s < until_s - SAME_TIME_S and repetitions - done > 1e-9:
            table = work.table(self.limit_w)
            index = self._choose()
            step = min(self.dynamics.tick_s, until_s - state.time_s, (repetitions - done) * table.time_s[index])
            if self._pending:
                step = min(step, max(self._pending[0][0] - state.time_s, SAME_TIME_S))
            self._step(table, index, step)
            done += step / table.time_s[index]
            self._settle_settings()
        self._forget()
        return done

    def energy_at(self, when_s: float) -> float:
        """True energy up to a time that is remembered [J]; before that, the oldest power goes on backward."""
        times, energies = self.state.times_s, self.state.energies_j
        right = min(max(bisect_right(times, when_s), 1), len(times) - 1)
        t0, t1, e0, e1 = times[right - 1], times[right], energies[right - 1], energies[right]
        return e0 + (e1 - e0) * (when_s - t0) / (t1 - t0)

    def power_between(self, start_s: float, end_s: float) -> float:
        """True mean power between two times [W]."""
        return (self.energy_at(end_s) - self.energy_at(start_s)) / (end_s - start_s)

    def static_w(self) -> float:
        """Static power and leakage at the present temperature [W]."""
        warmer = self.state.temperature_c - REFERENCE_TEMPERATURE_C
        return self._laws.static_w + self._laws.leakage_w_per_k * warmer

    def _step(self, table: WorkTable, index: int, step_s: float) -> None:
        state, laws = self.state, self._laws
        static = self.static_w()
        power = table.dynamic_w[index] + static + self.neighbour_w
        state.time_s += step_s
        self.megacycles += self.clocks_mhz[index] * step_s
        state.energy_j += power * step_s
        for group, part in enumerate(table.groups_w[index]):
            state.groups_j[group] += part * step_s
        state.groups_j[0] += (static + self.neighbour_w) * step_s
        steady = laws.inlet_c + laws.resistance_k_per_w * power
        state.temperature_c += (steady - state.temperature_c) * min(step_s / self.dynamics.thermal_tau_s, 1.0)
        state.times_s.append(state.time_s)
        state.energies_j.append(state.energy_j)
        self._govern(power, table.tensor_use, step_s)

    def _govern(self, power_w: float, tensor_use: float, step_s: float) -> None:
        """The loops of :class:`joulecast.simulator.fluid.governor.PowerGovernor`, for steps of any length."""
        state, laws = self.state, self._laws
        share = step_s / (laws.fast_s + step_s)
        state.fast_w += share * (power_w - state.fast_w)
        state.tensor_use += share * (tensor_use - state.tensor_use)
        settled = self.limit_w * laws.settled_share
        excess = self.power_between(state.time_s - laws.slow_s, state.time_s) - settled
        allowed = self.limit_w * laws.burst_share if excess < 0.0 else settled - SLOW_GAIN * excess
        gain = laws.clock_gain / (POWER_PER_CLOCK * self.limit_w)
        move = min(step_s / (CLOCK_TO_AVERAGE * laws.fast_s), 1.0)
        state.clock = min(max(state.clock + move * gain * (allowed - state.fast_w), 0.0), self.top)

    def _settle_settings(self) -> None:
        while self._pending and self._pending[0][0] <= self.state.time_s + SAME_TIME_S:
            _, self.highest, self.limit_w = self._pending.pop(0)

    def _forget(self) -> None:
        times, energies = self.state.times_s, self.state.energies_j
        keep = bisect_right(times, self.state.time_s - self.dynamics.memory_s) - 1
        if keep > 1000:
            del times[:keep], energies[:keep]
