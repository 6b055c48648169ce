"""The rules by which parameters carry over from a calibrated GPU to another, and the technology figures that they use.

Every figure here is an estimate from public data sheets and published measurements; the standard deviations say how far
to trust it. The first matching rule applies.
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
    """How far apart two GPUs are: what multiplies a rule's uncertainty, and what is added to the discrepancies."""

    words: str
    widening: float
    discrepancy: float


DISTANCES = {
    # Vidur's products and small operators on H100, with libraries two years older: a spread of 0.09 beside the rules'.
    "architecture": Distance("same architecture", 0.4, 0.09),
    "vendor": Distance("other architecture of the same vendor", 1.0, 0.10),
    "other": Distance("other vendor", 1.5, 0.15),
}

#: Energy of one matrix-unit operation at the highest clock, relative to Hopper: what large products sustain at the
#: power limit, and power by clock of pipeline stages. GA100: 1.0-1.3 on A100 SXM and PCIe (Vidur, LLMCompass, SimuMax),
#: 1.25 by a GPT-3 stage (Perseus artifact). GA102: 1.7 on A40 (Vidur), 2.1 by a BLOOM stage (Perseus artifact).
#: Blackwell: 0.75 on B200 (SimuMax). CDNA3: the clocks of the largest products on MI300X and MI325X, 1207 and 1447 MHz
#: in bf16 (ROCm blogs, Measuring Max-Achievable FLOPs, part 2). CDNA4: a fifth less, by process. GeForce cards
#: accumulate in FP32 at half the rate of the same units: all else weighs double.
TENSOR_ENERGY: dict[float | str | bool, float] = {
    "Volta": 3.2,
    "Ampere GA100": 1.25,
    "Ampere GA102": 2.05,
    "Ada": 1.4,
    "Ada GeForce": 2.0,
    "Hopper": 1.0,
    "Blackwell": 0.75,
    "Blackwell Ultra": 0.75,
    "CDNA2": 1.6,
    "CDNA3": 1.25,
    "CDNA4": 1.0,
}

#: Energy of an FP8 operation beside a bf16 one, relative to Hopper's 0.72. Blackwell: FP8 training that was published
#: of B200 and GB300 (Megatron-Bridge) would not fit their power otherwise. CDNA3: 1.8 times the rate at the clocks of
#: bf16 (Max-Achievable FLOPs).
FP8_ENERGY: dict[float | str | bool, float] = {
    **dict.fromkeys(TENSOR_ENERGY, 1.0),
    "Blackwell": 0.5,
    "Blackwell Ultra": 0.5,
    "CDNA3": 0.78,
    "CDNA4": 0.78,
}

#: Switching energy of like logic at its own highest voltage, by process node [nm], relative to 4 nm.
LOGIC_ENERGY: dict[float | str | bool, float] = {12: 2.2, 8: 1.7, 7: 1.5, 6: 1.4, 5: 1.05, 4: 1.0, 3: 0.8}

#: Energy of a byte to or from memory, relative to HBM3e.
MEMORY_ENERGY: dict[float | str | bool, float] = {
    "HBM2": 1.4,
    "HBM2e": 1.2,
    "HBM3": 1.05,
    "HBM3e": 1.0,
    "GDDR6": 1.9,
    "GDDR6X": 1.9,
}

#: Energy of a byte over a link between GPUs, relative to NVLink 4.
LINK_ENERGY: dict[float | str | bool, float] = {
    "NVLink2": 1.4,
    "NVLink3": 1.2,
    "NVLink3 bridge": 1.2,
    "NVLink4": 1.0,
    "NVLink4 bridge": 1.0,
    "NVLink5": 0.9,
    "PCIe4": 1.6,
    "PCIe5": 1.4,
    "xGMI3": 1.4,
    "xGMI4": 1.3,
}

#: Share of the peak rate that the vendor's own library reaches at its real clock, relative to cuBLAS on Hopper.
#: Blackwell: products measured by SimuMax, held by their power at 0.65 of the peak for tens of ms, then at 0.46-0.51.
#: A100: 0.92 of the peak (LLMCompass), 0.81 (Vidur). CDNA3: 0.94 at its clock (Max-Achievable FLOPs).
LIBRARY: dict[float | str | bool, float] = {
    "Volta": 0.92,
    "Ampere GA100": 1.04,
    "Ampere GA102": 1.0,
    "Ada": 1.0,
    "Ada GeForce": 1.0,
    "Hopper": 1.0,
    "Blackwell": 0.82,
    "Blackwell Ultra": 0.82,
    "CDNA2": 0.8,
    "CDNA3": 1.04,
    "CDNA4": 1.04,
}

