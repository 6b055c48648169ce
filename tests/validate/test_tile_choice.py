"""Order and choice of tiles by forecast."""

import numpy as np
import pytest
from paths import ROOT

from joulecast.calibrate.rows.operators import operator_of
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.attention_tiles import attention_blocks
from joulecast.model.kernels.occupancy import spilled_registers
from joulecast.validate import run_suite
from joulecast.validate.choices.tile_choice import EQUAL, pairs_in_order, rank_correlation, tile_choices

CALIBRATE = ROOT / "calibrate" / "recorded" / "h200_sxm"
TILES = ROOT / "validate" / "recorded" / "h200_sxm" / "tiles.jsonl"
THIRD = TILES.with_name("tiles_third.jsonl")
#: Attention forward of another source than the others', of which one tile spills 70 words into its loop where theirs
#: spills 40 outside it; what a source spills is not forecast.
SPILLED = ("tile_attention_128_64_4_3",)


def test_ranks_share_ties_and_do_not_care_for_sizes():
    assert rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([1.0, 20.0, 300.0])) == pytest.approx(1.0)
    assert rank_correlation(np.array([3.0, 2.0, 1.0]), np.array([1.0, 20.0, 300.0])) == pytest.approx(-1.0)
    assert rank_correlation(np.array([1.0, 1.0, 1.0]), np.array([1.0, 2.0, 3.0])) == 0.0


def test_pairs_within_the_noise_do_not_count():
    right, pairs = pairs_in_order(np.array([1.0, 2.0, 3.0]), np.array([1.0, 0.99, 2.0]))
    assert (right, pairs) == (2, 2)


@pytest.fixture(scope="module")
def scored():
    files = ((CALIBRATE / "kernels.jsonl", "h200-sxm-rows"), (TILES, "h200-sxm"), (THIRD, "h200-sxm"))
    return {path.name: run_suite("kernels", path, gpu=gpu).rows for path, gpu in files}


@pytest.fixture(scope="module")
def choices(scored):
    gpu = load_gpu("h200-sxm")
    found = {}
    for name, rows in scored.items():
        for line in tile_choices(gpu, [r for r in rows if r.row.name not in SPILLED]):
            found[name, line["kernel"], line["quantity"], line["tiles"]] = line
    return found


def test_the_best_tile_of_every_recorded_kernel_is_nearly_found(choices):
    """Within 3 % of the best measured, in time and in energy."""
    recorded = {key: line for key, line in choices.items() if key[0] == "kernels.jsonl"}
    assert len(recorded) == 8
    for line in recorded.values():
        assert line["regret_percent"] <= 3.0, line


def test_the_best_tile_of_every_kernel_of_the_other_lists_is_nearly_found(choices):
    """In time and energy; the limit that holds other cards does not hold one, whose memory needs less energy."""
    others = [line for (name, _, _, _), line in choices.items() if name != "kernels.jsonl"]
    assert max(line["regret_percent"] for line in others if line["quantity"] == "time") < 1.9
    assert max(line["regret_percent"] for line in others if line["quantity"] == "energy") < 1.7


def test_forecasts_that_differ_by_less_than_they_scatter_are_equal():
    """Row minima of the fitted list that take as long by the forecast."""
    rows = run_suite("kernels", CALIBRATE / "kernels.jsonl", gpu="h200-sxm").rows
    minima = [row for row in rows if row.row.op == "tile_reduce_min"]
    said, found = (np.array([getattr(row, of).time_s for row in minima]) for of in ("prediction", "measured"))
    alike = said < 1.02 * said.min()
    scatter = np.std(np.log(said / found)[alike], ddof=1)
    assert alike.sum() > 20
    assert np.sqrt(2.0) * scatter == pytest.approx(EQUAL, rel=0.05)


def test_products_and_attention_are_in_order(choices):
    """Of some kernels three tiles of six take the same time within the noise of a window."""
    for (_, kernel, quantity, _), line in choices.items():
        if kernel.startswith("tile_gemm") and line["tiles"] >= 6:
            assert line["order"] >= 0.89, line
        if kernel.startswith("tile_attention") and line["tiles"] >= 6 and quantity == "time":
            assert line["order"] >= 0.8, line


