"""How far off kernels are whose forms rest on estimates: constants from a few rows of kinds that no calibration has.

A calibration finds what the form of its own kinds of kernels gets wrong by leaving out rows. Weights' gradients of
experts in one kernel, products of experts on several streams, frameworks' products in FP8 and PyTorch's operators that
instructions bind are not among these. Each of these families rests on one constant or few: what is wrong with these is
wrong in all its kernels alike. Their figures are what :func:`joulecast.calibrate.fit.cross_validation.estimated_forms`
finds on the rows of ``experts.jsonl``, ``expert_rows.jsonl`` and ``fp8_kernels.jsonl`` in `validate/recorded/h200_sxm`:
the likeliest scale of errors by kernel, with Student's tails and what few kernels leave open, beside what the
parameters of `h200-sxm` leave open of each. Rows of the same kinds from another host, ``…_second``, are not read: they
tell how well this holds.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Windows, and documents in one sequence: what `validate/recorded/windows` and `validate/recorded/documents` are off,
#: but for the rows that gave constants, with what other cards and lengths leave open [estimate].
POSITION_FORMS: Mapping[str, Mapping[str, float]] = {"attention_positions": {"time": 0.05, "energy": 0.06}}
#: Attention with soft-capping or heads of 256, products in FP4 and kernels that cast for them, which no row is
#: of: how far such kernels lie off what is taken from others [estimate].
UNMEASURED_FORMS: Mapping[str, Mapping[str, float]] = {
    "attention_unmeasured": {"time": 0.2, "energy": 0.2},
    "gemm_fp4": {"time": 0.15, "energy": 0.25},
    "streaming_fp4": {"time": 0.2, "energy": 0.2},
}
#: Family, then quantity to relative standard deviation; what a description has of its own wins.
ESTIMATED_FORMS: Mapping[str, Mapping[str, float]] = {
    "gemm_fp8": {"time": 0.0408, "energy": 0.0402, "power": 0.0754},
    "gemm_grouped_gradient": {"time": 0.0536, "energy": 0.0644, "power": 0.0799},
    "gemm_separate": {"time": 0.0596, "energy": 0.0653, "power": 0.176},
    "streaming_issued": {"time": 0.0276, "energy": 0.0285, "power": 0.0313},
}
