"""Trivial rules to hold every figure against: one constant rate and one constant power for each family.

Matrix products, blocks and iterations run at 662 TFLOP/s and 690 W (what an H200 sustains on large bf16 products),
kernels that stream run at the bandwidth of a large copy, 4.3 TB/s. All other constants, the clock, and those of rows
that another card measured, are the (geometric) mean of the very rows that are scored: the best that a single number
can do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from joulecast.calibrate.rows.measured import Row
from joulecast.calibrate.rows.operators import operator_of
from joulecast.model.architecture.hf import load_model
from joulecast.model.kernels.operators import Attention, Collective, Gemm, Streaming
from joulecast.simulator.plan_file.parts import PAIRED
from joulecast.validate.scoring import metrics
from joulecast.validate.scoring.result import Prediction

#: Product on which the constants were seen.
H200 = "NVIDIA H200"
#: Sustained rate of large bf16 matrix products on an H200 [FLOP/s], and the power at which it runs [W].
GEMM_FLOPS_PER_S = 662e12
GEMM_POWER_W = 690.0
#: Bandwidth of a large copy on an H200 [B/s].
COPY_BANDWIDTH_BYTES_PER_S = 4.3e12
#: Rate of a matrix product relative to bf16 by data type.
DTYPE_RATE = {"bf16": 1.0, "fp16": 1.0, "tf32": 0.5, "fp8": 2.0, "fp32": 0.075, "fp64": 0.075}


@dataclass(frozen=True, slots=True)
class Trivial:
    """Amount of work of one GPU, and the constants that are fixed rather than learnt from the rows."""

    amount: float
    rate_per_s: float | None = None
    power_w: float | None = None


def baselines(rows: Sequence[Row], families: Sequence[str]) -> list[Prediction]:
    """Trivial prediction of every row; the constants that are not fixed are learnt family by family."""
    return baselines_of([_of_card(trivial_work(row.configuration), row) for row in rows], rows, families)


def baselines_of(trivials: Sequence[Trivial], rows: Sequence[Row], families: Sequence[str]) -> list[Prediction]:
    """As :func:`baselines`, of work that is known otherwise."""
    learnt = {f: _learn([i for i, g in enumerate(families) if g == f], rows, trivials) for f in set(families)}
    return [_predict(row, trivial, *learnt[f]) for row, trivial, f in zip(rows, trivials, families, strict=True)]


def _of_card(trivial: Trivial, row: Row) -> Trivial:
    """The constants are those of an H200; other cards learn their own."""
    elsewhere = H200 not in row.configuration.get("products", (H200,))
    return Trivial(trivial.amount) if elsewhere else trivial


def _learn(
    members: Sequence[int], rows: Sequence[Row], trivials: Sequence[Trivial]
) -> tuple[float | None, float | None, float | None]:
    """Mean rate, power of one GPU and clock of some rows."""
    times = metrics.as_array([rows[i].measured.time_s for i in members])
    amounts = metrics.as_array([trivials[i].amount for i in members])
    powers = metrics.as_array([rows[i].measured.power_w for i in members])
    gpus = metrics.as_array([float(rows[i].gpus) for i in members])
    clocks = metrics.as_array([rows[i].measured.sm_clock_mhz for i in members])
    mean = metrics.geometric_mean
    with np.errstate(over="ignore"):  # the mean leaves out what is infinite
        rates = amounts / times
    return mean(rates), mean(powers / gpus), mean(clocks)


def _predict(row: Row, trivial: Trivial, rate: float | None, power: float | None, clock: float | None) -> Prediction:
    rate = trivial.rate_per_s or rate
    power = trivial.power_w or power
    time_s = trivial.amount / rate if rate and trivial.amount else None
    power_w = power * row.gpus if power else None
    energy_j = time_s * power_w if time_s and power_w else None
    return Prediction(time_s=time_s, energy_j=energy_j, power_w=power_w, sm_clock_mhz=clock)


def trivial_work(configuration: Mapping[str, Any]) -> Trivial:
    """Work of a row of any suite."""
    op = str(configuration.get("op") or "")
    if op in ("block", "train_step", "train_iter"):
        return Trivial(transformer_flops(configuration), GEMM_FLOPS_PER_S, GEMM_POWER_W)
    if op == "decode":
        return Trivial(decoding_bytes(configuration), COPY_BANDWIDTH_BYTES_PER_S)
    work = operator_of(configuration)
    if work.is_sequence and all(isinstance(operator, Streaming) for operator in work.operators):
        return Trivial(float(configuration.get("bytes") or 0.0), COPY_BANDWIDTH_BYTES_PER_S)
    if not work.is_single:
        return Trivial(0.0)
    operator = work.operators[0]
    if isinstance(operator, Gemm):
        rate = GEMM_FLOPS_PER_S * DTYPE_RATE.get(operator.dtype, 1.0)
        return Trivial(operator.flops, rate, GEMM_POWER_W)
    if isinstance(operator, Attention):
        return Trivial(operator.flops)
    if isinstance(operator, Streaming):
        return Trivial((operator.bytes_read + operator.bytes_written) * work.counts[0], COPY_BANDWIDTH_BYTES_PER_S)
    return Trivial(bus_bytes(operator) if isinstance(operator, Collective) else 0.0)


def bus_bytes(operator: Collective) -> float:
    """Bytes over each GPU's link: ``2(n−1)/n`` of an all-reduce's buffer, ``(n−1)/n`` of a gather or scatter."""
    n = operator.gpus
    share = {"all_reduce": 2 * (n - 1) / n, "send_recv": 1.0, "broadcast": 1.0}.get(operator.kind, (n - 1) / n)
    return operator.bytes * share


def decoding_bytes(configuration: Mapping[str, Any]) -> float:
    """Weights of a model in two bytes, and its live sequences' keys and values, which a step of decoding reads [B]."""
    model = load_model(str(configuration.get("catalogue")))
    seen = float(configuration.get("live") or 0) * float(configuration.get("context") or 0)
    return 2.0 * model.parameters + 4.0 * seen * model.layers * model.kv_heads * model.head_dim