#: The same of fused attention. Blackwell: SimuMax's cuDNN kernels on B200, 0.8 of Hopper's share forward and backward.
ATTENTION_LIBRARY: dict[float | str | bool, float] = {
    **LIBRARY,
    **dict.fromkeys(("Blackwell", "Blackwell Ultra", "CDNA3", "CDNA4"), 0.8),
}

#: Where FlashAttention-2 is not compiled for Ampere's matrix instructions but, on AMD's cards, for their own, it
#: reaches Hopper's share of their rate. MI300X: 329 TFLOP/s forward with heads of 64 (Azure's AI benchmarking guide).
FLASH_2_COMPILED: dict[float | str | bool, float] = {
    **dict.fromkeys(LIBRARY, 1.0),
    "CDNA2": 0.25,
    "CDNA3": 0.5,
    "CDNA4": 1.0,
}

#: Share of the memory's bandwidth that streaming kernels draw, relative to Hopper. CDNA3: copies of 4.1 TB/s on MI300X
#: (Azure's guide); CDNA4 is taken for the same.
STREAMS: dict[float | str | bool, float] = {**dict.fromkeys(LIBRARY, 1.0), "CDNA3": 0.88, "CDNA4": 0.88}

#: Share of the memory's bandwidth that products of few rows draw, relative to cuBLAS on Hopper, whose bulk copies keep
#: more bytes in flight. Ampere: Vidur and LLMCompass on A100 0.81-1.01, Vidur on A40 0.80. CDNA2: LLMCompass on MI210.
PRODUCT_STREAMS: dict[float | str | bool, float] = {
    "Volta": 0.85,
    "Ampere GA100": 0.88,
    "Ampere GA102": 0.84,
    "Ada": 0.9,
    "Ada GeForce": 0.9,
    "Hopper": 1.0,
    "Blackwell": 0.8,
    "Blackwell Ultra": 0.8,
    "CDNA2": 0.4,
    "CDNA3": 0.6,
    "CDNA4": 0.7,
}

#: Exponent by which memory and computation overlap in a kernel, relative to cuBLAS on Hopper. Blackwell: SimuMax, B200.
OVERLAP: dict[float | str | bool, float] = {**dict.fromkeys(LIBRARY, 1.0), "Blackwell": 0.5, "Blackwell Ultra": 0.5}

#: Cycles of a tile's prologue and epilogue, relative to cuBLAS on Hopper, which overlaps them with other tiles.
#: Ampere: 1.1-1.9 on A100 and A40; CDNA2: 2.3 on MI210; Blackwell: 1.4 on B200 (Vidur, LLMCompass, SimuMax). CDNA3: as
#: large for products whose fixed cycles AMD's figure of large ones leaves out (FP8 on MI300X, Azure's guide).
TILE_OVERHEAD: dict[float | str | bool, float] = {
    "Volta": 1.4,
    "Ampere GA100": 1.4,
    "Ampere GA102": 1.6,
    "Ada": 1.4,
    "Ada GeForce": 1.4,
    "Hopper": 1.0,
    "Blackwell": 1.4,
    "Blackwell Ultra": 1.4,
    "CDNA2": 2.0,
    "CDNA3": 4.0,
    "CDNA4": 4.0,
}

#: Share of the links' bandwidth that collectives reach, relative to NVLink 4. xGMI4: between RCCL's all-reduces on
#: eight MI300X, which say 0.88 (Azure's guide), and what power moved to their compute dies was published to gain.
LINK_SHARE: dict[float | str | bool, float] = {**dict.fromkeys(LINK_ENERGY, 1.0), "xGMI3": 0.92, "xGMI4": 0.92}

#: Latency of a message between two GPUs, relative to NVLink 4 through a switch. xGMI4: 82 us for an all-reduce of 1 MB
#: on eight MI300X (Azure's guide).
LINK_LATENCY: dict[float | str | bool, float] = {
    "NVLink2": 1.2,
    "NVLink3": 1.1,
    "NVLink3 bridge": 1.1,
    "NVLink4": 1.0,
    "NVLink4 bridge": 1.0,
    "NVLink5": 1.0,
    "PCIe4": 1.6,
    "PCIe5": 1.5,
    "xGMI3": 2.3,
    "xGMI4": 2.3,
}

