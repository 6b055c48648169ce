"""How ``joulecast front`` prints its answers for people, and a front as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from joulecast.command_line import output
from joulecast.errors import counted

if TYPE_CHECKING:
    from joulecast.plan.exact.front import Front, FrontPoint
    from joulecast.plan.limits.power_limits import JobPoint
    from joulecast.plan.limits.rank_limits import RankLimitFront, RankLimits

    AnyPoint: TypeAlias = FrontPoint | JobPoint | RankLimits

#: Lines of a table for people.
LINES = 20
#: What has intervals, and its key.
QUANTITIES = (("time", "time_s"), ("energy", "energy_j"), ("power", "power_w"))


def print_front(made: Front, extra: Mapping[str, Any]) -> None:
    """Print a front, and what was asked beside it, as JSON.

    One point a line: indented, a large front would have a line for every clock.
    """
    import json
    import sys
    from functools import partial

    text = partial(json.dumps, ensure_ascii=not output.is_unicode(sys.stdout), allow_nan=False)
    parts = []
    for key, value in (made.to_dict() | dict(extra)).items():
        whole = "[\n" + ",\n".join(map(text, value)) + "]" if key == "points" else text(value)
        parts.append(f"{json.dumps(key)}: {whole}")
    print("{" + ",\n".join(parts) + "}")


def print_table(made: Front) -> None:
    """Print a front for people: some of its points, and how far they are from the bound."""
    points = made.points
    mean = sum(p.gap for p in points) / len(points)
    print(
        f"{counted(len(points), 'plan')} of {made.problem.dag.instructions} instructions, "
        f"{100.0 * mean:.2g} % above the lower bound on average, {100.0 * max(p.gap for p in points):.2g} % at most"
    )
    if made.intervals:
        print(f"5-95 % of a plan on any card: {', '.join(_levels(made))}; of ratios to the fastest plan see below")
    print()
    output.print_table([_line(made, i) for i in _some(len(points))])
    if made.notes:
        output.print_assumed(made.notes)


def print_slow_ones(extra: Mapping[str, Any]) -> None:
    """Print what stragglers and a slow rank let a pipeline save."""
    rows = [("straggler", row) for row in extra.get("stragglers", ())]
    slow = extra.get("slow_rank")
    if slow is not None:
        own = slow["own"] | {"saved_by_reacting_share": slow["own_saved_share"]}
        rows += [("slow rank's pipeline", own), ("its replicas", slow["replica"])]
    lines = [
        {
            "plan for": name,
            "iteration [s]": row["time_s"],
            "plan [s]": row["plan_time_s"],
            "energy [J]": row["energy_j"],
            "saved against the fastest plan [%]": round(100.0 * row["saved_by_reacting_share"], 2),
            "saved against highest clocks [%]": round(100.0 * row["saved_share"], 2),
        }
        for name, row in rows
    ]
    if lines:
        print()
        output.print_table(lines)


def print_rank_limits(front: RankLimitFront, choice: Mapping[str, Any] | None) -> None:
    """Print some of the plans with their limits, and the chosen one."""
    fastest = front.points[0]
    plans = counted(len(front.points), "plan")
    print(f"{plans}, {front.simulated} simulated; limits of one GPU of each pipeline stage\n")
    lines = []
    for point in (front.points[i] for i in _some(len(front.points))):
        limits, powers = (" ".join(f"{w:.0f}" for w in each) for each in (point.power_limit_w, point.power_w))
        lines.append(
            {
                "time [s]": point.time_s,
                "energy [J]": point.energy_j,
                **_against(point, fastest),
                "limits [W]": limits,
                "all GPUs [W]": front.together_w(point),
                "mean power [W]": powers,
                **{f"5-95 % of {word}": _number_range(point, name) for word, name in QUANTITIES if point.time_ends},
                **dict(point.knobs),
            }
        )
    output.print_table(lines)
    output.print_assumed(front.notes)
    if choice is not None:
        print()
        output.print_pairs((name, str(value) if isinstance(value, list) else value) for name, value in choice.items())


def print_power_limits(points: Sequence[JobPoint], report: Mapping[str, Any]) -> None:
    """Print every power limit, the weights of energy against time at which it is best, and the chosen one."""
    print(f"Time and energy of {report['of']}; cost = η·energy + (1 − η)·{report['max_power_w']:.0f} W·time\n")
    best = {(w.get("batch_size"), w["power_limit_w"]): (w["eta_from"], w["eta_to"]) for w in report["by_weight"]}
    several = len({point.batch_size for point in points}) > 1
    lines = []
    ordered = sorted(points, key=lambda one: (one.time_s, one.energy_j))
    for point in ordered:
        weights = best.get((point.batch_size, point.power_limit_w))
        lines.append(
            {
                **({"batch size": point.batch_size} if several else {}),
                "limit [W]": point.power_limit_w,
                "time [s]": point.time_s,
                "energy [J]": point.energy_j,
                **_against(point, ordered[0]),
                "power, all GPUs [W]": point.energy_j / point.time_s,
                **{f"5-95 % of {word}": _number_range(point, name) for word, name in QUANTITIES if point.time_ends},
                "best at η": "never" if weights is None else " to ".join(output.number(eta, 3) for eta in weights),
            }
        )
    output.print_table(lines)
    for size in report["never_reach_the_target"]:
        print(f"left out: batch size {size} (does not always reach the target)")
    for said in report["site_limits"]:
        print(said)
    if report["notes"]:
        output.print_assumed(report["notes"])
    if "choice" in report:
        choice = report["choice"]
        size = f" and batches of {choice['batch_size']}" if several else ""
        found = f"{output.number(choice['time_s'])} s, {output.number(choice['energy_j'])} J"
        print(f"\nBest at η = {choice['eta']:g}: {choice['power_limit_w']:g} W{size}, {found}")


def _line(made: Front, index: int) -> dict[str, Any]:
    point, fastest = made.points[index], made.points[0]
    clocks = [clock for order in made.clocks_mhz(point) for clock in order]
    line = {
        "time [s]": point.time_s,
        "energy [J]": point.energy_j,
        "bound [J]": point.lower_bound_j,
        **_against(point, fastest),
        "mean clock [MHz]": round(sum(clocks) / len(clocks)),
    }
    if not made.intervals:
        return line
    ends = made.intervals[index]
    slower = _between(ends.time_ratio_p05 - 1.0, ends.time_ratio_p95 - 1.0)
    saved = _between(1.0 - ends.energy_ratio_p95, 1.0 - ends.energy_ratio_p05)
    parts = list(line.items())
    return dict([*parts[:4], ("slower, 5-95 %", slower), parts[4], ("saved, 5-95 %", saved), parts[5]])


def _against(point: AnyPoint, fastest: AnyPoint) -> dict[str, float]:
    """Time and energy beside those of the fastest."""
    return {
        "slower [%]": round(100.0 * (point.time_s / fastest.time_s - 1.0), 2),
        "energy saved [%]": round(100.0 * (1.0 - point.energy_j / fastest.energy_j), 2),
    }


def _between(low: float, high: float) -> str:
    """A share's interval in per cent; empty for the plan with which others are compared."""
    return "" if low == high else f"{100.0 * low:.1f} to {100.0 * high:.1f}"


def _number_range(point: JobPoint | RankLimits, name: str) -> str:
    from joulecast.plan.limits.power_limits import interval_ends

    return output.ends_of(interval_ends(point), name)


def _levels(made: Front) -> list[str]:
    """How far time and energy of any plan may be off, in words."""
    found = []
    for word, name in QUANTITIES:
        pairs = [(getattr(p, name), i) for p, i in zip(made.points, made.intervals, strict=True)]
        low = min(getattr(i, f"{name}_p05") / value for value, i in pairs)
        high = max(getattr(i, f"{name}_p95") / value for value, i in pairs)
        found.append(f"{word} -{100.0 * (1.0 - low):.2g} to +{100.0 * (high - 1.0):.2g} %")
    return found


def _some(count: int) -> list[int]:
    """Places of at most :data:`LINES` of so many plans, with both ends."""
    return sorted({round(i * (count - 1) / max(LINES - 1, 1)) for i in range(LINES)})
