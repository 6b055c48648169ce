"""Every fitted parameter: where its search starts, its bounds, and how far it may be from the start without data.

A parameter that the rows do not identify stays at its start with the standard deviation given here; the fit says so.
"""

from __future__ import annotations

from dataclasses import dataclass

_WEAK = "weak prior around published microbenchmarks"
_PRODUCTS = "1,000 products on one H200, recorded"


@dataclass(frozen=True, slots=True)
class Prior:
    """Start, bounds and prior spread of one parameter.

    ``rel_sd`` is relative to ``start`` (absolute where ``start`` is 0).
    """

    start: float
    lower: float
    upper: float
    rel_sd: float
    unit: str = ""
    source: str = _WEAK

    @property
    def sd(self) -> float:
        """Prior standard deviation in the parameter's unit."""
        return self.rel_sd * (abs(self.start) or 1.0)


#: Access patterns: share of peak bandwidth, bytes an SM moves in a cycle, latency floor [s], energy beyond a copy's
#: [pJ/B], and the relative prior spread of the first two.
_STREAMING: dict[str, tuple[float, float, float, float, float]] = {
    "copy": (0.89, 60.0, 1.8e-6, 0.0, 0.3),
    "fill": (0.71, 60.0, 1.5e-6, 10.0, 0.3),
    "exp": (0.89, 30.0, 1.5e-6, 20.0, 0.3),
    "sum": (0.86, 30.0, 5.0e-6, 20.0, 0.3),
    "reduce_min": (0.80, 22.0, 2.0e-6, 20.0, 0.3),
    "reduce": (0.86, 30.0, 5.0e-6, 20.0, 0.2),
    "rmsnorm": (0.75, 18.8, 2.2e-6, 20.0, 0.3),
    "layernorm": (0.78, 11.9, 3.0e-6, 60.0, 0.3),
    "softmax": (0.70, 5.0, 2.0e-6, 150.0, 0.3),
    "add": (0.92, 60.0, 1.7e-6, 10.0, 0.3),
    "mul": (0.92, 60.0, 1.7e-6, 10.0, 0.3),
    "unary": (0.89, 60.0, 1.7e-6, 10.0, 0.15),
    "gelu": (0.88, 13.2, 2.0e-6, 20.0, 0.3),
    "gelu_backward": (0.90, 14.8, 2.2e-6, 20.0, 0.3),
    "strided_unary": (0.60, 6.3, 2.0e-6, 150.0, 0.3),
    "strided_binary": (0.70, 9.4, 2.0e-6, 90.0, 0.3),
    "strided_silu_backward": (0.70, 8.0, 2.0e-6, 110.0, 0.3),
    "cat": (0.85, 30.0, 2.0e-6, 10.0, 0.3),
    "norm_backward": (0.86, 17.3, 2.3e-6, 20.0, 0.3),
    "gamma_backward": (0.70, 20.0, 1.1e-6, 10.0, 0.3),
    "bias_reduce": (0.98, 19.3, 7.2e-6, 10.0, 0.3),
    "gemv": (0.91, 30.0, 2.0e-6, 10.0, 0.3),
    "adamw": (0.89, 20.2, 2.0e-6, 10.0, 0.3),
    "adamw_fp32": (0.89, 40.4, 2.0e-6, 10.0, 0.3),
    "adamw_untouched": (0.89, 7.0, 2.0e-6, 0.0, 0.1),
    "zero_grad": (0.75, 60.0, 1.0e-6, 10.0, 0.3),
    "foreach_add": (0.60, 20.0, 1.5e-6, 10.0, 0.3),
    "log_softmax": (0.88, 24.0, 2.0e-6, 20.0, 0.1),  # validate/recorded/framework_kernels/losses.csv
    "log_softmax_backward": (0.75, 15.0, 2.0e-6, 20.0, 0.3),
    "nll_loss": (0.10, 2.0, 6.0e-6, 0.0, 0.3),
    "nll_loss_backward": (0.10, 2.0, 3.0e-6, 0.0, 0.3),
    "embedding": (0.80, 30.0, 2.0e-6, 10.0, 0.3),
    "embedding_sort": (0.30, 2.0, 70.0e-6, 0.0, 0.3),
    "embedding_segments": (0.10, 2.0, 20.0e-6, 0.0, 0.3),
    "embedding_backward": (0.30, 3.0, 2.0e-6, 0.0, 0.3),
    "swiglu": (0.85, 25.0, 2.0e-6, 20.0, 0.15),
    "swiglu_backward": (0.85, 20.0, 2.0e-6, 20.0, 0.15),
    "rope": (0.60, 12.0, 2.0e-6, 10.0, 0.3),
}

