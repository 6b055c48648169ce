"""A state-space mixer of a sequence that is split over context-parallel ranks, as Megatron-Core exchanges it.

In front of the convolution heads are exchanged for positions, one all-to-all for each of gate, scanned values, B, C and
steps, and behind the scan positions for heads. A rank then scans the whole sequence with a share of its heads; of fewer
groups than ranks each is repeated. Chunks, which attention has in another order, are put in order before the scan and
back behind it. The norm behind the scan is over the rank's own positions again.

    forward    ⟨repeat B, C⟩, five times (cat, all-to-all), cat, order; scan; order, all-to-all, cat; norm
    backward   the same the other way round

Counted from code; nothing of it was measured. Source: ``MambaContextParallel`` in
``megatron/core/ssm/mamba_context_parallel.py`` of Megatron-Core 0.13 to 0.16.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.framework.launches import Launch, collective, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.transformer.state_space import mixer_of


def scanned(s: Shard) -> Shard:
    """What a rank scans: all positions of its share of the heads."""
    ranks = s.implementation.context_parallel
    if ranks == 1 or s.state_space is None:
        return s
    m = s.state_space
    share = replace(m, heads=m.heads // ranks, groups=max(1, m.groups // ranks))
    return replace(s, sequence=ranks * s.sequence, tokens=ranks * s.tokens, state_space=share)


def to_heads(s: Shard, suffix: str = "") -> tuple[Launch, ...]:
    """Positions of all ranks for a share of the heads, in front of the convolution; ``.grad``: the gradient of that."""
    if s.implementation.context_parallel == 1:
        return ()
    m, run = mixer_of(s), s.implementation
    groups = max(m.groups, run.context_parallel)
    repeated: tuple[Launch, ...] = ()
    if groups > m.groups:
        values, read = 2.0 * s.tokens * groups * m.state, m.groups / groups
        name, dtype = f"scan.groups.repeat{suffix}", run.dtype
        grown = streaming("copy", name, values, reads=read, dtype=dtype)
        repeated = (streaming("reduce", name, values, writes=read, dtype=dtype) if suffix else grown,)
    widths = {"gate": m.inner, "values": m.inner, "b": groups * m.state, "c": groups * m.state, "steps": m.heads}
    moved = [launch for name, width in widths.items() for launch in _exchanged(f"{name}.heads{suffix}", s, width)]
    joined = [_copied(f"{name}{suffix}", s, sum(widths.values())) for name in ("join", "order")]
    return (*joined, *moved, *repeated) if suffix else (*repeated, *moved, *joined)


def to_positions(s: Shard, suffix: str = "") -> tuple[Launch, ...]:
    """The rank's own positions for all heads, behind the scan; ``.grad``: the gradient of that."""
    if s.implementation.context_parallel == 1:
        return ()
    width = mixer_of(s).inner
    return _copied(f"result.order{suffix}", s, width), *_exchanged(f"result.positions{suffix}", s, width)


def _exchanged(name: str, s: Shard, width: int) -> tuple[Launch, ...]:
    run = s.implementation
    size = float(s.tokens * width * DTYPE_BYTES[run.dtype])
    moved = collective(
        "all_to_all", f"scan.{name}.all_to_all", size, run, ranks=run.context_parallel, fabric=run.context_fabric
    )
    return _copied(name, s, width), moved


def _copied(name: str, s: Shard, width: int) -> Launch:
    return streaming("cat", f"scan.{name}", float(s.tokens * width), dtype=s.dtype)
