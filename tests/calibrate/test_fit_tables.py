"""Which clock a fit takes a row's times and powers for."""

from __future__ import annotations

import pytest
from paths import ROOT

from joulecast.calibrate.fit.tables import at_board_clocks, board_clock_mhz, collect, reports_slowed
from joulecast.calibrate.rows.measured import Measured, Row, read_rows
from joulecast.model.power.governor import TENSOR_CLOCK_SHARE

CARDS = {
    "h100": ROOT / "validate/recorded/h100_sxm/card-2/recording.jsonl",
    "h200": ROOT / "validate/recorded/h200_sxm/card-13/recording.jsonl",
}


def row(op="gemm", dtype="bf16", reported=1350.0, counted=1346.0):
    configuration = {"op": op, "dtype": dtype, "M": 4096, "N": 4096, "K": 4096}
    return Row("one", op, configuration, Measured(sm_clock_mhz=reported, counted_clock_mhz=counted))


@pytest.mark.parametrize(
    ("changes", "clock_mhz"),
    [
        ({}, 1346.0 / TENSOR_CLOCK_SHARE),  # the driver shows the slowed clock
        ({"reported": 1485.0}, 1485.0),  # it shows the one that is set
        ({"counted": None}, 1350.0),
        ({"dtype": "fp32"}, 1350.0),  # not on the tensor cores
        ({"op": "flash_attn"}, 1350.0),
    ],
)
def test_a_slowed_clock_is_not_taken_for_the_boards(changes, clock_mhz):
    assert board_clock_mhz(row(**changes)) == pytest.approx(clock_mhz)


def test_large_products_of_two_kinds_of_cards_run_at_one_clock():
    """An H100's driver reports 7 % less than an H200's for the same product at the limit."""

    def of(card):
        (found,) = (r for r in read_rows([CARDS[card]]) if r.name == "gemm_bf16_22016x4096x8192_nt")
        return found.measured.sm_clock_mhz, collect(at_board_clocks([found])).clock_mhz[0]

    (reported, clock), (others, other) = of("h100"), of("h200")
    assert reported / others == pytest.approx(0.92, abs=0.01)
    assert clock / other == pytest.approx(1.0, abs=0.015)


def test_products_that_nobody_counted_are_read_as_those_of_their_kind_that_were():
    slowed, honest, uncounted = row(), row(reported=1485.0), row(counted=None)
    assert reports_slowed([slowed, slowed, honest, uncounted])
    assert not reports_slowed([slowed, honest, honest, uncounted])
    assert not reports_slowed([uncounted, row(dtype="fp32")])
    assert board_clock_mhz(uncounted, slowed=True) == pytest.approx(1350.0 / TENSOR_CLOCK_SHARE)
    assert board_clock_mhz(row(dtype="fp32", counted=None), slowed=True) == 1350.0
    assert reports_slowed(read_rows([CARDS["h100"]]))
    assert not reports_slowed(read_rows([CARDS["h200"]]))


def test_clocks_are_those_of_the_board_in_every_part_of_a_fits_rows():
    """A part without a counted product keeps what all rows told; bursts between pauses are left as reported."""
    pulse = row(op="pulse", reported=1950.0, counted=None)
    rows = at_board_clocks([row(), row(counted=None), pulse])
    assert [r.measured.sm_clock_mhz for r in at_board_clocks(rows)] == [r.measured.sm_clock_mhz for r in rows]
    assert at_board_clocks(rows[1:]) == rows[1:]
    assert rows[1].measured.sm_clock_mhz == pytest.approx(1350.0 / TENSOR_CLOCK_SHARE)
    assert rows[2].measured.sm_clock_mhz == 1950.0