#: Patterns whose latency floors and bytes in a cycle are those of PyTorch's kernels on one H200, by 127 shapes each.
_MEASURED = (
    "add",
    "copy",
    "gelu",
    "gelu_backward",
    "layernorm",
    "rmsnorm",
    "norm_backward",
    "bias_reduce",
    "gamma_backward",
)

#: Patterns whose cycles were counted, 0.69 a value in both types: blocks of AdamW alone on their SMs, on two cards.
_COUNTED = ("adamw", "adamw_fp32")

_BACKENDS = {
    ("cudnn", "forward"): (0.63, 0.75, 0.90),
    ("cudnn", "backward"): (0.50, 0.75, 0.90),
    # FlashAttention-3: 740 TFLOP/s forward, 580 backward published for H100 at head dimension 128; no row measures it.
    ("flash-attention-3", "forward"): (0.68, 0.75, 0.95),
    ("flash-attention-3", "backward"): (0.56, 0.75, 1.05),
    ("flash-attention-2", "forward"): (0.34, 0.85, 1.30),
    ("flash-attention-2", "backward"): (0.30, 0.85, 1.30),
}


#: How far a pattern's share of the bandwidth may be from where its search starts: 13 % over 25 fitted ones.
BANDWIDTH_SPREAD = 0.15


#: Parameters of the table ``kernel`` that belong to no backend or pattern.
_KERNEL = {
    "kernel.overlap_exponent": Prior(4.0, 1.5, 20.0, 0.4),
    "kernel.gemm.eta": Prior(0.92, 0.5, 1.2, 0.1),
    "kernel.gemm.tile_penalty": Prior(0.007, 0.0, 0.5, 0.5, "", _PRODUCTS),
    "kernel.gemm.load_bytes_per_sm_cycle": Prior(76.0, 30.0, 128.0, 0.05, "B/cycle", _PRODUCTS),
    "kernel.gemm.tile_overhead_cycles": Prior(3300.0, 0.0, 2e4, 0.05, "cycle", _PRODUCTS),
    "kernel.gemm.fixed_s": Prior(2.5e-6, 0.0, 5e-6, 0.05, "s", _PRODUCTS),
    "kernel.gemm.bandwidth_share": Prior(0.90, 0.5, 1.0, 0.03),
    "kernel.gemm.layout.nn": Prior(1.0, 0.8, 1.2, 0.05),
    "kernel.gemm.layout.nt": Prior(1.0, 0.8, 1.2, 0.05),
    "kernel.gemm.efficiency.fp16": Prior(1.0, 0.8, 1.2, 0.05),
    "kernel.gemm.efficiency.tf32": Prior(0.95, 0.5, 1.2, 0.1),
    "kernel.gemm.efficiency.fp8": Prior(0.90, 0.5, 1.2, 0.1),
    "kernel.gemm.efficiency.fp32": Prior(0.90, 0.3, 1.4, 0.3),
    "kernel.gemm.fallback_slowdown": Prior(7.0, 3.0, 20.0, 0.1, "", "products of unaligned rows on one H200, recorded"),
    "kernel.attention.fixed_s": Prior(2.0e-6, 0.0, 1e-5, 0.5, "s"),
    "kernel.l2.capacity_share": Prior(0.85, 0.5, 1.1, 0.1),
    "kernel.l2.bytes_per_sm_cycle": Prior(24.0, 10.0, 64.0, 0.3, "B/cycle"),
    "kernel.tile_gemm.eta": Prior(0.87, 0.6, 1.0, 0.1),
    "kernel.tile_gemm.load_slope": Prior(1.6, 0.5, 3.0, 0.3),
    "kernel.tile_gemm.load_knee": Prior(1.0, 0.6, 1.4, 0.2),
    "kernel.tile_gemm.narrow_step": Prior(0.07, 0.0, 0.3, 0.3),
    "kernel.tile_gemm.short_step": Prior(0.08, 0.0, 0.5, 0.5),
    "kernel.tile_gemm.tile_overhead_cycles": Prior(3000.0, 0.0, 2e4, 0.5, "cycle"),
    "kernel.tile_gemm.fixed_s": Prior(2.0e-6, 0.0, 1e-5, 0.5, "s"),
    "kernel.tile_rmsnorm.bandwidth_share": Prior(0.86, 0.4, 1.0, 0.1),
    "kernel.tile_rmsnorm.block_cycles": Prior(2000.0, 50.0, 2e4, 0.5, "cycle"),
    "kernel.tile_reduce_min.bandwidth_share": Prior(0.94, 0.4, 1.0, 0.1),
    "kernel.tile_reduce_min.block_cycles": Prior(1400.0, 50.0, 2e4, 0.5, "cycle"),
}


