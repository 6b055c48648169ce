"""The catalogue of node types, networks and sites on the command line."""

from __future__ import annotations

import json

import pytest
from command import run
from row_files import csv_text

from joulecast.model.hardware.catalogue import network_names, node_names, site_names


@pytest.mark.parametrize(
    ("kind", "names"), [("nodes", node_names()), ("networks", network_names()), ("sites", site_names())]
)
def test_every_entry_is_listed_and_can_be_shown(
    capsys: pytest.CaptureFixture[str], kind: str, names: list[str]
) -> None:
    _, text, _ = run(capsys, kind, "--json")
    assert [row["name"] for row in json.loads(text)] == names
    _, text, _ = run(capsys, kind, "--csv")
    assert [row["name"] for row in csv_text(text)] == names
    _, text, _ = run(capsys, kind)
    assert all(name in text for name in names)
    _, text, _ = run(capsys, kind, "show", names[0], "--csv")
    assert all(row["source"] for row in csv_text(text))
    _, text, _ = run(capsys, kind, "show", names[0], "--json")
    assert json.loads(text)["name"] == names[0]


def test_an_unknown_name_comes_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "nodes", "show", "hgx-h1000")
    assert status == 2
    assert "unknown node 'hgx-h1000'" in err
    assert "'hgx-h100'" in err
