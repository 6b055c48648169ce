"""Parameters of derived descriptions for kernels that were never measured on the calibrated relatives.

vLLM's row-wise kernels (:mod:`joulecast.model.kernels.row_blocks`) run the same instructions on every SM of NVIDIA's
since Ampere, so that cycles and bytes in a cycle are a property of their code. Vidur measured them on A100, A40 and
H100 (Agrawal et al., MLSys 2024; MIT); fits to each of these cards lie 10 % apart on average, and the figures between
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from joulecast.model.hardware.derivation_rules import DISTANCES, Distance
from joulecast.model.hardware.description import Parameter, Table

_SOURCE = "fits to the operators that Vidur measured on A100 SXM, A40 and H100 SXM (MLSys 2024)"

#: Pattern to cycles of a sweep, bytes in a cycle of an SM, share of the memory's bandwidth, latency floor [s], cycles
#: between two blocks.
_ROW_BLOCKS = {
    "vllm_rms_norm": (1030.0, 6.5, 0.52, 1.8e-6, 500.0),
    "vllm_silu_and_mul": (1020.0, 8.2, 0.82, 0.9e-6, 750.0),
    "vllm_rotary": (620.0, 7.4, 0.7, 1.9e-6, 750.0),
}
_SPREADS = (0.15, 0.1, 0.1, 0.2, 0.5)
_NAMES = (
    ("sweep_cycles", "cycle"),
    ("bytes_per_sm_cycle", "B/cycle"),
    ("bandwidth_share", ""),
    ("fixed_s", "s"),
    ("block_cycles", "cycle"),
)


#: Factor on the rate of cuDNN's backward attention for each doubling of the head's width over 128, by architecture.
#: Blackwell keeps sums in tensor memory, 512 columns of 128 rows: the five of a backward step already take 640 at a
#: width of 128, and blocks of wider heads are shorter.
_WIDE_HEADS = {
    architecture: Parameter(0.55, 0.15, "", "SimuMax's backward attention at heads of 192 and 128, B200", "estimate")
    for architecture in ("Blackwell", "Blackwell Ultra")
}

#: Until when a board has answered a new load, by architecture. After a rest the first products on B200 run at 0.63 to
#: 0.65 of the peak where they are done within 47 ms, and settle at 0.46 to 0.50; those of 110 and 116 ms are midway.
_ANSWER = {
    architecture: Parameter(0.05, 0.01, "s", "first products after a rest, SimuMax, B200", "estimate")
    for architecture in ("Blackwell", "Blackwell Ultra")
}

#: Pace of the backward kernels of FlashAttention-2's own package beside PyTorch's own, where these are AOTriton's: it
#: runs Composable Kernel's. MI355X, heads of 128, 2,048 to 16,384 positions (HipKittens' baselines, `amd_kernels`).
_PACKAGE_BACKWARD = Parameter(
    1.85, 0.37, "", "FlashAttention-2's package over PyTorch on MI355X: 1.5 to 3.2 times (HipKittens)", "estimate"
)

#: What ``cudnn`` stands for on AMD's cards are AITER's kernels, which Transformer Engine runs as they are: the pace of
#: cuDNN's under it (:data:`joulecast.model.kernels.attention.RESEMBLES`) is of no card of theirs.
_AITER = Parameter(1.0, 0.0, "", "AITER's published times are those of its kernels under Transformer Engine", "assumed")

#: Factor on computation beside communication that neither SMs nor power explain, by architecture. Products beside
#: all-gathers and all-to-alls on eight MI300X gain 21 % of the ideal on average, 42 % with priorities and partitions
#: (Agrawal et al., ConCCL, arXiv 2412.14335); the other terms alone would leave 68 %. Nobody measured it elsewhere.
_CONCCL = "overlap reaches 21 to 42 % of the ideal on MI300X (arXiv 2412.14335)"
_INTERFERENCE = {
    "CDNA2": Parameter(1.4, 0.4, "", f"between none and CDNA3's; {_CONCCL}", "estimate"),
    "CDNA3": Parameter(2.0, 0.5, "", _CONCCL, "estimate"),
    "CDNA4": Parameter(1.4, 0.4, "", f"between none and CDNA3's; {_CONCCL}", "estimate"),
}

#: Parameter with how much longer a training step on a GPU of another vendor may take than forecast, beside all else:
#: how far its software is tuned for training is seen in no step of the relative's vendor [log of time].
VENDOR_LONGER = "training_longer_vendor"
_UNSEEN_SOFTWARE = {
    VENDOR_LONGER: Parameter(
        0.13,
        0.0,
        "",
        "steps on MI250X, MI300X, MI350X and MI355X forecast from an H200 and NVIDIA's steps: means 0.04 shorter, 0.26 "
        "longer, 0.01 longer and 0.02 shorter; root mean square of what was longer",
        "estimate",
    )
}


def supplemented(table: Table, distance: Distance, device: Mapping[str, Parameter]) -> Table:
    """A derived table with what no relative knows; what it states already stays. Other vendors run other code."""
    added = {} if distance is DISTANCES["other"] else dict(SUPPLEMENT.get(table.name, {}))
    architecture = str(device["architecture"].value)
    if table.name == "contention" and architecture in _INTERFERENCE:
        added["interference"] = _INTERFERENCE[architecture]
    if table.name == "transition" and architecture in _ANSWER:
        added["answer_s"] = _ANSWER[architecture]
    if table.name == "kernel":
        wide = _WIDE_HEADS.get(architecture)
        added |= {} if wide is None else {"attention.cudnn.backward.wide": wide}
        if device["vendor"].value == "AMD":
            added["attention.flash-attn-2.backward.pace"] = _PACKAGE_BACKWARD
            added |= {f"attention.te-cudnn.{direction}.pace": _AITER for direction in ("forward", "backward")}
        added |= _UNSEEN_SOFTWARE if distance is DISTANCES["other"] else {}
    return replace(table, parameters={**added, **table.parameters})


SUPPLEMENT: dict[str, dict[str, Parameter]] = {
    "kernel": {
        f"row_blocks.{pattern}.{name}": Parameter(value, spread * value, unit, _SOURCE, "fitted")
        for pattern, values in _ROW_BLOCKS.items()
        for (name, unit), value, spread in zip(_NAMES, values, _SPREADS, strict=True)
    }
}
