"""The work of single GPU kernels, free of any GPU: what is computed and which bytes are touched."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from joulecast.arrays import Array
from joulecast.errors import InputError
from joulecast.model.cluster.fabric import Fabric
from joulecast.model.hashing import HashedOnce, hashed_once
from joulecast.model.kernels.documents import Documents

#: One number, or an array of them.
Number = TypeVar("Number", int, float, Array)
#: Bytes of one element by data type.
DTYPE_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "fp4": 0.5}


@dataclass(frozen=True, slots=True)
class Tile:
    """Tile of a matrix product or of fused attention with explicit tiling (for instance a Triton kernel).

    Parameters
    ----------
    m, n, k
        Outputs ``m × n`` of a thread block, and the step along the inner dimension. Of attention ``m`` queries and
        ``n`` keys; ``k`` is the head's and not read.
    warps, stages
        Warps of a thread block, and steps whose operands are on the way at a time.
    split_k
        Parts into which the inner dimension is cut; their sums pass through memory.
    staged
        Whether operands pass through shared memory; otherwise every warp loads its own.
    """

    m: int
    n: int
    k: int = 64
    warps: int = 8
    stages: int = 3
    split_k: int = 1
    staged: bool = True


@dataclass(frozen=True, slots=True)
class RowTile:
    """Schedule of a row-wise or element-wise kernel: each thread block works on ``rows × columns`` values at a time.

    Parameters
    ----------
    rows, columns
        Values of a block; 0 columns are whole rows.
    warps
        Of a thread block.
    staged
        Whether the values are put into shared memory instead of registers.
    """

    rows: int = 1
    columns: int = 0
    warps: int = 4
    staged: bool = False


@hashed_once
@dataclass(frozen=True, slots=True)
class Gemm(HashedOnce):
    """Matrix product C[m, n] = A[m, k] · B[n, k]ᵀ.

    Parameters
    ----------
    m, n, k
        Sizes; ``batch`` independent products.
    dtype
        Input type: of ``bf16 fp16 tf32 fp32 fp64 fp8 fp4`` those that the GPU's description has.
    data
        Input values, which set the toggling: ``randn`` (default), ``zeros``, ``ones``, ``pow2`` (±1) or ``sparseX``
        (fraction X zeroed).
    layout
        ``tn`` forward (activations × weightᵀ), ``nn`` input gradient, ``nt`` weight gradient.
    tile
        Explicit tiling; ``None`` takes what the vendor's library picks.
    footprint_bytes
        Data touched between two uses of the same operands, as in :class:`Streaming`.
    out_dtype
        Type of the result, empty for the inputs'.
    accumulate
        Whether the result is added to what stands there.
    fast_accumulation
        Whether FP8 is summed in the matrix units alone, not added up in fp32 registers after every 128 values.
    block_scaled
        Whether blocks of operands have scales of their own, which the matrix units read as they go; in FP4 they always
        have.
    row_scaled
        Whether these are blocks of 128 values of a row of both operands, as a gradient of weights has them.
    separate
        Whether the products of a batch are launched one by one on several streams, as Megatron does those of experts.
    grouped
        Whether one kernel takes them all as a list of products (CUTLASS' grouped kernels), not as one batched product.
    uneven
        Whether these have different numbers of rows, ``m`` in the mean, so that each leaves a part of its last tile.
    bias
        Whether a number of each column is added to the result before it leaves.
    parts
        The product is one of as many equal ones along ``m`` that follow each other on several streams, so that each
        begins in the tail of the one before.
    """

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    data: str = "randn"
    layout: str = "tn"
    batch: int = 1
    tile: Tile | None = None
    footprint_bytes: float | None = None
    name: str = "gemm"
    out_dtype: str = ""
    accumulate: bool = False
    block_scaled: bool = False
    parts: int = 1
    separate: bool = False
    grouped: bool = False
    fast_accumulation: bool = False
    row_scaled: bool = False
    uneven: bool = False
    bias: bool = False

    @property
    def flops(self) -> float:
        """Floating-point operations, 2·m·n·k·batch."""
        return 2.0 * self.m * self.n * self.k * self.batch

    @property
    def output_bytes_per_element(self) -> float:
        """Bytes written, and when accumulating read, for each value of the result."""
        return DTYPE_BYTES[self.out_dtype or self.dtype] * (2 if self.accumulate else 1)


def products_width(mean: Number, values: Number, *, backward: bool) -> Number:
    """Multiplications of all of attention's products for a pair of query and key, a number or an array ``(n,)``.

    Forward one product is as wide as keys, D_k, and one as values, D_v; backward three are as keys and two as values:
    ``3·D_k + 2·D_v = 5·D + (D - D_v)`` with their mean D.

    Parameters
    ----------
    mean, values
        D, and D_v where it is not that of keys (latent attention), else 0.
    """
    return 5 * mean + (values > 0) * (mean - values) if backward else 2 * mean


@hashed_once
@dataclass(frozen=True, slots=True)
class Attention(HashedOnce):
    """Fused softmax(Q·Kᵀ)·V or its gradient.

    Parameters
    ----------
    batch, heads, kv_heads, sequence, head_dim
        Sequences, heads of queries and of keys, queries of a sequence, values of a head.
    causal
        Whether a query sees only keys up to its own position.
    backend
        ``flash-attention-1``, ``-2``, ``-3``, ``flash-attn-2``, ``cudnn``, ``flex`` or ``memory-efficient``.
    direction
        ``forward`` or ``backward``, which includes the backend's small helper kernels (dot of dO and O, conversion of
        dQ, reduction over groups).
    dtype
        Type of queries, keys and values.
    kv_sequence
        Keys, where they are not as many as the queries (0): they end where the queries end, and a causal mask hides
        only those behind each query.
    tile
        Tiling of a kernel that is then of no backend.
    each_score
        What happens to every score beside the softmax: ``dropout``, ``softcap``, a hyperbolic tangent, or ``mask``, the
        addition of a mask that is read from memory (``graph-mask`` in a compiled graph).
    window
        Keys that a query sees, the one at its own position the last of them; 0 for all.
    deterministic
        How many deterministic backwards of FlashAttention's package run side by side, which do not add in the order of
        their blocks' ends; 0: it is none.
    value_dim
        Width of a value where it is not that of a key (latent attention); ``head_dim`` is then their mean.
    documents
        Of these each position sees those before it in its own; ``None``: a sequence is one.
    """

    batch: int
    heads: int
    kv_heads: int
    sequence: int
    head_dim: int
    causal: bool = True
    backend: str = "cudnn"
    direction: str = "forward"
    dtype: str = "bf16"
    name: str = "attention"
    kv_sequence: int = 0
    tile: Tile | None = None
    each_score: str = ""
    window: int = 0
    deterministic: int = 0
    value_dim: int = 0
    documents: Documents | None = None

    @property
    def keys(self) -> int:
        """Key positions."""
        return self.kv_sequence or self.sequence

    @property
    def flops(self) -> float:
        """4·B·H·D for each pair of positions forward, S² of them, half of it masked when causal; ×2.5 backward.

        Of W keys a query sees S·W - (W - E)²/2 pairs are left where E < W keys lie before the first query, of documents
        of l tokens Σ l²/2. Of keys wider than values see :func:`products_width`.
        """
        pairs = self.sequence * (self.keys - (0.5 * self.sequence if self.causal else 0.0))
        if self.documents is not None:
            pairs = self.documents.pairs(self.window)
        elif 0 < self.window < self.keys:
            hidden = max(self.window - (self.keys - self.sequence), 0)
            pairs = self.window * self.sequence - 0.5 * hidden * hidden
        width = products_width(self.head_dim, self.value_dim, backward=self.direction != "forward")
        return 2.0 * self.batch * self.heads * width * pairs


@hashed_once
@dataclass(frozen=True, slots=True)
class Streaming(HashedOnce):
    """A kernel bound by moving data: copies, element-wise operators, norms, reductions, optimizer.

    Parameters
    ----------
    pattern
        Access pattern, a name under ``streaming`` in the GPU's ``[kernel]`` table (``copy``, ``add``, ``rmsnorm``, …).
    bytes_read, bytes_written
        Bytes that reach beyond the SM, each input and output once.
    elements
        Elements processed (vector work).
    dtype, data
        Type of the elements, and their values as :class:`Gemm` has them.
    footprint_bytes
        Data touched between two uses of the same bytes: below the L2 size they stay in L2. ``None`` takes the kernel's
        own bytes, as when one kernel is run back to back; use ``inf`` inside a long sequence of other kernels.
    tile_rows, tile_columns, warps, staged
        Explicit schedule as :class:`RowTile` has it; ``warps`` = 0 is the library's own.
    far_bytes
        Bytes that come from memory even where the others stay in L2: of what the kernel before did not touch.
    sm_cycles
        Cycles of single SMs that its instructions take at least, all together, whatever they move.
    chain_cycles
        Cycles that one SM takes at least for what can only be done one after the other, however many SMs there are.
    late_s
        How long the GPU waits for the host before the kernel begins, or is nearly empty as its launches end.
    overlap
        Exponent of the smooth maximum of its cycles' and its memory's time, 0 where it is the GPU's.
    activity
        Power of its SMs over that of SMs that move data and wait.
    rows, columns
        Shape of row-wise kernels (norms, softmax, reductions), 0 where it does not matter.
    """

    pattern: str
    bytes_read: float
    bytes_written: float
    elements: float = 0.0
    dtype: str = "bf16"
    data: str = "randn"
    footprint_bytes: float | None = None
    far_bytes: float = 0.0
    rows: int = 0
    columns: int = 0
    tile_rows: int = 0
    tile_columns: int = 0
    warps: int = 0
    name: str = "streaming"
    staged: bool = False
    sm_cycles: float = 0.0
    activity: float = 1.0
    chain_cycles: float = 0.0
    late_s: float = 0.0
    overlap: float = 0.0

    def with_tile(self, tile: RowTile) -> Streaming:
        """The same kernel with an explicit schedule.

        Raises
        ------
        InputError
            No warps: without any the kernel would be the library's.
        """
        if not tile.warps:
            raise InputError("warps = 0 must be at least 1", key="warps", remedy="The nearest is 1.")
        return replace(self, tile_rows=tile.rows, tile_columns=tile.columns, warps=tile.warps, staged=tile.staged)

    def part(self, share: float) -> Streaming:
        """A ``share`` of the kernel's work: of its rows, elements, bytes and cycles [1]."""
        return replace(
            self,
            bytes_read=share * self.bytes_read,
            bytes_written=share * self.bytes_written,
            elements=share * self.elements,
            rows=int(share * self.rows),
            sm_cycles=share * self.sm_cycles,
            chain_cycles=share * self.chain_cycles,
        )


