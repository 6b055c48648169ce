"""Operators to arrays: order, families, speed and what is refused."""

from dataclasses import fields, replace

import numpy as np
import pytest

from joulecast.calibrate.fit.relower import Relowering
from joulecast.errors import InputError
from joulecast.model.cluster.fabric import Fabric
from joulecast.model.kernels import lowering
from joulecast.model.kernels.costs import Costs, concatenate
from joulecast.model.kernels.families import FAMILIES, families_of, spread_of_families
from joulecast.model.kernels.gemm import gemm_work
from joulecast.model.kernels.lowering import Lowering, lower
from joulecast.model.kernels.operators import Attention, Collective, Gemm, Streaming, Tile
from joulecast.model.kernels.remembered import Recorder, with_values

MIXED = (
    Gemm(4096, 4096, 4096),
    Streaming("copy", 1e9, 1e9),
    Attention(1, 32, 8, 4096, 128, direction="backward"),
    Gemm(64, 4096, 4096),
    Collective("all_reduce", 1e8, 4),
    Streaming("rmsnorm", 1e9, 1e9),
    Gemm(4096, 4096, 4096, data="zeros"),
    Streaming("copy", 1e6, 1e6),
    Collective("all_gather", 1e8, 4),
    Gemm(4096, 4096, 4096, tile=Tile(128, 128, 64)),
)


def same(left: Costs, right: Costs) -> bool:
    return all(np.array_equal(getattr(left, f.name), getattr(right, f.name)) for f in fields(Costs))


def test_order_is_kept(h200):
    together = lower(MIXED, h200)
    assert len(together) == len(MIXED)
    assert same(together, concatenate([lower([operator], h200) for operator in MIXED]))
    assert same(together.take([3, 1]), lower([MIXED[3], MIXED[1]], h200))


