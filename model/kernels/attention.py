"""Fused attention: blocks of queries against blocks of keys, spread over the SMs.

A (batch, head, query block) needs ``j + 1`` key blocks when causal, all of them otherwise. The SMs take query blocks in
turn, so the kernel ends when the last long one does (in a window of W keys none needs more than ``⌈(W - 1)/128⌉ + 1``).
Documents that are kept apart have blocks of their own, :mod:`joulecast.model.kernels.documents`; what kernels take more
of both is in :mod:`joulecast.model.kernels.positions`:

    cycles = c · (blocks / SMs + a · longest + o · query_blocks / SMs) + c0,      c = 2·flop(block) / (R·η)

``a`` is the share of the longest query block that the other SMs cannot fill, ``o`` the prologue and epilogue of a query
block in units of one key block. Of no more query blocks than SMs the longest one alone takes as long as all: the
bracket is then ``longest + o``, and never less; FlashAttention-2 forward has a form of its own,
:mod:`joulecast.model.kernels.few_heads`.

Of cuDNN's forward ``a`` and ``o`` are the diagonal's alone: its blocks of queries begin while others end, and without a
causal mask all are alike, so that they come in whole rounds.

Backward are several kernels, one after the other: the row products of O and dO, the main one, the rounding of dQ's
fp32 sums, and where heads share keys the sums of their dK and dV. All but the main one wait for memory, whose time
therefore adds to that of the cycles.

In the main one, blocks go over keys, head after head, the longest first. A head of as many blocks as there are SMs then
leaves no tail: those that end early take up the next head's in turn. Blocks placed one by one on the SM that is free
first leave 0.6 of a longest block up to a third of the SMs' number, and the less the more blocks a head has.

Deterministic backwards of FlashAttention's package launch ``n = ⌈SMs / heads⌉`` thread blocks for a head, each of which
takes every n-th block of keys and sums the queries' gradients in a buffer of its own (``run_flash_bwd_seqk_parallel``
in ``csrc/flash_attn/src/flash_bwd_launch_template.h``). A thread block fills an SM's shared memory, so that they run
in ``⌈n · heads / SMs⌉`` rounds: in two where there is one more than there are SMs. Their zeroed buffers and the sum of
these are not counted. Of the code; no such kernel was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np

from joulecast.arrays import Array, Bool
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.attention_fp8 import fp8_attention
from joulecast.model.kernels.few_heads import ALONE, key_splits, longest_of_pairs
from joulecast.model.kernels.head_width import FLASH_KERNELS, next_flash, next_masked, next_power, next_wider, pace
from joulecast.model.kernels.operators import DTYPE_BYTES, products_width
from joulecast.model.kernels.positions import WINDOWS, looked_at

#: PyTorch's flex attention: a Triton kernel that goes by a list of squares, on one grid over the sequence.
FLEX = "flex"
#: PyTorch's kernels for values that no other kernel takes, fp32 among them (CUTLASS' ``fmha``, after xFormers).
EFFICIENT = "memory-efficient"
#: Rows of queries and of keys in one block.
BLOCK = 128.0
#: Cycles of an SM for a score, forward and backward, beside what the products and the softmax take. Kernels of an H200
#: (`validate/recorded/h200_sxm/train_modules.jsonl`): dropout with heads of 128, which heads of 64 (in mixed precision)
#: meet within 3 % [estimates, +-6 %].
#: A hyperbolic tangent was not measured: one more operation of the special-function units, which do 16 in a cycle, and
#: two products forward; its square and a product more backward [estimates, +-50 %].
#: ALiBi's distance, its conversion and the product with a head's slope are three more instructions on an SM's 128
#: lanes [estimate, +-100 %].
EACH_SCORE = {"dropout": (0.193, 0.119), "softcap": (0.08, 0.1), "alibi": (3 / 128, 3 / 128)}


@dataclass(frozen=True, slots=True)
class Kin:
    """The kernels whose parameters a backend has, and what its own take beside them; pairs are forward and backward.

    ``like`` is the backend that cards are asked about. ``pace`` is of products, ``begins`` the overhead of a block of
    queries over theirs [+-0.1], ``dearer`` the energy of an operation over theirs [+-0.03], ``each_score`` the cycles
    of an SM for what is done to a score; ``sums_itself``: the backward's main kernel sums gradients itself.
    """

    like: str
    pace: tuple[float, float] = (1.0, 1.0)
    begins: tuple[float, float] = (1.0, 1.0)
    dearer: tuple[float, float] = (1.0, 1.0)
    sums_itself: bool = False
    each_score: Mapping[str, tuple[float, float]] = field(default_factory=lambda: EACH_SCORE)


#: Kernels that no card was asked about. FlashAttention's first ones, and those in Triton that take a bias such as
#: ALiBi's, run at half the pace of FlashAttention-2 (Dao, arXiv 2307.08691). Its own package runs FlashAttention-2
#: faster on Hopper than PyTorch does, which is what was recorded: at 0.62 of cuDNN's pace, forward and backward, with
#: heads of 128 and 1,024 to 16,384 positions on H100 (Shah et al., arXiv 2407.08608, figures 5 and 6); PyTorch at 0.53.
#: Transformer Engine asks cuDNN for tensors with positions first, whose kernels are faster than those that PyTorch asks
#: for: traces of six iterations on an H200 beside their own products, 2,048 to 16,384 positions [estimate, +-0.04
#: forward, +-0.015 backward]. Flex attention's Triton kernels have FlashAttention-2's form: documents of 128, 512 and
#: 2,048 tokens on an H100 and an H200, and of mixed lengths on the H100, gave its constants here and below
#: (`validate/recorded/documents`) [+-0.03]; its backward derives what was done to a score: one model with heads of 256
#: on an H100 (`validate/recorded/h100_sxm/train_windows.jsonl`) [estimates, +-30 %].
RESEMBLES = {
    "flash-attention-1": Kin("flash-attention-2", (0.5, 0.5)),
    "flash-attn-2": Kin("flash-attention-2", (1.17, 1.23)),
    "te-cudnn": Kin("cudnn", (1.12, 1.035)),
    FLEX: Kin(
        "flash-attention-2",
        (1.22, 1.21),
        begins=(1.6, 1.13),
        dearer=(0.83, 0.85),
        sums_itself=True,
        each_score={**EACH_SCORE, "softcap": (0.62, 3.0)},
    ),
    EFFICIENT: Kin("flash-attention-2", (0.277, 0.247), begins=(0.0, 0.1), dearer=(5.4, 5.7), sums_itself=True),
}
#: Cycles of flex attention's kernels for each doubling of heads over 128, forward and backward, over those of the same
#: operations: heads of 256 in windows of 1,024 on an H100 and an H200 (`validate/recorded/windows`) [estimates, +-8 %].
WIDE_FLEX = (1.18, 2.3)
#: The same of PyTorch's memory-efficient ones with heads of up to 64, for each halving below 128: 1.2 and 1.05 times as
#: long again as FlashAttention-2's [estimates, +-5 %].
NARROW_EFFICIENT = (1.25, 1.0)
#: What heads of 65 to 127 take of the time of 128, whose kernels they run in: heads of 80 and 96 on one H200
#: (`validate/recorded/wide_values`) [+-0.01].
PADDED_EFFICIENT = 0.93
#: What they reach of fp32's rate on cards without TF32, beside what others reach of TF32's: half of it [estimate].
PLAIN_EFFICIENT = 5.0
#: A tensor that is added to every score, such as a mask (:func:`~joulecast.model.kernels.head_width.next_masked`); the
#: same in a graph of ``torch.compile``, which hands cuDNN its tensors in other layouts; and what each takes of the
#: first's time, forward and backward: kernels of two compiled iterations on an H200, heads of 64 and 96 [+-0.03].
MASK, GRAPH_MASK = "mask", "graph-mask"
MASKS: dict[str, tuple[float, float]] = {MASK: (1.0, 1.0), GRAPH_MASK: (1.03, 1.15)}
#: Cycles of cuDNN's kernels for keys of 192 and values of 128, forward and backward, beside those of heads of 128 for
#: the same operations: five shapes on one H100 (`validate/recorded/h100_sxm/heads.jsonl`) [+-0.02].
LATENT = (1.0, 1.14)
#: Shares of the memory's bandwidth that backward's smaller kernels reach: products of rows, and rounding and sums.
#: Kernels of six models' iterations on an H100, 50 to 200 MB each [+-0.03]. Five shapes on an H100 and an H200 at equal
#: clocks differ by what that says, 50 to 70 us of 0.9 to 1.6 ms (`validate/recorded/single_values`).
ROW_PRODUCTS, OTHERS = 0.43, 0.82
#: Exponent by which backward's cycles and memory's time, of kernels that follow one another, add.
ONE_AFTER_ANOTHER = 1.0
#: Blocks of a head over SMs from which on backward's tail begins to shrink; at 1 nothing is left [estimate, +-15 %].
FIRST_SHRINKING = 1.0 / 3.0


@dataclass(frozen=True)
class AttentionShapes:
    """Shapes of ``n`` attention kernels; every field has shape ``(n,)``.

    ``value_dim`` is the width of a value where it is not that of a key, else 0; ``head_dim`` is then their mean.
    """

    batch: Array
    heads: Array
    kv_heads: Array
    sequence: Array
    head_dim: Array
    causal: Array
    keys: Array
    window: Array
    value_dim: Array

    @property
    def windowed(self) -> Bool:
        """Whether a window hides keys that a causal mask shows."""
        return np.asarray((self.window > 0) & (self.window < self.keys))


@dataclass(frozen=True)
class DocumentBlocks:
    """Blocks of a head of the mean sequence, of kernels that keep documents apart; every field has shape ``(n,)``.

    ``queries``, ``squares``, ``longest`` and ``more`` as :class:`joulecast.model.kernels.documents.Blocks` has them, 0
    where a kernel knows of no documents.
    """

    queries: Array
    squares: Array
    longest: Array
    more: Array

    @property
    def known(self) -> Bool:
        """Whether a kernel knows of documents."""
        return np.asarray(self.queries > 0)


@dataclass(frozen=True)
class AttentionWork:
    """Work of ``n`` attention kernels; every field has shape ``(n,)``."""

    cycles: Array
    busy_share: Array
    executed_flops: Array
    hbm_bytes: Array
    memory_s: Array


@dataclass(frozen=True)
class _Load:
    """How ``n`` kernels load the SMs, in units of one key block; every field has shape ``(n,)``.

    Attributes
    ----------
    filled
        What each SM does of all query blocks, were they spread evenly.
    tail
        Key blocks of the longest query block, of which the SMs that end early leave a share.
    longest
        The longest query block with its prologue and epilogue: no kernel takes less.
    whole
        Whether a query block meets all of its keys on one SM.
    """

    filled: Array
    tail: Array
    longest: Array
    whole: Bool

    def where(self, chosen: Bool, other: _Load) -> _Load:
        """The chosen kernels of this load, the rest of the other."""
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(_Load))
        return _Load(*(np.where(chosen, mine, theirs) for mine, theirs in pairs))


def kin_of(backend: str) -> Kin:
    """The kernels whose parameters describe a backend's: its own where cards are asked about them."""
    return RESEMBLES.get(backend) or Kin(backend)


