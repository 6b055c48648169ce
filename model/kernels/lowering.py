"""From operators to their work on one GPU, all kernels of a family in one call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.errors import InputError
from joulecast.model.cluster.collectives import CollectiveShapes, collective_work, copy_share
from joulecast.model.cluster.fabric import Fabric
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.arrays import PICO, Columns, Kernels, column, footprints, hbm_energy_j
from joulecast.model.kernels.attention import (
    BLOCK,
    EFFICIENT,
    FLEX,
    MASKS,
    NARROW_EFFICIENT,
    ONE_AFTER_ANOTHER,
    AttentionShapes,
    AttentionWork,
    DocumentBlocks,
    attention_work,
    kin_of,
    products_rate,
)
from joulecast.model.kernels.attention_fp8 import FP8_SAVES
from joulecast.model.kernels.costs import Costs, zeros
from joulecast.model.kernels.families import families_of
from joulecast.model.kernels.gemm import UNEVEN, GemmShapes, GemmWork, gemm_work, turned_energy
from joulecast.model.kernels.head_width import MASKED_ENERGY, REFERENCE, WIDE_ENERGY
from joulecast.model.kernels.multi_tensor import FITTED_BYTES as MULTI_TENSOR
from joulecast.model.kernels.multi_tensor import lower_steps
from joulecast.model.kernels.operators import DTYPE_BYTES, Attention, Collective, Gemm, Operator, Scan, Streaming
from joulecast.model.kernels.own_kernels import TIMES, own_kinds, scale_own
from joulecast.model.kernels.remembered import part
from joulecast.model.kernels.row_blocks import THREADS as ROW_BLOCKS
from joulecast.model.kernels.row_blocks import lower_row_blocks
from joulecast.model.kernels.row_softmax import FITTED_BYTES, softmax_cycles
from joulecast.model.kernels.row_softmax import PATTERN as ROW_SOFTMAX
from joulecast.model.kernels.streaming import (
    StreamingWork,
    extra_read_passes,
    issued_cycles,
    left_over_factor,
    reread_share,
    row_waits_s,
    streaming_work,
)
from joulecast.model.kernels.toggling import toggle_factor
from joulecast.model.kernels.unaligned import unaligned_costs

#: Share of the memory's bandwidth at which results of products are read and written that these are added to, how
#: sharply the longer of both decides, and of how many rows at most: 12 of 64 to 512 rows on an H200, in bf16 and fp32,
#: are met within 12 %, two of 1,024 without it within 10 (`validate/recorded/liger`) [estimates, +-0.04, 3.7 to 8].
ADDED_SHARE, ADDED_OVERLAP, FEW_ADDED_ROWS = 0.54, 5.0, 512
#: Start of a copy to another GPU by a copy engine, and the event that tells its end [s; estimate, +-50 %].
COPY_ENGINE_LATENCY_S = 4e-6
#: Energy of an operation in FP8 that is summed in the matrix units alone, over one that is not: three pairs of products
#: on an H200 (`validate/recorded/h200_sxm/fp8_kernels.jsonl`) [estimate, +-0.05].
FAST_ACCUMULATION = 0.84
#: Energy of an operation in FP4 over one in FP8: half the operands' bits, the sums as wide [estimate, +-0.15; no
#: published figure].
FP4_ENERGY = 0.5
#: Patterns that write one value everywhere: the memory's wires hardly flip.
CONSTANT_WRITES = ("fill", "zero_grad")


@dataclass(frozen=True, eq=False)
class OperatorGroup:
    """Kernels that are lowered in one call: they share every parameter's name.

    Attributes
    ----------
    key
        What they have in common.
    operators, index
        The kernels and their places.
    """

    key: tuple[Hashable, ...]
    operators: list[Operator]
    index: Int


def lower(operators: Sequence[Operator], gpu: GpuModel) -> Costs:
    """Work of kernels on a GPU, in the order given.

    Raises
    ------
    InputError
        An operator whose data type, backend or access pattern the GPU's description does not know.
    """
    return _lowered(group_operators(operators), families_of(operators, gpu.device), gpu)


class Lowering:
    """:func:`lower` of the same kernels with several values of the parameters of one device.

    Parameters
    ----------
    operators
        The kernels.
    device
        Facts of the GPU.
    """

    def __init__(self, operators: Sequence[Operator], device: Mapping[str, float]) -> None:
        groups = group_operators(operators)
        self._groups = [replace(group, operators=Kernels(group.operators)) for group in groups]
        self._family = families_of(operators, device)

    def __call__(self, gpu: GpuModel) -> Costs:
        """Work of the kernels on ``gpu``."""
        return _lowered(self._groups, self._family, gpu)


def _lowered(groups: Sequence[OperatorGroup], family: Int, gpu: GpuModel) -> Costs:
    columns, own = zeros(len(family)), own_kinds(gpu)
    for group in groups:
        for name, values in lower_group(group, gpu).items():
            columns[name][group.index] = values
        if own:
            scale_own(columns, group.operators, group.index, own, gpu)
    slower = gpu.get("kernel.time_factor", 1.0)
    for name in TIMES:
        columns[name] = columns[name] * slower
    return Costs(**columns, family=family)


def group_operators(operators: Sequence[Operator]) -> list[OperatorGroup]:
    """Kernels by what is lowered together."""
    members: dict[tuple[Hashable, ...], list[int]] = defaultdict(list)
    for index, operator in enumerate(operators):
        members[_group(operator)].append(index)
    return [OperatorGroup(k, [operators[i] for i in index], np.array(index)) for k, index in members.items()]


def lower_group(group: OperatorGroup, gpu: GpuModel) -> Columns:
    """Columns of :class:`~joulecast.model.kernels.costs.Costs` of one group; those left out are zero."""
    try:
        return _LOWERINGS[str(group.key[0])](group.operators, gpu)
    except KeyError as missing:
        raise InputError(f"{gpu.name} has no parameter {missing.args[0]!r} for {group.key}") from missing


def _group(operator: Operator) -> tuple[Hashable, ...]:
    if isinstance(operator, Gemm):
        kind = "gemm" if operator.tile is None else "tile_gemm"
        kinds = (operator.dtype, operator.data, operator.layout, operator.out_dtype)
        ways = (operator.accumulate, operator.separate, operator.grouped, operator.bias)
        return (kind, *kinds, *ways, operator.block_scaled, operator.row_scaled, operator.fast_accumulation)
    if isinstance(operator, Attention):
        kind, backend = ("attention", operator.backend) if operator.tile is None else ("tile_attention", "")
        return (kind, backend, operator.direction, operator.dtype, operator.each_score, operator.deterministic)
    if isinstance(operator, Streaming):
        if operator.warps:
            return ("tile_rows", operator.pattern.removeprefix("tile_"))
        if operator.pattern in ROW_BLOCKS:
            return ("row_blocks", operator.pattern)
        return ("streaming", operator.pattern, operator.dtype, operator.data)
    if isinstance(operator, Scan):
        return ("scan", operator.kernel, operator.dtype)
    return ("collective", operator.kind, operator.algorithm)


def library_products(operators: Sequence[Gemm], gpu: GpuModel) -> tuple[GemmShapes, GemmWork]:
    """Shapes of products that are lowered together, and their work with the tiles that the vendor's library picks."""
    first = operators[0]
    footprint = np.array([np.nan if o.footprint_bytes is None else o.footprint_bytes for o in operators])
    m, n, k, batch, parts, uneven = (column(operators, name) for name in ("m", "n", "k", "batch", "parts", "uneven"))
    shapes = GemmShapes(m * parts, n, k, batch, footprint, UNEVEN * uneven)
    output_bytes = first.output_bytes_per_element
    scaled = "row_blocks" if first.row_scaled else "blocked" if first.block_scaled else ""
    ways = {"separate": first.separate, "grouped": first.grouped, "bias": first.bias}
    return shapes, gemm_work(shapes, first.dtype, first.layout, gpu, output_bytes, scaled=scaled, **ways)


