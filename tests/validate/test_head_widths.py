"""Attention with heads of other widths than 128, as timed on an H200 and an H100."""

from pathlib import Path

from joulecast.validate import run_suite

RECORDED = Path(__file__).parents[2] / "validate" / "recorded"
ROWS, H100_ROWS = (RECORDED / card / "heads.jsonl" for card in ("h200_sxm", "h100_sxm"))


def test_heads_that_run_in_a_wider_kernel_take_its_time():
    """3.1 % off in the mean; a kernel for each width was 13 % off, 45 % at worst."""
    rows = run_suite("kernels", ROWS).to_dict()["rows"]
    errors = [abs(row["predicted"]["time_s"] / row["measured"]["time_s"] - 1.0) for row in rows]
    assert len(errors) == 25
    assert sum(errors) / len(errors) < 0.035
    assert max(errors) < 0.1


def test_heads_of_192_and_values_of_128_on_an_h100():
    """44 kernels, of which the ten of latent attention gave one constant, of the backward; 3.2 % off in the mean."""
    rows = run_suite("kernels", H100_ROWS, gpu="h100-sxm").to_dict()["rows"]
    errors = {row["name"]: row["predicted"]["time_s"] / row["measured"]["time_s"] - 1.0 for row in rows}
    assert len(errors) == 44
    assert sum(map(abs, errors.values())) / 44 < 0.034
    latent = {name: error for name, error in errors.items() if "_192_128_" in name}
    assert len(latent) == 10
    assert max(abs(error) for name, error in latent.items() if "_fwd_" in name) < 0.015
    assert max(abs(error) for name, error in latent.items() if "_bwd_" in name) < 0.065


def test_backwards_of_wide_heads_draw_more_than_the_same_operations_at_128():
    """At the power limit that is time: 192 and 256 were 2 to 6 % short without. One shape of few blocks is not met."""
    rows = run_suite("kernels", H100_ROWS.with_name("wide_heads.jsonl"), gpu="h100-sxm").to_dict()["rows"]
    wide = [row for row in rows if "192_192_bwd" in row["name"] or "256_256_bwd" in row["name"]]
    held = [row for row in wide if not row["name"].endswith("1x16x2048")]
    assert len(rows) == 14 and len(held) == len(wide) - 1 == 5
    for quantity in ("time_s", "energy_j"):
        assert max(abs(row["predicted"][quantity] / row["measured"][quantity] - 1.0) for row in held) < 0.06