def time_priors() -> dict[str, Prior]:
    """Parameters of the table ``kernel``."""
    priors = dict(_KERNEL)
    for (backend, direction), (eta, narrow, _) in _BACKENDS.items():
        prefix = f"kernel.attention.{backend}.{direction}."
        priors[prefix + "eta"] = Prior(eta, 0.1, 1.0, 0.3)
        priors[prefix + "narrow"] = Prior(narrow, 0.3, 1.3, 0.1)  # four fitted ones lie within 6 %
        priors[prefix + "imbalance"] = Prior(0.5, 0.0, 1.5, 0.4)
        priors[prefix + "block_overhead"] = Prior(1.5, 0.0, 10.0, 0.7)
        priors[prefix + "fixed_cycles"] = Prior(5000.0, 0.0, 1e5, 0.7, "cycle")
    for pattern, (share, issue, fixed, _, spread) in _STREAMING.items():
        prefix = f"kernel.streaming.{pattern}."
        priors[prefix + "bandwidth_share"] = Prior(share, 0.02, 1.0, min(spread, BANDWIDTH_SPREAD))
        if pattern in _MEASURED:
            issue_spread, fixed_spread, source = 0.1, 0.1, "row-wise kernels on one H200, recorded"
        elif pattern in _COUNTED:
            issue_spread, fixed_spread, source = 0.05, 0.5, "blocks alone on their SMs, counted on two cards"
        else:
            issue_spread, fixed_spread, source = spread, 0.5, _WEAK
        priors[prefix + "bytes_per_sm_cycle"] = Prior(issue, 0.05, 200.0, issue_spread, "B/cycle", source)
        priors[prefix + "fixed_s"] = Prior(fixed, 0.0, 2e-4, fixed_spread, "s", source)
    return priors