#: The board's limit on the rate of the matrix units by architecture, relative to Hopper's share of the highest clock.
#: A100 reaches 94 % of its peak in short products (LLMCompass): none is seen there, so that it never binds at 2.
TENSOR_LIMIT: dict[float | str | bool, float] = {
    "Volta": 2.0,
    "Ampere GA100": 2.0,
    "Ampere GA102": 2.0,
    "Ada": 2.0,
    "Ada GeForce": 2.0,
    "Hopper": 1.0,
    "Blackwell": 1.0,
    "Blackwell Ultra": 1.0,
    "CDNA2": 2.0,
    "CDNA3": 2.0,
    "CDNA4": 2.0,
}

#: Whether the library's products launch their blocks in clusters: on Hopper and later.
CLUSTERS: dict[float | str | bool, float] = {
    **dict.fromkeys(TENSOR_ENERGY, 0.01),
    "Hopper": 1.0,
    "Blackwell": 1.0,
    "Blackwell Ultra": 1.0,
}

#: Quantity to the device fact that selects it and its table.
TECHNOLOGY: dict[str, tuple[str, dict[float | str | bool, float]]] = {
    "tensor_energy": ("architecture", TENSOR_ENERGY),
    "fp8_energy": ("architecture", FP8_ENERGY),
    "library": ("architecture", LIBRARY),
    "attention_library": ("architecture", ATTENTION_LIBRARY),
    "flash_2_compiled": ("architecture", FLASH_2_COMPILED),
    "streams": ("architecture", STREAMS),
    "product_streams": ("architecture", PRODUCT_STREAMS),
    "overlap": ("architecture", OVERLAP),
    "tile_overhead": ("architecture", TILE_OVERHEAD),
    "tensor_limit": ("architecture", TENSOR_LIMIT),
    "clusters": ("architecture", CLUSTERS),
    "logic_energy": ("process_node_nm", LOGIC_ENERGY),
    "memory_energy": ("memory_kind", MEMORY_ENERGY),
    "link_energy": ("link_kind", LINK_ENERGY),
    "link_latency": ("link_kind", LINK_LATENCY),
    "link_library": ("link_kind", LINK_SHARE),
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
    Rule("kernel", "gemm.fallback_slowdown", 0.50, "kernels without vectorised loads"),
    Rule("kernel", "gemm.*", 0.12, "property of the library"),
    # FlashAttention-2 issues the Ampere generation's matrix instructions: as many operations a cycle on every SM since.
    Rule(
        "kernel",
        "attention.flash-attention-2.*.eta",
        0.20,
        "operations a cycle do not grow with the matrix units",
        {"tensor_width": -1.0, "flash_2_compiled": 1.0},
        maximum=0.72,
    ),
    Rule("kernel", "attention.*.eta", 0.20, "share of the dense rate", {"attention_library": 1.0}, maximum=0.9),
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
    Rule("power", "*", 0.25, "taken over"),
    # Voltage is a ratio to the voltage at the highest clock, by a ratio to that clock.
    Rule("voltage", "*_mhz", 0.08, "share of the highest clock", {"max_clock_mhz": 1.0}),
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
    Rule("governor", "card_spread", 0.0, "spread of cards"),
    Rule("governor", "*_s", 0.30, "averaging of the control loop"),
    Rule("governor", "*", 0.15, "taken over"),
    # Collectives: the bandwidth is a fact of the device, its share and what a block copies in a cycle carry over.
    Rule("collective", "network_share", 0.15, "share of the network's bandwidth", maximum=1.0),
    Rule("collective", "network_*", 0.30, "the network's, whatever the GPU"),
    Rule("collective", "host_launch_s", 0.30, "the host's, whatever the GPU"),
    Rule("collective", "*_s", 0.30, "latency by kind of link", {"link_latency": 1.0}),
    Rule("collective", "link_share", 0.12, "share of the links' bandwidth", {"link_library": 1.0}, maximum=1.0),
    Rule("collective", "*_ctas", 0.30, "blocks by bandwidth", {"link_bandwidth_bytes_per_s": 0.5}, maximum=32.0),
    Rule("collective", "bytes_per_cta_cycle", 0.30, "bytes a block copies in a cycle"),
    Rule("collective", "*", 0.25, "property of the library"),
    Rule("contention", "stranded_sms", 0.50, "SMs that clusters of blocks cannot use", {"clusters": 1.0}),
    Rule("contention", "*", 0.30, "taken over"),
    Rule("transition", "*", 0.50, "taken over"),
    Rule("*", "*", 0.50, "no rule: taken over"),
)
