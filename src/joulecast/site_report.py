"""How a forecast beyond its GPUs is printed for people."""

from __future__ import annotations

from typing import Any

from joulecast import output


def print_site(gpu: str, site: dict[str, Any] | None) -> None:
    """Print what surrounds the GPUs: power by level and over time, cost, and the site's limits."""
    if site is None:
        print(f"\nBeyond the GPU: no node type is known for {gpu}; set cluster.node.")
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
            "energy [J]": site["energy_j"][key],
            "5 % [J]": site["energy_j_p05"][key],
            "95 % [J]": site["energy_j_p95"][key],
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
            {"most demanding": places[key]} | {name.removesuffix("_w"): value for name, value in spread.items()}
            for key, spread in site["spread_w"].items()
        ]
    )
    for limit in site["limits"]:
        word = "is met" if limit["met"] else "is exceeded"
        print(f"{limit['key']} = {limit['limit_w']:g} W {word}: the peak is {limit['peak_w']:.0f} W")
    print("Assumed: " + "; ".join(site["assumptions"]) + ".")


def _cost_lines(site: dict[str, Any]) -> list[tuple[str, str]]:
    """Energy at the facility, money and carbon of an iteration, a token and the whole run."""
    number, currency, million = output.number, site["currency"], 1e6
    step, token, run = site["iteration"], site["token"], site["run"]
    lines = [
        ("iteration", f"{number(step['money'])} {currency}, {number(step['carbon_kg'])} kgCO2e"),
        (
            "million tokens",
            f"{number(token['energy_j'] * million / 3.6e6)} kWh, {number(token['money'] * million)} {currency}, "
            f"{number(token['carbon_kg'] * million)} kgCO2e",
        ),
    ]
    if run is not None:
        lines.append(
            (
                f"{number(run['tokens'])} tokens",
                f"{number(run['time_s'] / 86400.0)} days, {number(run['energy_j'] / 3.6e9)} MWh, "
                f"{number(run['money'])} {currency} (electricity {number(run['electricity'])}), "
                f"{number(run['carbon_kg'] / 1e3)} tCO2e (electricity {number(run['operational_kg'] / 1e3)})",
            )
        )
    return lines