def _unaligned(operators: Sequence[Gemm], gpu: GpuModel) -> tuple[Array, Array]:
    """Factors on cycles and energy of products that are lowered together."""
    first, (m, n, k) = operators[0], (column(operators, name) for name in ("m", "n", "k"))
    fallback = gpu.get("kernel.gemm.fallback_slowdown", 7.0)
    parts = column(operators, "parts")
    return unaligned_costs(m * parts, n, k, first.dtype, first.layout, first.out_dtype, fallback)


def _gemm(operators: Sequence[Gemm], gpu: GpuModel) -> Columns:
    first, parts = operators[0], column(operators, "parts")
    shapes, work = part(library_products, operators, gpu)
    slower, dearer = part(_unaligned, operators, gpu)
    toggle = toggle_factor(first.data, gpu)
    peak = gpu.device["memory_bandwidth_bytes_per_s"]
    flops = 2.0 * shapes.m * shapes.n * shapes.k * shapes.batch
    summing = FAST_ACCUMULATION if first.fast_accumulation else 1.0
    per_flop = _tensor_pj_per_flop(first.dtype, gpu) * turned_energy(first.dtype, first.layout, gpu)
    use = flops / (gpu.flops_per_cycle(first.dtype) * work.cycles)
    results = work.output_bytes / ADDED_SHARE
    dominate = results / peak > work.cycles / (gpu.max_clock_mhz * 1e6)
    added = dominate & (shapes.k <= FEW_ADDED_ROWS) & (first.accumulate and not first.grouped)
    whole = {
        "core_cycles": work.cycles * slower,
        "memory_s": np.where(added, results, work.hbm_bytes / gpu["kernel.gemm.bandwidth_share"]) / peak,
        "tensor_j": flops * per_flop * dearer * summing * PICO * toggle,
        "onchip_j": (work.l2_bytes * gpu["power.gemm_pj_per_l2_byte"] + work.output_bytes * gpu["power.l2_pj_per_byte"])
        * (PICO * toggle),
        "hbm_j": hbm_energy_j(work.hbm_bytes, gpu, first.data),
    }
    return {
        "fixed_s": work.fixed_s,
        "overlap": np.where(added, ADDED_OVERLAP, 0.0),
        "activity": use,  # an SM is as busy with unaligned rows, its matrix units are not
        "tensor_use": use / slower * (first.dtype != "fp32"),
        "tiles": work.tiles,
        **{column: values / parts for column, values in whole.items()},
    }


