"""``joulecast doctor``: what this machine can and cannot do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from joulecast.command_line import output


def doctor(
    device: Annotated[
        list[str] | None,
        typer.Option(metavar="CARD", help="Examine only this card, such as 0, nvml:1 or amd:0; may be repeated."),
    ] = None,
    host: Annotated[
        bool, typer.Option("--host", help="Measure how fast PyTorch launches kernels here; six seconds on the GPU.")
    ] = False,
    json: output.JsonOption = False,
) -> None:
    """Say what is installed, and what can be done here.

    Versions, GPUs and their sensors, and what is missing for the rest.
    """
    from joulecast.command_line.machine import examine, host_launch_us

    report = examine(device)
    if host:
        output.progress("launching kernels")
        mean, low, high = host_launch_us()
        report |= {"host_launch_us": mean, "host_launch_range_us": [low, high]}
    if json:
        output.print_json(report)
        return
    output.print_pairs([("joulecast", report["joulecast"]), ("python", report["python"]), ("system", report["system"])])
    print()
    output.print_table(report["packages"])
    print()
    output.print_pairs(
        [
            ("NVIDIA GPUs", _devices_line(report["nvidia"])),
            ("nvidia-smi", report["nvidia"]["nvidia_smi"] or "not found"),
            ("AMD GPUs", _devices_line(report["amd"])),
            ("catalogue", report["catalogue"]),
        ]
    )
    for card in report["cards"]:
        print()
        _print_card(card)
    if report["libraries"]:
        print()
        output.print_pairs((f"torch's {name}", found) for name, found in report["libraries"].items())
    if host:
        print()
        mean, (low, high) = report["host_launch_us"], report["host_launch_range_us"]
        said = f"implementation.host_launch_us = {mean:.0f} ({low:.0f} to {high:.0f} within seconds)"
        output.print_pairs([("PyTorch's launches", said)])
    print()
    output.print_pairs((action, answer) for action, answer in report["can"].items())


def _devices_line(found: dict[str, Any]) -> str:
    if found["problem"]:
        return f"not reachable ({found['problem']})"
    return f"{len(found['devices'])} (driver {found['driver']}): {', '.join(found['devices'])}"


def _print_card(card: Mapping[str, Any]) -> None:
    facts, sensors = card["facts"], card["sensors"]
    pairs: list[tuple[str, Any]] = [(card["locator"], "not reachable" if facts is None else _facts_line(facts))]
    if facts is not None:
        pairs.append(("  may set", _settable(facts)))
    if sensors:
        step = sensors["energy_counter_step_s"]
        pairs.append(("  energy counter", "no steps seen" if step is None else f"a step in {step * 1e3:.1f} ms"))
        powers = ((sensors["counter_power_w"], "by the counter"), (sensors["polled_power_w"], "polled"))
        shown = ", ".join(f"{power:.1f} W {how}" for power, how in powers if power is not None)
        pairs.append(("  power now", shown or "unknown"))
        if sensors["reading_s"] is not None:
            pairs.append(("  a reading takes", f"{sensors['reading_s'] * 1e3:.2f} ms"))
        pairs += [(f"  {name}", source) for name, source in sensors["readings"].items()]
    pairs += [(f"  {f['severity']}: {f['code']}", f"{f['message']}. {f['remedy']}") for f in card["findings"]]
    output.print_pairs(pairs)


def _facts_line(facts: Mapping[str, Any]) -> str:
    parts = [f"{facts['name']} (driver {facts['driver']})"]
    if facts["sms"] is not None:
        parts.append(f"{facts['sms']} SMs")
    if facts["memory_bytes"] is not None:
        parts.append(f"{facts['memory_bytes'] / 1e9:.0f} GB")
    if facts["power_limit_w"] is not None:
        parts.append(f"limit {facts['power_limit_w']:g} W")
    low = facts["min_sm_clock_mhz"]
    parts.append(f"clock {'' if low is None else f'{low:g}-'}{facts['max_sm_clock_mhz']:g} MHz")
    return ", ".join(parts)


def _settable(facts: Mapping[str, Any]) -> str:
    may = [("clocks", facts["may_set_clocks"]), ("power limit", facts["may_set_power_limit"])]
    return ", ".join(name for name, allowed in may if allowed) or "nothing"
