"""The command ``joulecast choose``: a table that is read at one look, and all of it where that is asked for."""

import json
import re

import command
import pytest
from paths import ROOT

EXAMPLE = "examples/llama-3.1-8b-4xh200-nanobatches.toml"


@pytest.fixture(scope="module")
def parts():
    """Every choice by part, as ``--json`` has it."""
    import joulecast as jc

    return jc.choose(ROOT / EXAMPLE).to_dict()["parts"]


def clocks_of(out):
    """Clocks of each table that was printed, by part."""
    tables = re.split(r"^(attention|mlp|stage), forward.*\n", out, flags=re.MULTILINE)[1:]
    return {
        part: [float(line.split()[0]) for line in table.splitlines() if re.match(r" +\d+ ", line)]
        for part, table in zip(tables[::2], tables[1::2], strict=True)
    }


def test_few_clocks_are_shown_with_the_best_among_them(parts, capsys):
    code, out, _ = command.run(capsys, "choose", ROOT / EXAMPLE)
    shown = clocks_of(out)
    assert code == 0 and shown.keys() == parts.keys()
    for part, at in parts.items():
        held = [one for one in at if one["points"][0]["held"]]
        fastest = min(held, key=lambda one: one["points"][0]["time_s"])["clock_mhz"]
        economical = min(at, key=lambda one: one["points"][-1]["energy_j"])["clock_mhz"]
        assert {fastest, economical} <= set(shown[part]) and 5 <= len(shown[part]) <= 10 < len(at)
        assert f"{len(shown[part])} of {len(at)} clocks" in out
        steps = [b - a for a, b in zip(shown[part][1:-1], shown[part][2:], strict=False) if b <= fastest]
        assert max(steps) - min(steps) <= 30.0  # evenly between the two, to the grid's 15 MHz


def test_all_clocks_are_shown_where_that_is_asked_for(parts, capsys):
    _, out, _ = command.run(capsys, "choose", ROOT / EXAMPLE, "--all")
    assert clocks_of(out) == {part: [one["clock_mhz"] for one in at] for part, at in parts.items()}
    assert "--all" not in out
    _, out, _ = command.run(capsys, "choose", ROOT / EXAMPLE, "--json")
    assert json.loads(out)["parts"] == parts
    _, out, _ = command.run(capsys, "choose", ROOT / EXAMPLE, "--csv")
    assert len(out.splitlines()) == 1 + sum(len(one["points"]) for at in parts.values() for one in at)