def _tensor_pj_per_flop(dtype: str, gpu: GpuModel) -> float:
    key = f"power.tensor_pj_per_flop.{dtype}"
    if dtype == "fp4" and key not in gpu.parameters:
        return FP4_ENERGY * gpu["power.tensor_pj_per_flop.fp8"]
    return gpu[key]


def _attention_work(operators: Sequence[Attention], gpu: GpuModel) -> tuple[AttentionShapes, AttentionWork]:
    first = operators[0]
    names = ("batch", "heads", "kv_heads", "sequence", "head_dim", "causal", "keys", "window", "value_dim")
    shapes = AttentionShapes(*(column(operators, name) for name in names))
    documents = _document_blocks(operators)
    return shapes, attention_work(
        shapes, first.backend, first.direction, first.dtype, gpu, first.each_score, first.deterministic, documents
    )


def _document_blocks(operators: Sequence[Attention]) -> DocumentBlocks | None:
    """Blocks of kernels that keep documents apart: flex attention's lie on a grid over the sequence."""
    if all(o.documents is None for o in operators):
        return None
    grid = operators[0].backend == FLEX
    known = [o.documents and (o.documents.grid if grid else o.documents.blocks)(BLOCK, o.window) for o in operators]
    columns = (
        np.array([getattr(blocks, field) if blocks else 0.0 for blocks in known])
        for field in ("queries", "squares", "longest", "more")
    )
    return DocumentBlocks(*columns)