#: Parameters of the tables ``power`` and ``voltage`` that belong to no backend or pattern.
_POWER = {
    "voltage.slope": Prior(0.60, 0.0, 1.2, 0.15),
    "voltage.floor_ratio": Prior(0.66, 0.5, 0.9, 0.08, source="A100's measured knee scaled to this clock range"),
    "power.static_w": Prior(70.0, 40.0, 100.0, 0.2, "W"),
    "power.clock_w": Prior(52.0, 10.0, 120.0, 0.3, "W"),
    "power.sm_w": Prior(45.0, 0.0, 400.0, 0.6, "W"),
    "power.leakage_w_per_k": Prior(
        0.4, 0.0, 2.0, 0.2, "W/K", "idle power while the card cools: 130.7 W at 47 °C, 127.4 W at 41 °C"
    ),
    "power.thermal_resistance_k_per_w": Prior(0.033, 0.01, 0.08, 0.2, "K/W"),
    "power.inlet_c": Prior(35.0, 20.0, 50.0, 0.1, "°C"),
    "power.l2_pj_per_byte": Prior(50.0, 1.0, 100.0, 0.15, "pJ/B"),
    "power.gemm_pj_per_l2_byte": Prior(16.0, 0.0, 60.0, 0.6, "pJ/B"),
    "power.hbm_base_pj_per_byte": Prior(30.0, 0.0, 100.0, 0.35, "pJ/B"),
    "power.hbm_toggle_pj_per_byte": Prior(40.0, 5.0, 150.0, 0.22, "pJ/B"),
    "power.toggle.zeros": Prior(0.35, 0.0, 0.7, 0.5),
    "power.toggle.ones": Prior(0.4, 0.0, 0.8, 0.2),
    "power.toggle.pow2": Prior(0.6, 0.05, 1.0, 0.2),
    "power.toggle.sparse_exponent": Prior(3.0, 1.0, 8.0, 0.4),
    "kernel.gemm.reread_share": Prior(0.7, 0.0, 2.0, 0.5),
    "power.tensor_pj_per_flop.bf16": Prior(0.60, 0.1, 1.5, 0.3, "pJ"),
    "power.tensor_pj_per_flop.fp16": Prior(0.68, 0.1, 1.5, 0.3, "pJ"),
    "power.tensor_pj_per_flop.tf32": Prior(1.2, 0.1, 3.0, 0.3, "pJ"),
    "power.tensor_pj_per_flop.fp8": Prior(0.36, 0.1, 1.0, 0.3, "pJ"),
    "power.tensor_pj_per_flop.fp32": Prior(8.0, 1.0, 25.0, 0.5, "pJ"),
    "power.tile_pj_per_flop": Prior(0.60, 0.1, 1.5, 0.3, "pJ"),
    "power.tile_pj_per_l2_byte": Prior(17.0, 1.0, 60.0, 0.5, "pJ/B"),
    "power.tile_rmsnorm.value_pj_per_byte": Prior(10.0, -40.0, 60.0, 0.7, "pJ/B"),
    "power.tile_rmsnorm.pj_per_thread": Prior(500.0, 0.0, 1e4, 0.7, "pJ"),
    "power.tile_reduce_min.value_pj_per_byte": Prior(10.0, -40.0, 60.0, 0.7, "pJ/B"),
    "power.tile_reduce_min.pj_per_thread": Prior(500.0, 0.0, 1e4, 0.7, "pJ"),
    "power.attention_overhead_share": Prior(0.4, 0.0, 1.0, 0.5),
    "power.attention_narrow_extra": Prior(0.1, -0.5, 1.5, 1.0),
}


def power_priors() -> dict[str, Prior]:
    """Parameters of the tables ``power`` and ``voltage``."""
    priors = dict(_POWER)
    for (backend, direction), (_, _, energy) in _BACKENDS.items():
        priors[f"power.attention_pj_per_flop.{backend}.{direction}"] = Prior(energy, 0.1, 2.5, 0.3, "pJ")
    for pattern, (_, _, _, energy, _) in _STREAMING.items():
        priors[f"power.streaming_pj_per_byte.{pattern}"] = _extra_energy(energy)
    return priors


def _extra_energy(energy: float) -> Prior:
    """Energy of a byte beyond a copy's: most patterns compute little, some issue many instructions."""
    return Prior(energy, -40.0, 600.0, max(1.0, 30.0 / energy) if energy else 2.0, "pJ/B")


#: Parameters of the table ``collective``, and of ``power`` for communication.
COLLECTIVE: dict[str, Prior] = {
    "collective.bytes_per_cta_cycle": Prior(13.6, 3.0, 40.0, 0.3, "B/cycle"),
    "collective.link_share": Prior(0.86, 0.4, 1.0, 0.1),
    "collective.exchange_link_share": Prior(0.72, 0.4, 1.0, 0.1),
    "collective.cta_copy_share": Prior(0.70, 0.0, 2.0, 0.5),
    "collective.link_copy_share": Prior(0.42, 0.0, 2.0, 0.5),
    "collective.latency_s": Prior(17e-6, 0.0, 1e-4, 0.5, "s"),
    "collective.latency_per_gpu_s": Prior(2.4e-6, 0.0, 2e-5, 0.7, "s"),
    "power.link_pj_per_byte": Prior(450.0, 50.0, 1000.0, 0.4, "pJ/B"),
    "power.collective_w": Prior(30.0, 0.0, 100.0, 0.5, "W"),
}

#: Parameters of the table ``contention``.
CONTENTION: dict[str, Prior] = {
    "contention.compute_slowdown": Prior(
        1.3,
        0.0,
        3.0,
        0.2,
        "",
        "recorded: strided products 1.25-1.33, norms 1.34-1.46 times as long beside 24 blocks",
    ),
    "contention.cta_slowdown": Prior(1.1, 1.0, 3.0, 0.2, "", "estimate: copying beside kernels that compute"),
    "contention.cta_slowdown_memory": Prior(
        1.6, 1.0, 4.0, 0.3, "", "estimate: copying beside kernels that keep the memory busy"
    ),
}