def products_rate(backend: str, dtype: str, gpu: GpuModel) -> float:
    """Operations of a type that attention's kernels go by [1/cycle]: of fp32 those in TF32, where there are such."""
    if backend != EFFICIENT or dtype != "fp32":
        return gpu.flops_per_cycle(dtype)
    if "tensor_flops_per_sm_per_cycle.tf32" in gpu.device:
        return gpu.flops_per_cycle("tf32")
    return PLAIN_EFFICIENT * gpu.flops_per_cycle("fp32")


def attention_work(
    shapes: AttentionShapes,
    backend: str,
    direction: str,
    dtype: str,
    gpu: GpuModel,
    each_score: str = "",
    deterministic: int = 0,
    documents: DocumentBlocks | None = None,
) -> AttentionWork:
    """Cycles and bytes of attention kernels of one backend and direction.

    Kernels in FP8 are those in bf16 at another pace, see :mod:`joulecast.model.kernels.attention_fp8`.

    Parameters
    ----------
    each_score
        What is done to every score beside the softmax: a name in :data:`EACH_SCORE` or :data:`MASKS`, or empty.
    deterministic
        How many deterministic backwards run side by side; 0: it is none.
    documents
        Blocks of documents that are kept apart; ``None`` where no kernel knows of any.
    gpu
        Reads ``kernel.attention.<backend>.<direction>.*``: ``eta`` (share of the dense rate at head dimension 128),
        ``narrow`` (factor on it at 64), ``wide`` (for each doubling over 128, by default 1), ``imbalance`` (a),
        ``block_overhead`` (o), ``fixed_cycles`` (c0). A backend in :data:`RESEMBLES` has those of the one that it is
        like, at the pace stated there or, where the GPU's description has one, at its own ``pace``.
    """
    kin, backward = kin_of(backend), direction == "backward"
    prefix = f"kernel.attention.{kin.like}.{direction}."
    fp8 = fp8_attention(gpu) if dtype == "fp8" else None
    if fp8 is not None and backward:
        skips = shapes.batch * shapes.heads <= fp8.most_heads
        shapes = replace(shapes, causal=np.where(skips, shapes.causal, 0.0))
    faster = 1.0 if fp8 is None else getattr(fp8, direction)
    rate = faster * products_rate(backend, "bf16" if fp8 is not None else dtype, gpu) / gpu.sm_count
    block_flops, block_cycles = _block(shapes, backend, direction, gpu, each_score, rate)
    heads = shapes.batch * shapes.heads
    per_head, blocks, keys, apart = _blocks_of_head(shapes, documents)
    alike = (shapes.causal == 0) & ~apart & ((kin.like, direction) == ("cudnn", "forward")) & (each_score not in MASKS)
    own = np.where(alike, 0.0, gpu[prefix + "block_overhead"])
    overhead = kin.begins[backward] * own
    looked, hidden = _looked(shapes, documents, blocks, per_head, backend, backward=backward)
    mean = heads * (blocks + looked + hidden + overhead * per_head) / gpu.sm_count
    load = _Load(mean, keys, keys + overhead, np.ones(mean.shape, dtype=np.bool_))
    if (kin.like, direction) == ("flash-attention-2", "forward"):
        load = load.where(apart, _few_heads(shapes, mean, overhead, gpu))
    tail = gpu[prefix + "imbalance"] * np.minimum(load.tail, load.filled)
    if backward:
        left = ((1.0 - keys / gpu.sm_count) / (1.0 - FIRST_SHRINKING)).clip(0.0, 1.0)
        tail = tail * np.where(shapes.causal > 0, left, 1.0)
    each_has_an_sm = (heads * per_head <= gpu.sm_count) & load.whole
    passes = np.where(each_has_an_sm, load.longest, np.maximum(load.filled + tail, load.longest))
    passes = np.where(alike, np.ceil(heads * per_head / gpu.sm_count) * keys, passes)
    if deterministic and backward:
        passes = _in_rounds(shapes, mean, gpu.sm_count, paired=deterministic > 1)
    cycles = block_cycles * passes + gpu[prefix + "fixed_cycles"]
    executed = block_flops * heads * (blocks + hidden + own * per_head)
    size = DTYPE_BYTES[dtype]
    hbm_bytes = _hbm_bytes(shapes, direction, size, max(size, 2.0))
    waited = _full_speed_bytes(shapes, max(size, 2.0), sums=not kin.sums_itself) if backward else hbm_bytes
    memory_s = waited / gpu.device["memory_bandwidth_bytes_per_s"]
    return AttentionWork(cycles, mean / passes, executed, hbm_bytes, memory_s)