@pytest.mark.parametrize(("op", "most"), [("gemm", 0.08), ("attention", 0.07), ("exp", 0.02), ("layernorm", 0.05)])
def test_times_of_every_family_are_met(scored, op, most):
    for name, rows in scored.items():
        of = [r for r in rows if r.row.op == f"tile_{op}" and r.row.name not in SPILLED]
        error = [abs(np.log(r.prediction.time_s / r.measured.time_s)) for r in of]
        assert not of or np.mean(error) < most, name


def test_attention_without_a_mask_takes_less_for_each_score(scored):
    """Six tiles forecast a third too long when a mask was in every score."""
    rows = [r for r in scored["tiles_third.jsonl"] if r.row.configuration.get("causal") is False]
    ratio = [r.prediction.time_s / r.measured.time_s for r in rows]
    assert len(rows) == 6
    assert np.abs(np.log(ratio)).max() < 0.05


def test_row_wise_tiles_are_in_order(choices):
    """Most of these take the same time within 2 %."""
    orders = {
        (name, kernel): line["order"]
        for (name, kernel, quantity, _), line in choices.items()
        if quantity == "time"
        and kernel.startswith(("tile_rmsnorm 65536", "tile_reduce_min 524288"))
        and line["tiles"] > 6
    }
    assert len(orders) == 4
    assert min(orders.values()) >= 0.88, orders
    assert np.mean(list(orders.values())) >= 0.9, orders


def test_tiles_of_kernels_that_nothing_was_fitted_to_are_in_order(choices):
    """Exponentials in time; norms of another card in energy, whose best tile is found."""
    lines = {
        (kernel, quantity, tiles): line for (name, kernel, quantity, tiles), line in choices.items() if "tiles" in name
    }
    assert lines["tile_exp", "time", 6]["order"] >= 0.9
    assert lines["tile_exp", "time", 6]["regret_percent"] <= 1.0
    for kernel, tiles in (("tile_rmsnorm 65536 x 4096", 27), ("tile_rmsnorm 32768 x 8192", 6)):
        norms = lines[kernel, "energy", tiles]
        assert norms["order"] >= 0.88, norms
        assert norms["regret_percent"] <= 3.0, norms


def test_joins_and_weights_tell_short_rows_apart(choices):
    """Of tiles of 262,144 rows of 1,024 two take as long within 1 %; one needs 4.5 % less energy."""
    lines = {kernel: line for (_, kernel, quantity, _), line in choices.items() if quantity == "energy"}
    assert lines["tile_rmsnorm 262144 x 1024"]["order"] == 1.0
    assert lines["tile_rmsnorm 262144 x 1024"]["regret_percent"] <= 3.0


def test_gradients_of_attention_are_forecast(scored, choices):
    """All but tiles whose values do not nearly fit into the registers; plans refuse those."""
    gpu = gpu_model(load_gpu("h200-sxm"))
    rows = [r for r in scored["tiles.jsonl"] if r.row.configuration.get("direction") == "bwd"]
    blocks = [attention_blocks(operator_of(r.row.configuration).operators, gpu) for r in rows]
    spilled = np.array([spilled_registers(one, gpu)[0] for one in blocks])
    fitting = [r for r, over in zip(rows, spilled, strict=True) if over < 64]
    assert (len(rows), len(fitting)) == (25, 22)
    for quantity, most in (("time_s", 0.03), ("energy_j", 0.05)):
        ratio = [getattr(r.prediction, quantity) / getattr(r.measured, quantity) for r in fitting]
        assert np.abs(np.log(ratio)).mean() < most
    kernels = [(name, kernel) for name, kernel, _, _ in choices if kernel.startswith("tile_attention backward")]
    assert [sum(name == path.name for name, _ in kernels) for path in (TILES, THIRD)] == [6, 4]


def test_times_that_differ_are_in_order(choices):
    """Tiles that take the same time within the noise of a window may be mixed, others hardly."""
    shares = [
        (line["pairs"], line["pairs_in_order_percent"])
        for (_, _, quantity, _), line in choices.items()
        if quantity == "time" and line["pairs"]
    ]
    assert min(percent for _, percent in shares) >= 83.0
    assert min(percent for pairs, percent in shares if pairs > 12) >= 90.0
    assert np.average([p for _, p in shares], weights=[n for n, _ in shares]) >= 97.0


def test_tiles_that_spill_are_counted():
    result = run_suite("kernels", CALIBRATE / "kernels.jsonl", gpu="h200-sxm-rows")
    tile = result.summary["tile"]
    assert tile["rows"] == 75
    assert tile["time_error_percent"] <= 10.0
