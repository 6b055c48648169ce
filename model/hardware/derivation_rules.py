"""The rules by which parameters carry over from a calibrated GPU to another; the first that matches applies.

They scale with facts of the devices and with the figures of :mod:`joulecast.model.hardware.technology`. The standard
deviations are estimates of how far to trust them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf


@dataclass(frozen=True, slots=True)
class Rule:
    """How the parameters ``name`` of ``table`` (shell patterns) carry over.

    ``scale`` maps a quantity to the exponent of its ratio; ``rel_sd`` is the rule's own relative standard deviation
    between two architectures of one vendor; a derived value never exceeds ``maximum``.
    """

    table: str
    name: str
    rel_sd: float
    reason: str
    scale: Mapping[str, float] = field(default_factory=dict)
    maximum: float = inf


@dataclass(frozen=True, slots=True)
class Distance:
    """How far apart two GPUs are: what multiplies a rule's uncertainty, and what is added to the discrepancies.

    ``products`` is added to those of products' times, whose libraries change most.
    """

    words: str
    widening: float
    discrepancy: float
    products: float

    def added(self, family: str, quantity: str) -> float:
        """Relative standard deviation added in quadrature to a family's time or energy."""
        return self.products if quantity == "time" and family.startswith("gemm") else self.discrepancy


DISTANCES = {
    # Vidur's products and small operators on H100, with libraries two years older: a spread of 0.09 beside the rules',
    # and of 0.15 among the products alone, by `likely_form_spread`. Rules between architectures are wide enough for the
    # products of A100, A40 and B200.
    "architecture": Distance("same architecture", 0.4, 0.09, 0.15),
    # Slowed or widened matrix units: nobody measured such SMs beside their kin, so both spreads are the wider ones.
    "units": Distance("same architecture, other matrix units", 1.0, 0.10, 0.15),
    "vendor": Distance("other architecture of the same vendor", 1.0, 0.10, 0.10),
    "other": Distance("other vendor", 1.5, 0.15, 0.15),
}

#: Clocked logic that switches with the clock alone: SMs of a given width at their highest clock and voltage. On the
#: A100 (EnergAIzer artifact, idle power by clock) this gives 0.44 of Hopper's, the measurement 0.37.
_CLOCKED = {"sm_count": 1.0, "tensor_width": 1.0, "logic_energy": 1.0, "max_clock_mhz": 1.0}

#: Logic of SMs at work: it grows with the matrix units that it feeds, at their energy.
_BUSY = {"sm_count": 1.0, "tensor_width": 1.0, "tensor_energy": 1.0, "max_clock_mhz": 1.0}

#: What all matrix units would draw at the highest clock, as a multiple of the power limit: the more, the further the
#: clock has to give way, and the wider it swings while loads change.
_DEMAND = {"sm_count": 1.0, "tensor_width": 1.0, "tensor_energy": 1.0, "max_clock_mhz": 1.0, "power_limit_w": -1.0}