def _block(
    shapes: AttentionShapes, backend: str, direction: str, gpu: GpuModel, each_score: str, rate: float
) -> tuple[Array, Array]:
    """Operations of a block of queries and keys, and cycles of an SM for it; both of shape ``(n,)``.

    ``rate``: operations of an SM in a cycle.
    """
    kin, backward = kin_of(backend), direction == "backward"
    by_backend = gpu.get(f"kernel.attention.{backend}.{direction}.pace", kin.pace[backward])
    prefix = f"kernel.attention.{kin.like}.{direction}."
    flops = 2.0 * BLOCK * BLOCK * products_width(shapes.head_dim, shapes.value_dim, backward=backward)
    slower: Array | float = 1.0
    if kin.like == "cudnn":
        wider = next_wider(shapes.head_dim, prefix, gpu, backward=backward)
        padded = np.where(shapes.value_dim > 0, 1.0, wider)
        if each_score in MASKS:
            slower = MASKS[each_score][backward] * next_masked(shapes.head_dim, prefix, gpu, backward=backward) / padded
        else:
            slower = np.where(shapes.value_dim > 0, LATENT[backward], 1.0)
        flops = flops * padded
    elif backend in FLASH_KERNELS:
        flops = flops * next_flash(shapes.head_dim, prefix, gpu, backward=backward)
    elif backend == FLEX:
        flops = flops * next_power(shapes.head_dim, prefix, gpu)
    dim = shapes.head_dim
    if backend == EFFICIENT:
        dim, slower = _efficient(dim, backward=backward)
    products = flops * slower / (rate * by_backend * pace(dim, prefix, gpu))
    if backend == FLEX:
        products = products * WIDE_FLEX[backward] ** np.log2(shapes.head_dim / 128.0).clip(0.0)
    if each_score in kin.each_score:
        products = products + kin.each_score[each_score][backward] * BLOCK * BLOCK
    return flops, products


