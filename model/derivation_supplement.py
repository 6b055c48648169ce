"""Parameters of kernels that the calibrated relatives were not asked about, for derived descriptions.

vLLM's row-wise kernels (:mod:`joulecast.model.row_blocks`) run the same instructions on every SM of NVIDIA's since
Ampere, so that cycles and bytes in a cycle are a property of their code. The figures were fitted to half of the times
that Vidur measured on A100, A40 and H100 (Agrawal et al., MLSys 2024; MIT); the other half is forecast.
"""

from __future__ import annotations

from joulecast.model.description import Parameter, Table

_SOURCE = "fit to half of the operators that Vidur measured on A100 SXM, A40 and H100 SXM (MLSys 2024)"

#: Pattern to cycles of a sweep, bytes in a cycle of an SM, share of the memory's bandwidth, latency floor [s].
_ROW_BLOCKS = {
    "vllm_rms_norm": (1080.0, 6.0, 0.58, 1.8e-6),
    "vllm_silu_and_mul": (1000.0, 7.4, 0.85, 1.6e-6),
    "vllm_rotary": (620.0, 6.7, 0.75, 2.4e-6),
}
_SPREADS = (0.15, 0.1, 0.1, 0.2)
_NAMES = (("sweep_cycles", "cycle"), ("bytes_per_sm_cycle", "B/cycle"), ("bandwidth_share", ""), ("fixed_s", "s"))


def supplemented(table: Table) -> Table:
    """A derived table with what no relative knows; what it states already stays."""
    added = SUPPLEMENT.get(table.name, {})
    return Table(
        table.provenance,
        {**added, **table.parameters},
        table.covariance_names,
        table.covariance,
        table.discrepancy,
        table.name,
    )


SUPPLEMENT: dict[str, dict[str, Parameter]] = {
    "kernel": {"gemm.stream_bytes_per_sm_cycle": Parameter(40.0, 8.0, "B/cycle", _SOURCE, "fitted")}
    | {
        f"row_blocks.{pattern}.{name}": Parameter(value, spread * value, unit, _SOURCE, "fitted")
        for pattern, values in _ROW_BLOCKS.items()
        for (name, unit), value, spread in zip(_NAMES, values, _SPREADS, strict=True)
    }
}
