"""What other cards of a kind tell about a card: their rows beside its own, and a choice that begins with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from joulecast.calibrate.descriptions.describe import fit_all
from joulecast.calibrate.descriptions.from_rows import facts_of
from joulecast.calibrate.fit.device_priors import DevicePriors
from joulecast.calibrate.measure.recording import FILE_NAME, Card
from joulecast.calibrate.rows.measured import Row, recorded_folder
from joulecast.calibrate.sessions.candidates import Candidate
from joulecast.calibrate.sessions.design import Design
from joulecast.calibrate.sessions.information import free_parameters
from joulecast.calibrate.sessions.other_cards import learnt, recorded_others, shipped_recordings
from joulecast.calibrate.sessions.replay import fit_folder, read_folder
from joulecast.errors import InputError
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.validate import run_suite
from joulecast.validate.adapters import predict_kernels

LIVE = recorded_folder() / "h200_sxm_live"
STEADY = recorded_folder() / "h200_sxm" / "kernels_steady.jsonl"


def beside(card: Card, name: str | None = "h200_sxm_live") -> Card:
    return replace(card, how={**card.how, "others": name})


@pytest.fixture(scope="module")
def own() -> tuple[Card, tuple[Row, ...]]:
    recorded = read_folder(LIVE / "card-6")
    return recorded.card, recorded.rows


@pytest.fixture(scope="module")
def others(own: tuple[Card, tuple[Row, ...]]) -> tuple[Row, ...]:
    return recorded_others(beside(own[0]))


def test_recordings_of_a_kind_are_found_by_its_name(own: tuple[Card, tuple[Row, ...]]) -> None:
    assert shipped_recordings(own[0].facts.name) == "h200_sxm_live"
    assert shipped_recordings("Simulated h200-sxm") is None


def test_rows_of_others_are_labelled_and_never_the_cards_own(
    own: tuple[Card, tuple[Row, ...]], others: tuple[Row, ...]
) -> None:
    labels = {row.configuration.get("card") for row in others if row.gpus == 1}
    assert labels >= {"card-0", "card-5", "card-7"} and "card-6" not in labels
    assert any(row.gpus == 4 for row in others)
    seen = {(row.measured.time_s, row.measured.power_w) for row in own[1]}
    assert not seen & {(row.measured.time_s, row.measured.power_w) for row in others}
    assert recorded_others(own[0]) == ()  # recorded alone


def test_recordings_that_are_not_shipped_any_more(own: tuple[Card, tuple[Row, ...]]) -> None:
    with pytest.raises(InputError, match="ships no recordings 'gone'") as caught:
        recorded_others(beside(own[0], "gone"))
    assert "alone" in caught.value.remedy


def test_a_dozen_rows_beside_those_of_others_forecast_a_further_card(
    own: tuple[Card, tuple[Row, ...]], others: tuple[Row, ...]
) -> None:
    def errors(rows: tuple[Row, ...]) -> tuple[float, float]:
        gpu = fit_all(rows, facts_of("h200-sxm"), cross_validate=False).description
        found = run_suite("kernels", str(STEADY), predict=lambda _, mine: predict_kernels(gpu, mine)).summary["all"]
        return found["time_error_percent"], found["energy_error_percent"]

    time, energy = errors((*own[1][:12], *others))
    assert time < 3.0 and energy < 3.5
    alone = errors(own[1][:12])
    assert time < 0.7 * alone[0] and energy < 0.7 * alone[1]


def test_a_choice_starts_from_what_others_have_shown(
    others: tuple[Row, ...], gpu: GpuModel, priors: DevicePriors
) -> None:
    learned, known = learnt(others, gpu, priors)
    row = {"op": "gemm", "M": 4096, "N": 8192, "K": 4096, "dtype": "bf16"}
    copy = {"op": "copy", "bytes": 2**30, "name": "copy"}
    candidates = [Candidate("gemm", row, "gemm", 4.0), Candidate("copy", copy, "copy", 4.0)]
    before = Design(candidates, gpu, priors).uncertainty()
    after = Design(candidates, learned, priors, known=known).uncertainty()
    assert after.time < 0.4 * before.time and after.energy < 0.4 * before.energy
    # The memories of these cards differ by far more than their chips, and a further card may be any of them.
    spread = {part: np.std([learned[n] for n in learned.parameters if n.startswith("card.") and n.endswith(part)])
              for part in ("core", "memory")}  # fmt: skip
    assert spread["memory"] > 2.0 * spread["core"]
    place = list(free_parameters(priors)).index("power.hbm_toggle_pj_per_byte")
    assert 0.05 < np.linalg.norm(known[place]) < 1.0


def test_a_recording_made_beside_others_is_fitted_beside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (LIVE / "card-5" / FILE_NAME).read_text().splitlines()
    head = lines[0].replace('"mode"', '"others": "h200_sxm_live", "mode"', 1)
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / FILE_NAME).write_text("\n".join([head, *lines[1:6]]) + "\n")
    asked: list[tuple[int, str]] = []

    def fit_all(rows: list[Row], base: object, *, provenance: str, **_: object) -> None:
        asked.append((len(rows), provenance))

    monkeypatch.setattr("joulecast.calibrate.sessions.replay.fit_all", fit_all)
    fit_folder(folder)
    fit_folder(folder, alone=True)
    (beside_others, said), (alone, nothing) = asked
    assert alone == 5 and beside_others > 300
    assert f"5 microbenchmarks, and {beside_others - 5} of other cards of its kind" in said
    assert nothing.endswith("5 microbenchmarks")
