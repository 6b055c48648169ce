"""The tables of ``joulecast front`` print what ``--json`` says, and figures that are worked out by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import command
import pytest
from printed_tables import table


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    status, out, err = command.run(capsys, "front", *arguments)
    assert (status, err) == (0, "")
    return out


def ends(cell: str) -> list[float]:
    return [float(word) for word in cell.split(" to ")]


def test_plans_of_a_forecast_are_shown_with_their_intervals(capsys: pytest.CaptureFixture[str], examples: Path) -> None:
    asked = (examples / "llama-3.1-8b-4xh200.toml", "--simple", "rank")
    text, points = run(capsys, *asked), json.loads(run(capsys, *asked, "--json"))["points"]
    shown = table(text, "time [s]")
    assert len(shown) > 10
    for row in shown:
        near = [p for p in points if abs(p["time_s"] / float(row["time [s]"]) - 1.0) < 6e-4]
        (point,) = [p for p in near if ends(row["saved, 5-95 %"]) == _saved(p)][:1]
        assert float(row["energy [J]"]) == pytest.approx(point["energy_j"], rel=6e-4)
        assert float(row["bound [J]"]) == pytest.approx(point["lower_bound_j"], rel=6e-4)
        slower = [100.0 * (point[f"time_ratio_{end}"] - 1.0) for end in ("p05", "p95")]
        assert ends(row["slower, 5-95 %"]) == pytest.approx(slower, abs=0.051)
        clocks = [clock for order in point["plan"] for clock in order]
        assert float(row["mean clock [MHz]"]) == pytest.approx(sum(clocks) / len(clocks), abs=0.51)
    gaps = [point["energy_j"] / point["lower_bound_j"] - 1.0 for point in points]
    mean, most = re.findall(r"(\d+\.?\d*) % ", text.splitlines()[0])
    assert float(mean) == pytest.approx(100.0 * sum(gaps) / len(gaps), rel=0.05)
    assert float(most) == pytest.approx(100.0 * max(gaps), rel=0.05)
    below, above, less, more = map(float, re.findall(r"[-+](\d+\.?\d*)", text.splitlines()[1].partition(": ")[2])[:4])
    for name, low, high in (("time_s", below, above), ("energy_j", less, more)):
        assert low == pytest.approx(100.0 * (1.0 - min(p[f"{name}_p05"] / p[name] for p in points)), abs=0.051)
        assert high == pytest.approx(100.0 * (max(p[f"{name}_p95"] / p[name] for p in points) - 1.0), abs=0.051)


def _saved(point: dict[str, Any]) -> list[float]:
    return [round(100.0 * (1.0 - point[f"energy_ratio_{end}"]), 1) for end in ("p95", "p05")]


def test_what_slow_ones_let_others_save_is_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = ["stage,instruction,frequency,time,energy"]
    for clock in range(900, 1500, 60):
        for name, time in (("forward", 36.0 / clock), ("backward", 72.0 / clock)):
            watts = 90.0 + 250.0 * (clock / 1440.0) ** 2.7
            lines += [f"{stage},{name},{clock},{time:.9f},{time * watts:.9f}" for stage in range(3)]
    profile = tmp_path / "profile.csv"
    profile.write_text("\n".join(lines) + "\n")
    asked = ("--profile", profile, "--microbatches", 6, "--wait-power", 84)
    asked += ("--straggler-time", 1.0, "--slow-rank", "1=1.2")
    rows, found = table(run(capsys, *asked), "plan for"), json.loads(run(capsys, *asked, "--json"))
    own, replica = (found["slow_rank"][name] for name in ("own", "replica"))
    own["saved_by_reacting_share"] = found["slow_rank"]["own_saved_share"]
    assert [row["plan for"] for row in rows] == ["straggler", "slow rank's pipeline", "its replicas"]
    for row, said in zip(rows, (found["stragglers"][0], own, replica), strict=True):
        assert float(row["iteration [s]"]) == pytest.approx(said["time_s"], rel=6e-4)
        assert float(row["plan [s]"]) == pytest.approx(said["plan_time_s"], rel=6e-4)
        assert float(row["energy [J]"]) == pytest.approx(said["energy_j"], rel=6e-4)
        reacting, against = "saved against the fastest plan [%]", "saved against highest clocks [%]"
        assert float(row[reacting]) == pytest.approx(100.0 * said["saved_by_reacting_share"], abs=0.0051)
        assert float(row[against]) == pytest.approx(100.0 * said["saved_share"], abs=0.0051)


def test_limits_are_best_where_their_costs_cross(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """700 and 600 W cost the same where 300 J of energy weigh as much as 350 J of time at 700 W: η = 350 / 650."""
    measured = tmp_path / "limits.csv"
    measured.write_text("power_limit,time,energy\n700,10,5000\n600,10.5,4700\n500,12,4600\n400,15,4700\n")
    text = run(capsys, "--power-limits", measured, "--eta", 0.7)
    assert [tuple(row.values()) for row in table(text, "limit [W]")] == [
        ("700", "10", "5000", "0", "0", "500", "0 to 0.538"),
        ("600", "10.5", "4700", "5", "6", "447.6", "0.538 to 0.913"),  # 1,050 / (1,050 + 100)
        ("500", "12", "4600", "20", "8", "383.3", "0.913 to 1"),
        ("400", "15", "4700", "50", "6", "313.3", "never"),
    ]
    assert text.splitlines()[-1] == "Best at η = 0.7: 600 W, 10.5 s, 4700 J"