def _efficient(head_dim: Array, *, backward: bool) -> tuple[Array, Array]:
    """Heads whose pace memory-efficient kernels have, and cycles over those that it gives; both of shape ``(n,)``."""
    padded = (head_dim > 64) & (head_dim < 128)
    narrow = NARROW_EFFICIENT[backward] ** np.log2(128.0 / head_dim).clip(0.0)
    slower = np.where(padded, PADDED_EFFICIENT * 128.0 / head_dim, narrow)
    return np.where(padded, 128.0, head_dim), slower


def _in_rounds(shapes: AttentionShapes, mean: Array, sms: float, *, paired: bool) -> Array:
    """Units of an SM until deterministic backwards end, shape ``(n,)``.

    Of a pair the one with more keys has its rounds; the other, of the sequence's first positions, fills what is free.
    """
    heads = shapes.batch * shapes.heads
    strides = np.ceil(sms / heads)
    each = mean * sms / (heads * strides)
    longest = each + shapes.causal * np.ceil(shapes.sequence / BLOCK) * (strides - 1.0) / (2.0 * strides)
    rounds = np.ceil(heads * strides / sms)
    alone = (rounds - 1.0) * each + longest
    if not paired:
        return np.asarray(alone)
    first = mean * shapes.sequence / (2.0 * shapes.keys - shapes.sequence)
    return np.asarray(np.where(shapes.keys > shapes.sequence, np.maximum(alone - first, mean), mean))


