"""Kernels of state-space mixers: what they multiply and move, worked out, and their times against recorded ones."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from paths import ROOT
from row_files import csv_rows

import joulecast as jc
from joulecast.errors import InputError
from joulecast.model.architecture.hf import load_model
from joulecast.model.architecture.state_space import StateSpace
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.layer_shard import shard
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels import scan
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Scan
from joulecast.model.kernels.scan_work import WORK, sizes_of
from joulecast.model.power.kernel_power import at_clock, idle_power_w
from joulecast.model.transformer import state_space

RECORDED = ROOT / "validate" / "recorded" / "scans"
#: Part of a kernel's recorded name, and ours.
NAMES = {
    "causal_conv1d_channellast_fwd": "conv",
    "_chunk_cumsum_fwd": "cumsum",
    "_chunk_state_fwd": "state",
    "_state_passing_fwd": "pass",
    "_bmm_chunk_fwd": "bmm",
    "_chunk_scan_fwd": "scan",
    "_layer_norm_fwd": "norm",
    "_layer_norm_bwd": "norm_backward",
    "_chunk_scan_bwd_dstates": "dstates",
    "_state_passing_bwd": "pass_backward",
    "state_bwd_dx": "dx",
    "bwd_db": "db",
    "bwd_dc_": "dc",
    "bwd_dcb": "dcb",
    "_bmm_chunk_bwd": "bmm_backward",
    "ddAcs": "decays",
    "_chunk_cumsum_bwd": "cumsum_backward",
    "channellast_bwd": "conv_backward",
}
ALONE = {
    "chunk_state": "state", "state_passing": "pass", "bmm_chunk": "bmm", "chunk_scan": "scan", "bwd_dx": "dx",
    "bwd_db": "db", "bwd_dC": "dc", "bwd_dcb": "dcb", "ddAcs": "decays", "dstates": "dstates", "conv": "conv",
}  # fmt: skip
#: Shapes to which the paces were fitted.
FITTED = (
    "1x8192x128x64x8x128x128", "1x4096x32x64x1x256x128", "4x2048x80x64x1x128x256", "1x8192x16x64x1x128x128",
)  # fmt: skip
#: Kernels that are shorter are told by their start and end [s].
LEAST_S = 15e-6


def rows(file):
    return [row for row in csv_rows(RECORDED / f"{file}.csv") if row["kind"] != "gdn"]


CARDS = ("h200-sxm", "h100-sxm")


@cache
def card(name):
    return gpu_model(load_gpu(name))


def sizes(shape):
    return tuple(int(size) for size in shape.split("x"))


def alone(operator, clock_mhz, gpu="h200-sxm"):
    return at_clock(lower([operator], card(gpu)), np.array([clock_mhz]), card(gpu))


def clocks(gpu):
    whole = (row for row in rows("calls") if row["kind"] == "mamba2" and row["gpu"] == gpu)
    return {(row["shape"], row["direction"]): float(row["counted_clock_mhz"]) for row in whole}


def errors(gpu, *, fitted):
    """Relative errors of a card's kernels of shapes that were, or were not, fitted."""
    clock, found = clocks(gpu), {}
    for row in (row for row in rows("kernels") if row["gpu"] == gpu):
        name = next((ours for theirs, ours in NAMES.items() if theirs in row["kernel"]), None)
        measured = 1e-6 * float(row["median_us"])
        if name is None or (row["shape"] in FITTED) is not fitted or measured < LEAST_S:
            continue
        name = "pass_wide" if name == "pass" and row["direction"] == "backward" else name
        operator = Scan(name, *sizes(row["shape"]), gated=name in ("norm", "norm_backward"))
        forecast = alone(operator, clock[row["shape"], row["direction"]], gpu).time_s[0]
        found[row["shape"], row["direction"], name] = forecast / measured - 1.0
    return found


@pytest.mark.parametrize(
    ("gpu", "count", "mean", "most"), [("h200-sxm", 72, 0.043, 0.28), ("h100-sxm", 75, 0.052, 0.28)]
)
def test_kernels_of_shapes_that_were_not_fitted_are_met(gpu, count, mean, most) -> None:
    found = np.array(list(errors(gpu, fitted=False).values()))
    assert len(found) == count
    assert np.abs(found).mean() < mean and np.abs(found).max() < most


@pytest.mark.parametrize("gpu", CARDS)
def test_kernels_of_fitted_shapes_are_met(gpu) -> None:
    found = np.array(list(errors(gpu, fitted=True).values()))
    assert np.abs(found).mean() < 0.057 and np.abs(found).max() < 0.25


def without_projection(operator):
    """The same kernel as recorded, where no gradient of a second projection reads the norm's result again."""
    again = isinstance(operator, Scan) and operator.kernel == "norm_again"
    return replace(operator, kernel="norm_backward") if again else operator


@pytest.mark.parametrize(("gpu", "most"), [("h200-sxm", 0.05), ("h100-sxm", 0.07)])
def test_whole_scans_are_met(gpu, most) -> None:
    """Forwards and backwards with all that PyTorch runs beside Triton's kernels."""
    clock, layer = clocks(gpu), load_model("nemotron-h-8b").kinds[0]
    recorded = [row for row in rows("kernels") if row["gpu"] == gpu]
    for shape in {row["shape"] for row in recorded}:
        batch, sequence, heads, head_dim, groups, state, chunk = sizes(shape)
        mixer = StateSpace(heads, head_dim, state, groups, chunk=chunk)
        s = shard(replace(layer, state_space=mixer), Implementation(modules="transformers"), batch, sequence)
        for direction, launches in (
            ("forward", state_space.forward(s)),
            ("backward", state_space.backward(s)),
        ):
            kernels = [(one.repeat, without_projection(one.operator)) for one in launches]
            forecast = sum(count * alone(one, clock[shape, direction], gpu).time_s[0] for count, one in kernels)
            told = [row for row in recorded if (row["shape"], row["direction"]) == (shape, direction)]
            measured = 1e-6 * sum(float(row["total_us"]) for row in told)
            assert forecast == pytest.approx(measured, rel=most), (shape, direction)


