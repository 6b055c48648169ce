"""What ``joulecast predict`` prints for people is what ``--json`` says, in the units that it names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import command
import pytest
from printed_tables import numbers, pairs, table

RUN = ("--set", "workload.training_tokens=1e12")
#: Of numbers with four digits, and with three.
FOUR, THREE = 6e-4, 6e-3


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], examples: Path) -> tuple[str, dict[str, Any]]:
    plan = examples / "llama-3.1-8b-4xh200.toml"
    (status, text, _), (_, said, _) = (command.run(capsys, "predict", plan, *RUN, *more) for more in ((), ("--json",)))
    assert status == 0
    return text, json.loads(said)


def close(shown: str | float, said: float, rel: float = FOUR) -> None:
    assert float(shown) == pytest.approx(said, rel=rel, abs=1e-12)


def test_the_whole_iteration(printed: tuple[str, dict[str, Any]]) -> None:
    text, said = printed
    found = pairs(text)
    for name, key in (("time", "time_s"), ("energy, all GPUs", "energy_j"), ("power, all GPUs", "power_w")):
        value, _, _, low, high, *each = numbers(found[name].replace("-95", " 95"))
        close(value, said[key])
        close(low, said[f"{key}_p05"])
        close(high, said[f"{key}_p95"])
        assert [round(one, 1) for one in each] == ([round(said["power_w"] / 4, 1)] if key == "power_w" else [])
    assert "SM clock, mean" not in found, "half of the time is spent below this clock, not its mean"
    close(numbers(found["SM clock, median"])[0], said["clock_mhz"])
    close(numbers(found["throughput"])[0], said["tokens"] / said["time_s"])
    close(numbers(found["energy per token"])[0], said["energy_j"] / said["tokens"])
    rate, share = numbers(found["model FLOPs"])
    close(rate, said["model_flops_per_s"] / 1e12)
    close(share, 100.0 * said["mfu"], 2e-3)


def test_stages_and_their_memory(printed: tuple[str, dict[str, Any]]) -> None:
    text, said = printed
    stages, memory = table(text, "stage"), table(text.partition("Memory of one GPU")[2], "stage")
    assert len(stages) == len(memory) == len(said["stages"]) == 2
    for row, parts, stage in zip(stages, memory, said["stages"], strict=True):
        for name, key in (
            *(("power [W]", "power_w"), ("clock [MHz]", "clock_mhz"), ("energy [J]", "energy_j")),
            *(("compute [s]", "compute_s"), ("waiting [s]", "waiting_s"), ("for the slowest [s]", "group_waiting_s")),
        ):
            close(row[name], stage[key])
        close(row["communication [s]"], stage["exposed_communication_s"] - stage["group_waiting_s"])
        close(row["allocated [GB]"], stage["memory_bytes"] / 1e9)
        held = {name: value for name, value in stage["memory_by_part_bytes"].items() if value}
        assert set(parts) == {"stage", *held, "total", "margin"}
        for name, value in held.items():
            close(parts[name], value / 1e9)
        close(parts["total"], sum(held.values()) / 1e9)
        close(parts["margin"], stage["memory_margin_bytes"] / 1e9)


def test_energy_by_component_and_instruction(printed: tuple[str, dict[str, Any]]) -> None:
    text, said = printed
    whole = said["energy_j"]
    for heading, key in (("component", "energy_by_component_j"), ("instruction", "energy_by_instruction_j")):
        rows = table(text, heading)
        for row, value in zip(rows, said[key].values(), strict=True):
            close(row["energy [J]"], value)
            assert float(row["share [%]"]) == pytest.approx(100.0 * value / whole, abs=0.051)
    for row in rows:
        close(row["time of the mean GPU [s]"], said["time_by_instruction_s"][row["instruction"]])


def test_facility_money_and_carbon(printed: tuple[str, dict[str, Any]]) -> None:
    """A kWh is 3.6 MJ; a token's figures times a million, and a run's in days, MWh and tonnes."""
    text, said = printed
    site, found = said["site"], pairs(text)
    for row, key in zip(table(text, "level"), ("gpu", "node_dc", "node_ac", "network", "facility"), strict=True):
        close(row["power [W]"], site["power_w"][key])
        close(row["5 % [W]"], site["power_w_p05"][key])
        close(row["95 % [W]"], site["power_w_p95"][key])
        close(row["energy [J]"], site["energy_j"][key])
    step, token, run = site["iteration"], site["token"], site["run"]
    of_all = (("money", 1.0), ("money_p05", 1.0), ("money_p95", 1.0), ("electricity", 1.0))
    carbon = (("carbon_kg", 1.0), ("carbon_kg_p05", 1.0), ("carbon_kg_p95", 1.0), ("operational_kg", 1.0))
    days = (("time_s", 86400.0), ("time_s_p05", 86400.0), ("time_s_p95", 86400.0))
    megawatt_hours = (("energy_j", 3.6e9), ("energy_j_p05", 3.6e9), ("energy_j_p95", 3.6e9))
    close(numbers(found["iteration"])[0], site["energy_j"]["facility"])
    for name, cost, times, keys in (
        ("iteration", step, 1.0, (*of_all, *carbon)),
        ("million tokens", token, 1e6, (("energy_j", 3.6e6), *of_all, *carbon)),
        ("1e+12 tokens", run, 1.0, (*days, *megawatt_hours, *of_all, *((key, 1e3) for key, _ in carbon))),
    ):
        shown = numbers(found[name].replace("CO2e", ""))
        for value, (key, unit) in zip(shown[name == "iteration" :], keys, strict=True):
            close(value, cost[key] * times / unit, THREE)
    assert "kgCO2e" in found["million tokens"] and "tCO2e" in found["1e+12 tokens"]


def test_much_money_is_told_in_millions(capsys: pytest.CaptureFixture[str], examples: Path) -> None:
    plan = examples / "llama-3.1-8b-4xh200.toml"
    asked = ("predict", plan, "--set", "workload.training_tokens=1e15")
    (_, text, _), (_, said, _) = (command.run(capsys, *asked, *more) for more in ((), ("--json",)))
    run, (_, _, words) = json.loads(said)["site"]["run"], pairs(text)["1e+15 tokens"].partition(" MWh ")
    shown = numbers(words.partition(", ")[2])
    assert run["money"] > 1e7 and " million USD " in words
    for value, key in zip(shown, ("money", "money_p05", "money_p95", "electricity"), strict=False):
        close(value, run[key] / 1e6, THREE)