def _attention(operators: Sequence[Attention], gpu: GpuModel) -> Columns:
    first = operators[0]
    shapes, work = part(_attention_work, operators, gpu)
    kin, backward = kin_of(first.backend), first.direction == "backward"
    per_flop = gpu[f"power.attention_pj_per_flop.{kin.like}.{first.direction}"] * kin.dearer[backward]
    if first.dtype == "fp8":
        units = gpu["power.tensor_pj_per_flop.bf16"] - gpu["power.tensor_pj_per_flop.fp8"]
        per_flop -= FP8_SAVES[backward] * units
    narrow = np.log2(128.0 / shapes.head_dim).clip(0.0)
    flops = column(operators, "flops")
    switched = flops + gpu["power.attention_overhead_share"] * (work.executed_flops - flops)
    widen = 1.0 + narrow * gpu.get("power.attention_narrow_extra", 0.0)
    if first.backend == EFFICIENT:
        widen = widen * NARROW_EFFICIENT[backward] ** narrow
    if kin.like == "cudnn" and first.each_score in MASKS:
        widen = widen * MASKED_ENERGY[backward]
    elif kin.like == "cudnn" and backward:
        widen = np.where((shapes.head_dim > REFERENCE) & (shapes.value_dim == 0), WIDE_ENERGY, widen)
    return {
        "fixed_s": np.full(len(operators), gpu["kernel.attention.fixed_s"]),
        "core_cycles": work.cycles,
        "memory_s": work.memory_s,
        "overlap": np.full(len(operators), ONE_AFTER_ANOTHER if backward else 0.0),
        "activity": work.busy_share,
        "tensor_use": column(operators, "flops") / (products_rate(first.backend, first.dtype, gpu) * work.cycles),
        "tensor_j": switched * per_flop * PICO * widen,
        "hbm_j": hbm_energy_j(work.hbm_bytes, gpu),
    }


def _streamed(operators: Sequence[Streaming], gpu: GpuModel) -> tuple[str, Array, StreamingWork]:
    """The access pattern that the description has, the bytes by which it gives a kernel's energy, and its work."""
    first = operators[0]
    bytes_ = column(operators, "bytes_read") + column(operators, "bytes_written")
    footprint = footprints(operators, bytes_)
    pattern = f"{first.pattern}_{first.dtype}"
    if f"kernel.streaming.{pattern}.fixed_s" not in gpu.parameters:
        pattern = first.pattern
    columns, read = column(operators, "columns"), column(operators, "bytes_read")
    row_bytes = columns * DTYPE_BYTES[first.dtype]
    from_memory, from_l2 = extra_read_passes(first.pattern, columns, row_bytes, gpu)
    bytes_ = bytes_ + from_memory * read
    near = (reread_share(first.pattern, row_bytes, gpu) + from_l2) * read
    loaded = (bytes_ + near) * left_over_factor(first.pattern, columns, row_bytes)
    far, issued = column(operators, "far_bytes"), issued_cycles(pattern, loaded, column(operators, "rows"), gpu)
    first_bytes: Array | float = 0.0
    worked = bytes_
    if first.pattern == ROW_SOFTMAX:
        size = DTYPE_BYTES[first.dtype]
        own, begun = softmax_cycles(read / size, columns, size, gpu)
        issued, first_bytes = np.where(columns > 0.0, own, issued), np.where(columns > 0.0, begun * read, 0.0)
        worked = read * (FITTED_BYTES / size)  # a value takes the same instructions in every type
    return pattern, worked, streaming_work(pattern, bytes_, footprint, gpu, far, near, issued, first_bytes)