#: What the board settles at under its limits; estimated from means, not searched.
GOVERNOR: dict[str, Prior] = {
    "governor.settled_share": Prior(0.988, 0.8, 1.0, 0.01, "", "rows at the power limit"),
    "governor.tensor_clock_mhz": Prior(1440.0, 500.0, 3000.0, 0.05, "MHz", "tensor rows held below the maximum clock"),
}

#: Values that no row of kernels or collectives identifies.
FIXED: dict[str, Prior] = {
    "collective.default_ctas": Prior(24.0, 1.0, 64.0, 0.0, "", "NCCL 2.28 on eight NVLink 4 GPUs without NVLS"),
    "collective.transfer_ctas": Prior(
        20.0, 1.0, 64.0, 0.3, "", "estimate: blocks of a transfer, between 16 and 32 channels to a peer"
    ),
    "contention.stranded_sms": Prior(
        8.0, 0.0, 64.0, 0.25, "", "recorded products beside 8-32 blocks of four H200s' collectives"
    ),
    "collective.host_launch_s": Prior(
        45e-6, 0.0, 1e-3, 0.05, "s", "recorded collectives of at most 1 MB: 35-54 us each, whatever their kind and size"
    ),
    "collective.network_latency_s": Prior(
        8e-6, 0.0, 1e-3, 0.5, "s", "estimate: two switch hops and a proxy's hand-over"
    ),
    "collective.network_share": Prior(
        0.85, 0.1, 1.0, 0.15, "", "estimate: large-message share of InfiniBand's line rate"
    ),
    "governor.burst_share": Prior(
        1.031, 1.0, 1.5, 0.015, "", "plateau of recorded pulses at 700 W: 722 W from 0.1 to 0.9 s"
    ),
    "governor.peak_share": Prior(
        1.36, 1.0, 2.0, 0.02, "", "recorded duties of 0.2-0.6 at 700 W: 948-962 W at work; first 40 ms of pulses: 940 W"
    ),
    "governor.burst_s": Prior(
        0.5, 0.0, 2.0, 0.3, "s", "mean power of 0.5-0.8 s windows that start 0.25 s after the load"
    ),
    "governor.fast_s": Prior(
        0.0075,
        0.001,
        1.0,
        0.4,
        "s",
        "products, copies and rests in turn, 0.5 to 200 ms, on an H200 and an H100: "
        "time within 1.8 %, power within 1.2 %",
    ),
    "governor.slow_s": Prior(
        1.0, 0.1, 10.0, 0.2, "s", "recorded ramp: the second correction comes 0.9 s after the load"
    ),
    "power.wait_w": Prior(38.0, 0.0, 200.0, 0.06, "W", "recorded H200s waiting in all-reduces, less idle: 35-41 W"),
    "governor.wander": Prior(
        0.07,
        0.0,
        0.3,
        0.15,
        "",
        "recorded clocks of eight H200s in step: 103-134 of 1,760 MHz",
    ),
    "governor.card_clock_spread": Prior(0.006, 0.0, 0.1, 0.3, "", "time of one kernel on eight H200s at once: 0.55 %"),
    "governor.in_step_loss": Prior(
        0.011,
        0.0,
        0.2,
        0.4,
        "",
        "mean power of recorded GPUs in step at the limit: 693 W for 2, 687 W for 4, 664 W for 8",
    ),
    "power.card_core": Prior(
        1.0, 0.5, 1.5, 0.042, "", "energies of twenty H200s of ten hosts: 4.2 % from host to host"
    ),
    "power.card_memory": Prior(1.0, 0.2, 3.0, 0.13, "", "energies of ten H200s' memories: 13 %"),
    "transition.clock_s": Prior(0.02, 0.0, 1.0, 0.5, "s", "recorded pulses: the clock steps within 20 ms"),
    "transition.power_limit_s": Prior(0.013, 0.0, 1.0, 0.5, "s", "Chung and Chowdhury: 7-20 ms on A40"),
}
