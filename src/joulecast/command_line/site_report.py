"""How a forecast beyond its GPUs is printed for people."""

from __future__ import annotations

from typing import Any

from joulecast.command_line import output


def print_site(gpu: str, site: dict[str, Any] | None) -> None:
    """Print what surrounds the GPUs: power by level and over time, cost, and the site's limits."""
    if site is None:
        from joulecast.model.hardware.catalogue import nodes_of

        known = f" ({' or '.join(nodes_of(gpu))}, or your own)" if nodes_of(gpu) else ""
        print(f"\nBeyond the GPU: no node type is usual for {gpu}; set cluster.node{known}.")
        return
    number, power = output.number, site["power_w"]
    print(f"\nBeyond the GPU: {site['node']}, {site['network']}")
    names = {
        "gpu": "GPUs",
        "node_dc": "nodes, DC",
        "node_ac": "nodes, AC",
        "network": "switches",
        "facility": "facility",
    }
    levels = [
        {
            "level": names[key],
            "power [W]": power[key],
            "5 % [W]": site["power_w_p05"][key],
            "95 % [W]": site["power_w_p95"][key],
            "energy [J]": site["energy_j"][key],
            "5-95 % of energy": output.between(site["energy_j_p05"][key], site["energy_j_p95"][key]),
        }
        for key in names
    ]
    output.print_table(levels)
    print()
    output.print_pairs(_cost_lines(site))
    print(f"\nPower over time [W], means of {number(site['step_s'] * 1e3, 2)} ms")
    places = {"gpu": "GPU", "node": "node, AC", "rack": "rack, AC", "job": "job, facility"}
    output.print_table(
        [
            {"most demanding": places[key]}
            | {name.removesuffix("_w"): spread[name] for name in ("mean_w", "p50_w", "p95_w", "p99_w", "peak_w")}
            | {"5-95 % of peak": output.ends_of(spread, "peak_w")}
            for key, spread in site["spread_w"].items()
        ]
    )
    for limit in site["limits"]:
        word = "is met" if limit["met"] else "is exceeded"
        ends = f"5-95 %: {limit['peak_w_p05']:.0f} to {limit['peak_w_p95']:.0f}"
        print(f"{limit['key']} = {limit['limit_w']:g} W {word}: the peak is {limit['peak_w']:.0f} W ({ends})")


def _cost_lines(site: dict[str, Any]) -> list[tuple[str, str]]:
    """Energy at the facility, money and carbon of an iteration, a million tokens and the whole run."""
    number, energy_j = output.number, site["energy_j"]["facility"]
    step, token, run = site["iteration"], site["token"], site["run"]
    million = {name: value * 1e6 for name, value in token.items()}
    lines = [("iteration", f"{number(energy_j)} J, {_money(step, site)}, {_carbon(step)}")]
    words = f"{number(million['energy_j'] / 3.6e6)} kWh, {_money(million, site)}, {_carbon(million)}"
    lines.append(("million tokens", words))
    if run is not None:
        words = f"{_with_ends(run, 'time_s', 'days', 86400.0)}, {_with_ends(run, 'energy_j', 'MWh', 3.6e9)}"
        lines.append((f"{number(run['tokens'])} tokens", f"{words}, {_money(run, site)}, {_carbon(run)}"))
    return lines


def _money(cost: dict[str, float], site: dict[str, Any]) -> str:
    currency, rent = site["currency"], site["gpu_price_per_hour"]
    size, unit = (1e6, f"million {currency}") if cost["money"] >= MANY else (1.0, currency)
    whole, electricity = _with_ends(cost, "money", unit, size), output.number(cost["electricity"] / size)
    if rent is None:
        return f"{whole} of which electricity {electricity}"
    rented = f"{whole} at {output.number(rent)} {currency} a GPU-hour"
    return f"{rented} and for electricity {electricity}" if cost["electricity"] else rented


def _carbon(cost: dict[str, float]) -> str:
    size, unit = (1e3, "tCO2e") if cost["carbon_kg"] >= HEAVY_KG else (1.0, "kgCO2e")
    return f"{_with_ends(cost, 'carbon_kg', unit, size)} of which use {output.number(cost['operational_kg'] / size)}"


def _with_ends(cost: dict[str, float], key: str, unit: str, size: float) -> str:
    ends = output.between(cost[f"{key}_p05"] / size, cost[f"{key}_p95"] / size, 3)
    return f"{output.number(cost[key] / size)} {unit} ({ends})"


#: Money that is told in millions, and carbon that is told in tonnes [kg].
MANY, HEAVY_KG = 1e7, 1e4