@pytest.mark.parametrize("gpu", CARDS)
def test_power_of_single_kernels_is_met(gpu) -> None:
    """Of kernels over and over; short ones wait for the host."""
    found = {}
    for row in (row for row in rows("calls") if row["direction"] == "single" and row["gpu"] == gpu):
        clock = float(row["counted_clock_mhz"])
        kernel = alone(Scan(ALONE[row["kind"]], *sizes(row["shape"])), clock, gpu)
        busy, taken = kernel.time_s[0], max(kernel.time_s[0], 1e-6 * float(row["time_us"]))
        idle = float(np.ravel(idle_power_w(np.array([clock]), card(gpu)))[0])
        power = (kernel.energy_j[0] + (taken - busy) * idle) / taken
        found.setdefault(row["shape"] in FITTED, []).append(np.log(power / float(row["power_w"])))
    assert {known: len(some) for known, some in found.items()} == {True: 11, False: 11}
    assert np.sqrt(np.mean(np.square(found[False]))) < 0.12 and np.sqrt(np.mean(np.square(found[True]))) < 0.14


#: Sequences, positions, heads, values of a head, groups, states, chunk.
SMALL = (2, 512, 8, 64, 2, 16, 128)


def test_work_of_a_scan_worked_out() -> None:
    def work(kernel, **gated):
        return WORK[kernel](sizes_of([Scan(kernel, *SMALL, **gated)]))

    tokens, inner, shared, heads = 1024, 512, 32, 8
    states, pairs = 8 * 512 * 16, 8 * 128 * 128 * 2  # eight chunks
    assert work("state").states == 2 * tokens * 16 * inner
    assert work("state").bytes == 2 * tokens * (inner + shared) + 8 * tokens * heads + 4 * states
    assert work("pass").bytes == 6 * states and work("pass").steps == 4
    assert work("pass_wide").bytes == 8 * states and work("pass_backward").bytes == 12 * states
    assert work("bmm").states == 2 * 8 * 128 * 128 * 2 * 16
    assert work("bmm").bytes == 2 * tokens * 2 * shared + 4 * pairs
    assert (work("scan").states, work("scan").pairs) == (2 * tokens * 16 * inner, 8 * 128 * 128 * inner)
    read = 2 * tokens * (2 * inner + shared) + 8 * tokens * heads + 4 * pairs + 2 * states
    assert work("scan").bytes == read
    assert work("scan", gated=True).bytes == read + 2 * tokens * 2 * inner
    assert (work("dx").states, work("dx").pairs) == (work("scan").states, work("scan").pairs)
    assert work("dcb").pairs == work("decays").pairs == work("scan").pairs
    assert work("conv").bytes == 2 * 2 * tokens * (inner + 2 * shared)
    assert work("norm").bytes == 2 * 2 * tokens * inner and work("norm", gated=True).bytes == 3 * 2 * tokens * inner


@pytest.mark.parametrize("kernel", scan.KERNELS)
def test_no_tensor_makes_a_kernel_move_less(kernel: str) -> None:
    """Each tensor that a kernel takes comes beside its others, and pairs of a chunk, in fp32, once."""
    sizes = sizes_of([Scan(kernel, *SMALL)])
    moved = scan.KERNELS[kernel](sizes).bytes
    for name in ("heads", "groups", "inner", "shared", "states", "pairs"):
        more = scan.KERNELS[kernel](replace(sizes, **{name: 2 * getattr(sizes, name)})).bytes
        assert more >= moved
    with_pairs = ("bmm", "scan", "dx", "dcb", "bmm_backward", "decays")
    assert more - moved == (4 * sizes.pairs if kernel in with_pairs else 0)


def test_a_chunk_is_no_longer_than_its_sequence() -> None:
    short, usual = (WORK["scan"](sizes_of([Scan("scan", 1, 64, 8, 64, 1, 16, chunk)])) for chunk in (256, 64))
    assert short.pairs == usual.pairs and short.bytes == usual.bytes


def test_few_heads_wait_for_chunk_after_chunk() -> None:
    """With few heads a longer sequence takes longer to hand its states on, though nothing else is full."""
    short, long = (alone(Scan("pass", 1, n, 2, 64, 1, 64, 128), 1900.0).time_s[0] for n in (4096, 16384))
    assert long > 3.0 * short


def test_a_slower_clock_slows_what_multiplies_and_not_what_moves() -> None:
    fast, slow = (alone(Scan("dx", 1, 8192, 128, 64, 8, 128, 128), clock).time_s[0] for clock in (1900.0, 950.0))
    assert 1.25 * fast < slow < 2.0 * fast
    fast, slow = (alone(Scan("pass", 16, 512, 128, 64, 8, 128, 128), clock).time_s[0] for clock in (1900.0, 950.0))
    assert slow == pytest.approx(fast, rel=0.01)


def test_every_kernel_has_a_pace() -> None:
    assert set(scan.PACES) == set(scan.KERNELS) > set(WORK)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kernel": "scans"}, "kernel of a state-space mixer"),
        ({"groups": 3}, "8 heads are not divisible by 3 groups"),
        ({"dtype": "fp8"}, "data type of a scan"),
        ({"state": 0}, "state = 0"),
    ],
)
def test_kernels_that_are_none_are_refused(changed, message) -> None:
    with pytest.raises(InputError, match=message):
        jc.gpu("h200-sxm").predict(replace(Scan("scan", *SMALL), **changed))
