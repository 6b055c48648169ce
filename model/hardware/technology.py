"""Technology figures by which GPUs differ: by architecture, process node, kind of memory and kind of link.

Every figure is an estimate from public data sheets and published measurements, relative to Hopper, HBM3e and NVLink 4;
:mod:`joulecast.model.hardware.derivation_rules` says what each scales, and how far to trust it.
"""

from __future__ import annotations

from typing import TypeAlias

#: A figure for each value of a device's fact.
Figures: TypeAlias = dict[float | str | bool, float]

#: Architectures of the catalogue, and figures that are on all of them what they are on Hopper.
ARCHITECTURES = (
    *("Volta", "Ampere GA100", "Ampere GA102", "Ada", "Ada GeForce", "Blackwell RTX"),
    *("Hopper", "Blackwell", "Blackwell Ultra", "CDNA2", "CDNA3", "CDNA4"),
)
_ALIKE: Figures = dict.fromkeys(ARCHITECTURES, 1.0)

#: Energy of one matrix-unit operation at the highest clock, relative to Hopper: what large products sustain at the
#: power limit, and power by clock of pipeline stages. GA100: 1.0-1.3 on A100 SXM and PCIe (Vidur, LLMCompass, SimuMax),
#: 1.25 by a GPT-3 stage (Perseus artifact). GA102: 1.7 on A40 (Vidur), 2.1 by a BLOOM stage (Perseus artifact).
#: Blackwell: 0.75 on B200 (SimuMax). Blackwell Ultra: powers of zeros and ones on a metered B300, at two clocks. CDNA3:
#: the clocks of the largest products on MI300X and MI325X, 1207 and 1447 MHz in bf16 (ROCm blogs, Measuring
#: Max-Achievable FLOPs, part 2). CDNA4: a fifth less, by process. GeForce cards accumulate in FP32 at half the rate of
#: the same units: all else weighs double. Blackwell RTX: a tenth below Ada.
TENSOR_ENERGY: Figures = {
    "Volta": 3.2,
    "Ampere GA100": 1.25,
    "Ampere GA102": 2.05,
    "Ada": 1.4,
    "Ada GeForce": 2.0,
    "Blackwell RTX": 1.25,
    "Hopper": 1.0,
    "Blackwell": 0.75,
    "Blackwell Ultra": 0.68,
    "CDNA2": 1.6,
    "CDNA3": 1.25,
    "CDNA4": 1.0,
}

#: Energy of an FP8 operation beside a bf16 one, relative to Hopper's 0.72. Blackwell: FP8 training that was published
#: of B200 and GB300 (Megatron-Bridge) would not fit their power otherwise. Blackwell Ultra: FP8 under three limits on a
#: metered B300. CDNA3: 1.8 times the rate at the clocks of bf16 (Max-Achievable FLOPs) and Azure's guide's products;
#: CDNA4: hipBLASLt's of 8,192 on MI355X (HipKittens).
FP8_ENERGY: Figures = {
    **_ALIKE,
    "Blackwell": 0.5,
    "Blackwell Ultra": 0.62,
    "CDNA3": 0.85,
    "CDNA4": 0.60,
}

#: Switching energy of like logic at its own highest voltage, by process node [nm], relative to 4 nm.
LOGIC_ENERGY: Figures = {12: 2.2, 8: 1.7, 7: 1.5, 6: 1.4, 5: 1.05, 4: 1.0, 3: 0.8}

#: Energy of a byte to or from memory, relative to HBM3e.
MEMORY_ENERGY: Figures = {
    "HBM2": 1.4,
    "HBM2e": 1.2,
    "HBM3": 1.05,
    "HBM3e": 1.0,
    "GDDR6": 1.9,
    "GDDR6X": 1.9,
    "GDDR7": 1.6,
}

#: Energy of a byte over a link between GPUs, relative to NVLink 4.
LINK_ENERGY: Figures = {
    "NVLink2": 1.4,
    "NVLink3": 1.2,
    "NVLink3 bridge": 1.2,
    "NVLink4": 1.0,
    "NVLink4 bridge": 1.0,
    "NVLink5": 0.9,
    "PCIe3": 1.8,
    "PCIe4": 1.6,
    "PCIe5": 1.4,
    "xGMI3": 1.4,
    "xGMI4": 1.3,
}

#: Share of the peak rate that the vendor's own library reaches at its real clock, relative to cuBLAS on Hopper.
#: Blackwell: products measured by SimuMax, held by their power at 0.65 of the peak for tens of ms, then at 0.46-0.51.
#: Blackwell Ultra: Hopper's at least, by zeros and ones at a locked 1,005 MHz on a metered B300, 0.97 of the rate of
#: that clock (`validate/recorded/metered_kernels`, `products_calibrates`, as all of that card here).
#: A100: 0.92 of the peak (LLMCompass), 0.81 (Vidur). CDNA3: 0.94 at its clock (Max-Achievable FLOPs).
LIBRARY: Figures = {
    **_ALIKE,
    "Volta": 0.92,
    "Ampere GA100": 1.04,
    "Blackwell": 0.82,
    "CDNA2": 0.8,
    "CDNA3": 1.04,
    "CDNA4": 1.04,
}

#: The same of the vendor's fused attention, backward. Blackwell: SimuMax's cuDNN kernels on B200, 0.8 of Hopper's share
#: forward and backward. CDNA3 and CDNA4: the assembly kernels of AITER, which Transformer Engine runs there, on MI300X
#: with sums of dQ in fp32 and on MI355X midway between fp32 and bf16, as recipes choose either (`amd_kernels`).
ATTENTION_BACKWARD: Figures = {
    **LIBRARY,
    **dict.fromkeys(("Blackwell", "Blackwell Ultra", "CDNA3", "CDNA4"), 0.8),
}