def transformer_flops(configuration: Mapping[str, Any]) -> float:
    """Matrix products and causal attention of a block or a training iteration on one GPU [FLOP].

    Samples of a loss on pairs are two sequences, which a reference model that is not precomputed reads once more, as a
    teacher does. KTO reads each sequence and another one by both models; GRPO's are scored by those that are said.
    """
    get = configuration.get
    hidden, heads = float(get("hidden") or 0), float(get("heads") or 1)
    kv_heads, ffn = float(get("kv_heads") or heads), float(get("ffn") or 4 * hidden)
    sequence = float(get("S") or get("seq") or 0)
    samples = float(get("B") or get("micro_batch") or 1) * float(get("microbatches") or 1)
    objective = get("objective")
    tokens = samples * sequence * (2 if objective in PAIRED else 1)
    if get("experts"):  # a token meets so many
        ffn = float(get("experts_per_token") or 0) * float(get("expert_ffn") or 0)
    matrices = hidden * (2 * hidden + 2 * hidden * kv_heads / heads) + hidden * ffn * (
        3 if get("gated_mlp", True) else 2
    )
    layer = 2 * tokens * matrices + 2 * tokens * sequence * hidden
    if get("op") == "block":
        passes = 1 if get("direction") == "fwd" else 3
        return passes * layer / float(get("tp") or 1)
    head = 2 * tokens * hidden * (1.0 if objective == "reward" else float(get("vocab") or 0))
    compared = 1 if get("reference") in ("copy", "adapters-off") else 0
    compared = 1 + 2 * compared if objective == "kto" else compared + bool(get("old_log_probabilities"))
    taught = 2 * tokens * load_model(str(get("teacher"))).parameters if get("teacher") else 0
    passes = compared + (4 if get("recompute") == "full" else 3)
    shared = float(get("tp") or 1) * float(get("pp") or 1) * float(get("cp") or 1)
    return (taught + passes * layer * float(get("layers") or 0) + (3 + compared) * head) / shared
