"""``joulecast nodes``, ``joulecast networks``, ``joulecast sites``: the catalogue of what surrounds GPUs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulecast.command_line import output
from joulecast.command_line.shown import add_catalogue

if TYPE_CHECKING:
    from joulecast.model.hardware.description import Facts

#: Kinds of entries, what they are, and the facts that the list shows; ``show`` has all.
KINDS = {
    "nodes": (
        "node types",
        (
            "gpu",
            "gpus_per_node",
            "network",
            "nics_per_node",
            "fan_power_w",
            "other_power_w",
            "supply_efficiency",
            "price",
        ),
    ),
    "networks": (
        "networks between nodes",
        (
            "kind",
            "generation",
            "nic_bandwidth_bytes_per_s",
            "nic_power_w",
            "transceiver_power_w",
            "switch_port_power_w",
        ),
    ),
    "sites": (
        "sites",
        ("currency", "pue", "electricity_price_per_kwh", "carbon_intensity_kg_per_kwh", "hardware_lifetime_years"),
    ),
}

Name = Annotated[str, typer.Argument(help="Name in the catalogue, or path of a file (TOML).")]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for kind, (words, _) in KINDS.items():
        add_catalogue(app, kind, words, partial(_list, kind), _shower(kind))


def _list(kind: str, json: bool, csv: bool) -> None:
    names, load = _catalogue(kind)
    rows: list[dict[str, Any]] = []
    for name in names():
        facts = load(name).parameters
        rows.append({"name": name} | {key: facts[key].value for key in KINDS[kind][1] if key in facts})
    output.print_rows(rows, as_json=json, as_csv=csv)


def _shower(kind: str) -> Callable[..., None]:
    def show_entry(name: Name, json: output.JsonOption = False, csv: output.CsvOption = False) -> None:
        """Show every number with its uncertainty and source."""
        from dataclasses import asdict

        facts = _catalogue(kind)[1](name)
        rows = [asdict(row) for row in facts.rows()]
        if json:
            output.print_json(facts.to_dict())
        elif csv:
            output.print_csv(rows)
        else:
            output.print_table(rows, title=facts.name)

    return show_entry


def _catalogue(kind: str) -> tuple[Callable[[], list[str]], Callable[[str], Facts]]:
    """Names of a kind, and what loads one."""
    from joulecast.model.hardware import catalogue

    return {
        "nodes": (catalogue.node_names, catalogue.load_node),
        "networks": (catalogue.network_names, catalogue.load_network),
        "sites": (catalogue.site_names, catalogue.load_site),
    }[kind]