@hashed_once
@dataclass(frozen=True, slots=True)
class Collective(HashedOnce):
    """A communication among GPUs.

    Parameters
    ----------
    kind
        ``all_reduce all_gather reduce_scatter all_to_all broadcast send_recv``, or ``ring_step``: every rank sends to
        the next and receives from the one before; ``rings_step``: in as many rings as a domain has members.
    bytes
        The full buffer: for all-gather the gathered one, for reduce-scatter the input, for all-to-all what one GPU has.
    gpus, dtype
        GPUs that take part, and the type of what they send.
    ctas, threads
        Thread blocks that the kernel is held to, and their size; ``None`` is the library's own choice.
    fabric
        What joins the GPUs, from :func:`joulecast.model.cluster.fabric.fabric_of`; ``None`` is the GPU's own links.
    algorithm
        ``ring``, or for an all-reduce ``tree``, ``nvls`` or ``sharp`` (reduction in the switches), or ``auto``, the
        fastest of those that the fabric has.
    copy_engine
        Whether the GPU's copy engines move the data instead of its SMs.
    rows
        Rows that blocks of the kernel fetch one by one and sum, each of which takes a time whatever its width; 0: none.
    """

    kind: str
    bytes: float
    gpus: int
    ctas: int | None = None
    fabric: Fabric | None = None
    algorithm: str = "ring"
    dtype: str = "bf16"
    name: str = "collective"
    threads: int | None = None
    copy_engine: bool = False
    rows: float = 0.0


@hashed_once
@dataclass(frozen=True, slots=True)
class Scan(HashedOnce):
    """One kernel of a state-space mixer (Mamba-2), or of linear attention (Gated DeltaNet).

    Parameters
    ----------
    kernel
        Which: a name of :data:`joulecast.model.kernels.scan.KERNELS`.
    batch, sequence, dtype
        Sequences, tokens of each, and the type of its values.
    heads, head_dim, groups, state, chunk
        Of the mixer, as :class:`joulecast.model.architecture.state_space.StateSpace` has them; of linear attention
        heads of values and the width of each, heads of queries and keys, the width of each, and 64.
    gated
        Whether this kernel multiplies by the gate, of those that may: the scan and the norm behind it.
    """

    kernel: str
    batch: int
    sequence: int
    heads: int
    head_dim: int
    groups: int
    state: int
    chunk: int
    gated: bool = False
    dtype: str = "bf16"
    name: str = "scan"


Operator: TypeAlias = Gemm | Attention | Streaming | Collective | Scan