def _streaming(operators: Sequence[Streaming], gpu: GpuModel) -> Columns:
    first = operators[0]
    pattern, worked, work = part(_streamed, operators, gpu)
    data = "zeros" if first.pattern in CONSTANT_WRITES else first.data
    vector = gpu[f"power.streaming_pj_per_byte.{pattern}"]
    issued = np.maximum(column(operators, "sm_cycles") / gpu.sm_count, column(operators, "chain_cycles"))
    late, cycles, overlap = column(operators, "late_s"), np.maximum(work.cycles, issued), column(operators, "overlap")
    times = {
        "fixed_s": work.fixed_s + late,
        "wait_s": row_waits_s(first.pattern, column(operators, "rows"), gpu),
        "core_cycles": cycles,
        "memory_s": work.memory_s,
        "overlap": overlap,
    }
    if pattern in MULTI_TENSOR:
        times = lower_steps(operators, pattern, work, gpu)
    return {
        **times,
        "activity": column(operators, "activity"),
        "vector_j": worked * vector * PICO,
        "onchip_j": work.l2_bytes * gpu["power.l2_pj_per_byte"] * PICO,
        "hbm_j": hbm_energy_j(work.hbm_bytes, gpu, data),
    }


def _collective(operators: Sequence[Collective], gpu: GpuModel) -> Columns:
    work = collective_work(_collective_shapes(operators), operators[0].kind, gpu, operators[0].algorithm)
    by_sm = np.array([not o.copy_engine for o in operators])
    return {
        "fixed_s": np.where(by_sm, work.fixed_s, COPY_ENGINE_LATENCY_S),
        "core_cycles": by_sm * work.cycles / np.array([copy_share(o.threads) for o in operators]),
        "link_s": work.link_s,
        "memory_s": work.memory_bytes / gpu.device["memory_bandwidth_bytes_per_s"],
        "activity": by_sm * gpu["power.collective_w"] / gpu["power.sm_w"],
        "link_j": work.link_bytes * gpu["power.link_pj_per_byte"] * PICO,
    }


#: What joins the GPUs of a collective without a fabric of its own.
_OWN_LINKS = Fabric()


def _collective_shapes(operators: Sequence[Collective]) -> CollectiveShapes:
    fabrics = [_OWN_LINKS if o.fabric is None else o.fabric for o in operators]
    names = ("domains", "exit_bytes_per_s", "efficiency", "step_latency_s", "delay", "nvls", "sharp")
    return CollectiveShapes(
        bytes=column(operators, "bytes"),
        gpus=column(operators, "gpus"),
        rows=column(operators, "rows"),
        ctas=np.array([np.nan if o.ctas is None else o.ctas for o in operators]),
        link_bytes_per_s=np.array([np.nan if f.link_bytes_per_s is None else f.link_bytes_per_s for f in fabrics]),
        **{name: column(fabrics, name) for name in names},
    )


# Few forecasts have scans or explicit tiles: the others start without their modules.
def _scans(operators: Sequence[Scan], gpu: GpuModel) -> Columns:
    from joulecast.model.kernels.scan import lower_scans

    return lower_scans(operators, gpu)


def _tiled_attention(operators: Sequence[Attention], gpu: GpuModel) -> Columns:
    from joulecast.model.kernels.attention_tiles import lower_tiled_attention

    return lower_tiled_attention(operators, gpu)


def _tiled_gemms(operators: Sequence[Gemm], gpu: GpuModel) -> Columns:
    from joulecast.model.kernels.tiles import lower_tiled_gemms

    return lower_tiled_gemms(operators, gpu)


def _tiled_rows(operators: Sequence[Streaming], gpu: GpuModel) -> Columns:
    from joulecast.model.kernels.row_tiles import lower_tiled_rows

    return lower_tiled_rows(operators, gpu)


_LOWERINGS: dict[str, Callable[..., Columns]] = {
    "gemm": _gemm,
    "attention": _attention,
    "streaming": _streaming,
    "collective": _collective,
    "scan": _scans,
    "tile_attention": _tiled_attention,
    "tile_gemm": _tiled_gemms,
    "tile_rows": _tiled_rows,
    "row_blocks": lower_row_blocks,
}