def _looked(
    shapes: AttentionShapes,
    documents: DocumentBlocks | None,
    blocks: Array,
    per_head: Array,
    backend: str,
    *,
    backward: bool,
) -> tuple[Array, Array]:
    """Squares' worth that a head costs more in a window or in documents: time alone, and computed; shapes ``(n,)``."""
    nothing = np.zeros(blocks.shape)
    apart, more = (nothing > 0, nothing) if documents is None else (documents.known, documents.more)
    kernels = looking(backend)
    return looked_at(blocks, per_head, shapes.windowed, apart, more, shapes.head_dim, kernels, backward=backward)


def looking(backend: str) -> str:
    """Whose windows and documents a backend's are: a name in :mod:`joulecast.model.kernels.positions`, or its own."""
    return backend if backend in WINDOWS else kin_of(backend).like


def _blocks_of_head(shapes: AttentionShapes, documents: DocumentBlocks | None) -> tuple[Array, Array, Array, Bool]:
    """Blocks of queries of a head, its squares, those of its longest block of queries, and whether keys may be split.

    They may not be in a window, nor where documents are apart. All have shape ``(n,)``.
    """
    per_head, keys = np.ceil(shapes.sequence / BLOCK), np.ceil(shapes.keys / BLOCK)
    blocks = per_head * np.where(shapes.causal > 0, keys - (per_head - 1.0) / 2.0, keys)
    apart = shapes.windowed
    if apart.any():
        seen = np.minimum(np.ceil((shapes.window - 1.0) / BLOCK) + 1.0, keys)
        short = (seen - (keys - per_head) - 1.0).clip(0.0)  # blocks of queries before which there are fewer keys
        blocks = np.where(apart, per_head * seen - short * (short + 1.0) / 2.0, blocks)
        keys = np.where(apart, seen, keys)
    if documents is not None:
        known = documents.known
        per_head = np.where(known, documents.queries, per_head)
        blocks = np.where(known, documents.squares, blocks)
        keys, apart = np.where(known, documents.longest, keys), apart | known
    return per_head, blocks, keys, apart