#: The same, forward.
ATTENTION_FORWARD: Figures = {**ATTENTION_BACKWARD, "CDNA3": 0.82, "CDNA4": 0.9}

#: Where FlashAttention-2 is not compiled for Ampere's matrix instructions but, on AMD's cards, for their own, it
#: reaches Hopper's share of their rate. MI300X: 329 TFLOP/s forward with heads of 64 (Azure's AI benchmarking guide).
FLASH_2_COMPILED: Figures = {**_ALIKE, "CDNA2": 0.25, "CDNA3": 0.5}

#: Pace of PyTorch's own backward attention beside what FLASH_2_COMPILED says of its forward one. On AMD's cards PyTorch
#: runs AOTriton's kernels: 143 to 312 TFLOP/s on MI355X, a quarter of the vendor's (`amd_kernels`, HipKittens'
#: baselines); CDNA2 and CDNA3 are taken for the same share of their rates, as the vendor's kernels have.
FLASH_2_BACKWARD: Figures = {**_ALIKE, **dict.fromkeys(("CDNA2", "CDNA3", "CDNA4"), 0.38)}

#: Share of the memory's bandwidth that streaming kernels draw, relative to Hopper. CDNA3: copies of 4.1 TB/s on MI300X
#: (Azure's guide); CDNA4 is taken for the same.
STREAMS: Figures = {**_ALIKE, "CDNA3": 0.88, "CDNA4": 0.88}

#: Share of the memory's bandwidth that products of few rows draw, relative to cuBLAS on Hopper, whose bulk copies keep
#: more bytes in flight. Ampere: Vidur and LLMCompass on A100 0.81-1.01, Vidur on A40 0.80. CDNA2: LLMCompass on MI210.
PRODUCT_STREAMS: Figures = {
    "Volta": 0.85,
    "Ampere GA100": 0.88,
    "Ampere GA102": 0.84,
    "Ada": 0.9,
    "Ada GeForce": 0.9,
    "Blackwell RTX": 0.9,
    "Hopper": 1.0,
    "Blackwell": 0.8,
    "Blackwell Ultra": 0.8,
    "CDNA2": 0.4,
    "CDNA3": 0.6,
    "CDNA4": 0.7,
}

#: Exponent by which memory and computation overlap in a kernel, relative to cuBLAS on Hopper. Blackwell: SimuMax, B200.
OVERLAP: Figures = {**_ALIKE, "Blackwell": 0.5, "Blackwell Ultra": 0.5}

#: Cycles of a tile's prologue and epilogue, relative to cuBLAS on Hopper, which overlaps them with other tiles.
#: Ampere: 1.1-1.9 on A100 and A40; CDNA2: 2.3 on MI210; Blackwell: 1.4 on B200 (Vidur, LLMCompass, SimuMax). CDNA3: as
#: large for products whose fixed cycles AMD's figure of large ones leaves out (FP8 on MI300X, Azure's guide).
TILE_OVERHEAD: Figures = {
    **dict.fromkeys(ARCHITECTURES, 1.4),
    "Ampere GA102": 1.6,
    "Hopper": 1.0,
    "CDNA2": 2.0,
    "CDNA3": 4.0,
    "CDNA4": 4.0,
}

#: Share of the links' bandwidth that collectives reach, relative to NVLink 4. xGMI4: RCCL's all-reduces of gigabytes on
#: eight MI300X, 315 GB/s of bus bandwidth (Azure's guide); xGMI3 is taken for the same.
LINK_SHARE: Figures = {**dict.fromkeys(LINK_ENERGY, 1.0), "xGMI3": 0.86, "xGMI4": 0.86}

#: Latency of a message between two GPUs, relative to NVLink 4 through a switch. xGMI4: an all-reduce of 1 MB takes 82
#: us on eight MI300X of a virtual machine (Azure's guide), 27 us on bare ones (AMD's blog on RCCL): midway.
LINK_LATENCY: Figures = {
    "NVLink2": 1.2,
    "NVLink3": 1.1,
    "NVLink3 bridge": 1.1,
    "NVLink4": 1.0,
    "NVLink4 bridge": 1.0,
    "NVLink5": 1.0,
    "PCIe3": 1.7,
    "PCIe4": 1.6,
    "PCIe5": 1.5,
    "xGMI3": 1.25,
    "xGMI4": 1.25,
}

#: The board's limit on the rate of the matrix units by architecture, relative to Hopper's share of the highest clock.
#: A100 reaches 94 % of its peak in short products (LLMCompass): none is seen there, so that it never binds at 2. Nor is
#: one on Blackwell Ultra: ones run at 2,032 MHz and 0.91 of the rate of that clock (metered B300).
TENSOR_LIMIT: Figures = {**dict.fromkeys(ARCHITECTURES, 2.0), "Hopper": 1.0, "Blackwell": 1.0}

#: Whether the library's products launch their blocks in clusters: on Hopper and later.
CLUSTERS: Figures = {
    **dict.fromkeys(ARCHITECTURES, 0.01),
    **dict.fromkeys(("Hopper", "Blackwell", "Blackwell Ultra"), 1.0),
}

#: Quantity to the device fact that selects it and its table.
TECHNOLOGY: dict[str, tuple[str, Figures]] = {
    "tensor_energy": ("architecture", TENSOR_ENERGY),
    "fp8_energy": ("architecture", FP8_ENERGY),
    "library": ("architecture", LIBRARY),
    "attention_forward": ("architecture", ATTENTION_FORWARD),
    "attention_backward": ("architecture", ATTENTION_BACKWARD),
    "flash_2_compiled": ("architecture", FLASH_2_COMPILED),
    "flash_2_backward": ("architecture", FLASH_2_BACKWARD),
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