def test_a_thousand_operators_in_one_call(h200, calls_of):
    """A thousand operators of a training step's kinds: a few calls each, which take 5 ms on a quiet machine."""
    kinds = [
        lambda i: Gemm(1024 + 64 * i, 4096, 4096),
        lambda i: Gemm(4096, 1024 + 64 * i, 4096, layout="nt"),
        lambda i: Attention(1, 32, 8, 1024 + 128 * (i % 50), 128),
        lambda i: Streaming("copy", 1e6 * (i + 1), 1e6),
        lambda i: Streaming("rmsnorm", 1e6 * (i + 1), 1e6),
        lambda i: Collective("all_reduce", 1e6 * (i + 1), 4),
    ]
    operators = [kinds[i % len(kinds)](i // len(kinds)) for i in range(1000)]
    assert len(lower(operators, h200)) == 1000
    assert calls_of(lambda: lower(operators, h200)) < 20 * 1000


def test_families(h200):
    names = [FAMILIES[i] for i in lower(MIXED, h200).family]
    assert names == [
        "gemm",
        "streaming",
        "attention_backward",
        "gemm_small",
        "collective_all_reduce",
        "streaming_reduction",
        "gemm_values",
        "streaming_l2",
        "collective",
        "tile_gemm",
    ]
    assert families_of([], h200.device).shape == (0,)


def test_what_is_small_or_far_is_told_by_the_whole(h200):
    """A product in parts that begin in each other's tails, and a collective whose fabric is one node."""
    part = Gemm(512, 1024, 4096)
    near = Collective("all_gather", 1e8, 4, fabric=Fabric())
    found = families_of([part, replace(part, parts=4), near, replace(near, fabric=Fabric(domains=2))], h200.device)
    assert [FAMILIES[i] for i in found] == ["gemm_small", "gemm", "collective", "network"]


def test_a_family_without_figures_takes_those_of_its_kind():
    known = {"gemm": {"time": 0.02, "energy": 0.03}, "gemm_small": {"time": 0.1, "energy": 0.2}}
    spread = dict(zip(FAMILIES, spread_of_families(known, "energy", 0.15), strict=True))
    assert (spread["gemm"], spread["gemm_small"], spread["gemm_values"], spread["streaming"]) == (0.03, 0.2, 0.03, 0.15)


@pytest.mark.parametrize(
    ("operator", "named"),
    [
        (Streaming("swirl", 1.0, 1.0), "swirl"),
        (Gemm(64, 64, 64, dtype="int4"), "int4"),
        (Attention(1, 1, 1, 128, 128, backend="flash-attention-9"), "flash-attention-9"),
        (Collective("gossip", 1.0, 2), "gossip"),
        (Gemm(64, 64, 64, data="noise"), "noise"),
    ],
)
def test_what_the_description_does_not_know_is_named(h200, operator, named):
    with pytest.raises(InputError, match=named):
        lower([operator], h200)


def test_nothing_gives_empty_columns(h200):
    assert len(lower([], h200)) == 0


def test_lowering_again_equals_lowering_anew(h200):
    """The fits' shortcut redoes what changed, and only that."""
    again = Relowering(MIXED)
    for values in (
        {},
        {"kernel.gemm.eta": 0.8},
        {"power.hbm_base_pj_per_byte": 1.0},
        {"power.tensor_pj_per_flop.bf16": 0.7, "power.attention_overhead_share": 0.2},
        {"kernel.gemm.reread_share": 3.0},
        {},
        {"kernel.l2.capacity_share": 0.5},
        {"kernel.streaming.copy.fixed_s": 1e-3, "kernel.gemm.eta": 0.7},
        {"kernel.gemm.eta": 0.8},
    ):
        gpu = h200.with_values(values)
        assert same(again(gpu), lower(MIXED, gpu)), values


def test_what_is_grouped_once_is_lowered_with_any_values(h200):
    grouped = Lowering(MIXED, h200.device)
    for values in ({}, {"kernel.gemm.eta": 0.8, "kernel.time_factor": 1.1}, {"power.hbm_base_pj_per_byte": 1.0}):
        gpu = h200.with_values(values)
        assert same(grouped(gpu), lower(MIXED, gpu)), values


def test_work_is_not_found_again_while_only_its_energy_moves(h200, monkeypatch):
    counted = []
    monkeypatch.setattr(lowering, "gemm_work", lambda *args, **more: counted.append(1) or gemm_work(*args, **more))
    again = Relowering([Gemm(m=4096, n=4096, k=4096)])
    for energy in (0.5, 0.6, 0.7):
        again(h200.with_values({"power.tensor_pj_per_flop.bf16": energy}))
    assert len(counted) == 1
    again(h200.with_values({"kernel.gemm.eta": 0.5}))
    assert len(counted) == 2


def test_values_of_a_recorder_tell_what_a_lowering_reads(h200):
    """Also where it has been done before with other values, or is kept from then."""
    again = Relowering([Gemm(m=4096, n=4096, k=4096)])
    values = {"kernel.gemm.eta": 0.5, "kernel.streaming.copy.fixed_s": 1e-3}
    for _ in range(2):
        recorder = Recorder(values)
        gpu = with_values(h200, recorder)
        assert same(again(gpu), lower([Gemm(m=4096, n=4096, k=4096)], h200.with_values(values)))
        assert "kernel.gemm.eta" in recorder.read
        assert "kernel.streaming.copy.fixed_s" not in recorder.read
    assert h200.with_values(values).parameters == dict(with_values(h200, Recorder(values)).parameters)


def test_lowering_again_after_a_refusal(h200):
    """What was redone before the refusal is not taken for what the next values give."""
    again = Relowering(MIXED)
    again(h200)
    known = {name: value for name, value in h200.parameters.items() if name != "kernel.attention.fixed_s"}
    with pytest.raises(InputError, match="fixed_s"):
        again(replace(h200, parameters=known | {"kernel.gemm.eta": 0.5, "power.hbm_base_pj_per_byte": 1.0}))
    assert same(again(h200), lower(MIXED, h200))


def test_a_result_outlives_the_next_lowering(h200):
    again = Relowering(MIXED)
    first = again(h200)
    kept = first.core_cycles.copy()
    again(h200.with_values({"kernel.gemm.eta": 0.5}))
    assert np.array_equal(first.core_cycles, kept)


#: Parameters that a description may leave out, what stands in for each, and a kernel that shows it.
LEFT_OUT = (
    ("kernel.time_factor", 1.0, Streaming("copy", 1e9, 1e9)),
    ("kernel.gemm.fallback_slowdown", 7.0, Gemm(4095, 4096, 4095)),
    ("kernel.gemm.efficiency.bf16", 1.0, Gemm(4096, 4096, 4096)),
    ("kernel.gemm.efficiency.blocked", 0.83, Gemm(4096, 4096, 4096, "fp8", block_scaled=True)),
    ("kernel.gemm.layout.nt", 1.0, Gemm(4096, 4096, 4096, layout="nt")),
    (
        "kernel.attention.flash-attention-2.forward.wide",
        1.0,
        Attention(1, 32, 8, 4096, 256, backend="flash-attention-2"),
    ),
    ("power.attention_narrow_extra", 0.0, Attention(1, 32, 8, 4096, 64)),
    ("collective.transfer_link_share", "collective.link_share", Collective("send_recv", 1e9, 2)),
    ("collective.transfer_latency_s", "collective.latency_s", Collective("send_recv", 1e3, 2)),
    ("collective.exchange_link_share", "collective.link_share", Collective("all_to_all", 1e9, 8)),
)


@pytest.mark.parametrize(("name", "default", "kernel"), LEFT_OUT, ids=lambda value: str(value)[:40])
def test_what_a_description_leaves_out_has_a_default_that_acts(h200, name, default, kernel):
    value = h200[default] if isinstance(default, str) else default
    bare = replace(h200, parameters={key: v for key, v in h200.parameters.items() if key != name})
    assert same(lower([kernel], bare), lower([kernel], h200.with_values({name: value})))
    assert not same(lower([kernel], bare), lower([kernel], h200.with_values({name: 0.9 * value + 0.01})))