RULES: tuple[Rule, ...] = (
    Rule("kernel", "overlap_exponent", 0.25, "overlap of memory and computation by architecture", {"overlap": 1.0}),
    Rule("kernel", "own.*", 0.0, "own kernels beside the library's, as there"),
    # Kernels: shares of peaks and counts of cycles carry over, the facts of the device do the rest.
    Rule("kernel", "gemm.eta", 0.10, "share of the dense rate", {"library": 1.0}, maximum=0.97),
    Rule(
        "kernel",
        "gemm.tile_overhead_cycles",
        0.30,
        "cycles of a tile's prologue and epilogue by architecture",
        {"tile_overhead": 1.0},
    ),
    Rule(
        "kernel",
        "gemm.bandwidth_share",
        0.12,
        "share of the memory's bandwidth that products draw, by architecture",
        {"product_streams": 1.0},
        maximum=1.0,
    ),
    Rule("kernel", "gemm.tile_penalty", 0.30, "operand traffic of small tiles"),
    # The fallback issues Turing's matrix instructions: as many operations a cycle on every SM since.
    Rule(
        "kernel",
        "gemm.fallback_slowdown",
        0.50,
        "kernels without vectorised loads, whose operations a cycle do not grow with the matrix units",
        {"tensor_width": 1.0},
    ),
    Rule("kernel", "gemm.*", 0.12, "property of the library"),
    # FlashAttention-2 issues the Ampere generation's matrix instructions: as many operations a cycle on every SM since.
    Rule(
        "kernel",
        "attention.flash-attention-2.backward.eta",
        0.20,
        "operations a cycle do not grow with the matrix units; PyTorch's backward pass",
        {"tensor_width": -1.0, "flash_2_compiled": 1.0, "flash_2_backward": 1.0},
        maximum=0.72,
    ),
    Rule(
        "kernel",
        "attention.flash-attention-2.*.eta",
        0.20,
        "operations a cycle do not grow with the matrix units",
        {"tensor_width": -1.0, "flash_2_compiled": 1.0},
        maximum=0.72,
    ),
    Rule(
        "kernel", "attention.*.backward.eta", 0.20, "share of the dense rate", {"attention_backward": 1.0}, maximum=0.9
    ),
    Rule("kernel", "attention.*.eta", 0.20, "share of the dense rate", {"attention_forward": 1.0}, maximum=0.9),
    Rule("kernel", "attention.*", 0.30, "shape of the kernel"),
    Rule(
        "kernel",
        "streaming.*.bandwidth_share",
        0.10,
        "share of the memory's peak bandwidth",
        {"streams": 1.0},
        maximum=0.97,
    ),
    Rule("kernel", "*bandwidth_share", 0.10, "share of the memory's peak bandwidth", maximum=1.0),
    Rule("kernel", "*fixed_s", 0.30, "launch latency"),
    Rule(
        "kernel",
        "l2.bytes_per_sm_cycle",
        0.25,
        "second-level bandwidth of an SM",
        {"l2_bandwidth_bytes_per_s": 1.0, "sm_count": -1.0, "max_clock_mhz": -1.0},
    ),
    Rule("kernel", "l2.*", 0.25, "share of the second-level cache"),
    Rule("kernel", "streaming.*", 0.25, "cycles of the SM's own instructions"),
    Rule("kernel", "*", 0.25, "shape of the kernel"),
    # Power.
    Rule(
        "power",
        "tensor_pj_per_flop.fp8",
        0.30,
        "energy of matrix units by architecture, FP8's beside bf16's",
        {"tensor_energy": 1.0, "fp8_energy": 1.0},
    ),
    Rule("power", "tensor_pj_per_flop.*", 0.25, "energy of matrix units by architecture", {"tensor_energy": 1.0}),
    Rule("power", "tile_pj_per_flop", 0.30, "energy of matrix units by architecture", {"tensor_energy": 1.0}),
    Rule("power", "attention_pj_per_flop.flash-attention-2.*", 0.30, "energy of like logic", {"logic_energy": 1.0}),
    Rule("power", "attention_pj_per_flop.*", 0.30, "energy of matrix units by architecture", {"tensor_energy": 1.0}),
    Rule("power", "hbm_*", 0.25, "energy of a byte by kind of memory", {"memory_energy": 1.0}),
    Rule("power", "link_*", 0.30, "energy of a byte by kind of link", {"link_energy": 1.0}),
    Rule("power", "*pj_per_*", 0.30, "energy of like logic by process node", {"logic_energy": 1.0}),
    Rule("power", "static_w", 0.15, "idle power", {"idle_power_w": 1.0}),
    Rule("power", "leakage_w_per_k", 0.40, "idle power", {"idle_power_w": 1.0}),
    Rule("power", "thermal_resistance*", 0.30, "boards are cooled for their limit", {"power_limit_w": -1.0}),
    Rule("power", "clock_w", 0.30, "clocked logic", _CLOCKED),
    Rule("power", "sm_w", 0.30, "busy SMs feed their matrix units", _BUSY),
    Rule("power", "wait_w", 0.30, "clocked logic", _CLOCKED),
    Rule("power", "inlet_c", 0.15, "air of a machine room"),
    Rule("power", "toggle.*", 0.15, "switching activity of like data paths"),
    Rule("power", "card_*", 0.0, "spread of cards"),
    Rule("power", "*", 0.25, "taken over"),
    # Voltage is a ratio to the voltage at the highest clock, by a ratio to that clock.
    Rule("voltage", "*", 0.12, "shape of the curve over the clock range"),
    # Governor.
    Rule(
        "governor",
        "tensor_clock_mhz",
        0.15,
        "limit on the matrix units, where the architecture has one",
        {"max_clock_mhz": 1.0, "tensor_limit": 1.0},
    ),
    Rule("governor", "*_share", 0.01, "share of the power limit"),
    Rule("governor", "wander", 0.40, "how far busy matrix units at the highest clock exceed the limit", _DEMAND),
    Rule("governor", "*_s", 0.30, "averaging of the control loop"),
    Rule("governor", "*", 0.15, "taken over"),
    # Collectives: the bandwidth is a fact of the device, its share and what a block copies in a cycle carry over.
    Rule("collective", "network_share", 0.15, "share of the network's bandwidth", maximum=1.0),
    Rule("collective", "network_*", 0.30, "the network's, whatever the GPU"),
    Rule("collective", "host_launch_s", 0.30, "the host's, whatever the GPU"),
    Rule("collective", "*_s", 0.30, "latency by kind of link", {"link_latency": 1.0}),
    Rule("collective", "*link_share", 0.12, "share of the links' bandwidth", {"link_library": 1.0}, maximum=1.0),
    Rule("collective", "*_ctas", 0.30, "blocks by bandwidth", {"link_bandwidth_bytes_per_s": 0.5}, maximum=32.0),
    Rule("collective", "bytes_per_cta_cycle", 0.30, "bytes a block copies in a cycle"),
    Rule("collective", "*", 0.25, "property of the library"),
    Rule("contention", "stranded_sms", 0.50, "SMs that clusters of blocks cannot use", {"clusters": 1.0}),
    Rule("contention", "*", 0.30, "taken over"),
    Rule("transition", "*", 0.50, "taken over"),
    Rule("*", "*", 0.50, "no rule: taken over"),
)