def _hbm_bytes(shapes: AttentionShapes, direction: str, size: float, results: float) -> Array:
    """Bytes to and from memory, shape ``(n,)``, of values of ``size`` bytes and results of ``results`` bytes."""
    queried = shapes.batch * shapes.sequence * shapes.head_dim * shapes.heads
    read = shapes.batch * shapes.keys * shapes.head_dim * shapes.kv_heads
    if direction == "forward":
        return np.asarray((results + size) * queried + size * 2.0 * read)
    # Q, O, dO, dQ; K, V, dK, dV; fp32 accumulator of dQ written, added to and converted
    return np.asarray((results + 3.0 * size) * queried + 2.0 * (results + size) * read + 12.0 * queried)


def _full_speed_bytes(shapes: AttentionShapes, size: float, *, sums: bool) -> Array:
    """Bytes that the memory would move at its peak while backward's smaller kernels run, shape ``(n,)``.

    O and dO, of ``size`` bytes a value, are read for their product; dQ is read in fp32 and rounded; dK and dV of every
    head are read and summed where heads share keys. Without ``sums`` the main kernel does the latter two itself.
    """
    width = np.where(shapes.value_dim > 0, shapes.value_dim, shapes.head_dim)
    tokens = shapes.batch * shapes.heads * shapes.sequence
    shared = np.where(shapes.kv_heads < shapes.heads, 1.0 + shapes.kv_heads / shapes.heads, 0.0)
    keys = shapes.batch * shapes.heads * shapes.keys * shapes.head_dim
    rounded = 6.0 * tokens * shapes.head_dim + 4.0 * shared * keys
    return np.asarray(2.0 * size * tokens * width / ROW_PRODUCTS + sums * rounded / OTHERS)


def _few_heads(shapes: AttentionShapes, mean: Array, overhead: Array, gpu: GpuModel) -> _Load:
    """Load of FlashAttention-2's forward kernel, which splits keys where there are few heads."""
    heads, per_head, keys = shapes.batch * shapes.heads, np.ceil(shapes.sequence / BLOCK), np.ceil(shapes.keys / BLOCK)
    splits = key_splits(heads, shapes.sequence, shapes.keys, shapes.head_dim, gpu.sm_count)
    whole = splits == 1
    part = np.ceil(keys / splits)
    pairs = longest_of_pairs(heads, per_head, keys, shapes.causal, overhead, gpu.sm_count)
    longest = np.maximum((part + overhead) / ALONE, np.where(whole, pairs, 0.0))
    filled = mean / np.where(whole, 1.0, ALONE)  # two blocks of 64 queries do what one of 128 does
    return _Load(filled, part, longest, whole)
