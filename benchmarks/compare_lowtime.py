"""Our plans against lowtime's, evaluated with the measured times and energies of the same profile.

``python benchmarks/compare_lowtime.py FOLDER`` takes the folder of the measured stage profiles, installs lowtime 0.3.0
into a temporary environment, lets it plan, and compares at the time of each of its plans with our plan that fits.
``--large`` adds PP8 x 32, which takes lowtime one to many minutes a profile. ``--plans FOLDER`` keeps its plans there.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import numpy as np

from joulecast.plan.exact.exact_front import exact_front
from joulecast.plan.exact.front import Front
from joulecast.plan.fronts.profile_front import problem_from_profile

LOWTIME = "lowtime==0.3.0"
PROFILES = (("stage_profile_gpt3-175b_a100-sxm.csv", 83.64), ("stage_profile_bloom_a40.csv", 70.4))
SMALL, LARGE = (((0, 1, 2, 7), 8), (tuple(range(8)), 8)), ((tuple(range(8)), 32),)


def main() -> int:
    """Compare; the exit status is 1 where a plan of lowtime's is better than ours at its time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--plans", type=Path)
    asked = parser.parse_args()
    worse = 0
    with tempfile.TemporaryDirectory() as scratch:
        python = environment(Path(scratch))
        kept = asked.plans or Path(scratch)
        kept.mkdir(parents=True, exist_ok=True)
        for name, wait_w in PROFILES:
            for stages, microbatches in SMALL + (LARGE if asked.large else ()):
                out = kept / f"{Path(name).stem}-{len(stages)}x{microbatches}.json"
                if not out.is_file():
                    listed = ",".join(map(str, stages))
                    script = Path(__file__).with_name("lowtime_plans.py")
                    arguments = [asked.folder / name, listed, microbatches, wait_w, out]
                    subprocess.run([python, script, *map(str, arguments)], check=True)
                worse += compare(asked.folder / name, stages, microbatches, wait_w, json.loads(out.read_text()))
    return int(worse > 0)


def environment(folder: Path) -> Path:
    """Interpreter of a new environment with lowtime."""
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", LOWTIME], check=True)
    return python


def compare(path: Path, stages: tuple[int, ...], microbatches: int, wait_w: float, theirs: dict[str, object]) -> int:
    """Print how far lowtime's plans lie above ours and above the bound; returns how many are better than ours."""
    problem = problem_from_profile(path, microbatches=microbatches, wait_power_w=wait_w, stages=stages)
    front = exact_front(problem)
    time_s, energy_j = np.array([evaluated(front, path, stages, wait_w, plan) for plan in theirs["plans"]]).T
    ours = np.array([energy_at(front, t) for t in time_s])
    bound = np.array([front.bound_j(t) for t in time_s])
    inside = time_s <= front.lower_bound[0][-1]
    above = 100.0 * (energy_j / ours - 1.0)
    print(
        f"{path.name} PP{len(stages)} x {microbatches}: {len(time_s)} plans of lowtime in {theirs['seconds']:.1f} s; "
        f"above the lower bound {mean_gap(energy_j, bound, inside):.2f} %, ours at their times "
        f"{mean_gap(ours, bound, inside):.2f} %; above ours {above.min():.3f} % at least, {above.mean():.2f} % on "
        f"average; {int((above < 0).sum())} below ours"
    )
    return int((above < 0).sum())


def mean_gap(energy_j: np.ndarray, bound_j: np.ndarray, inside: np.ndarray) -> float:
    """Mean distance to the bound up to the energy-best time [%]."""
    return float(100.0 * (energy_j / bound_j - 1.0)[inside].mean())


def energy_at(front: Front, time_s: float) -> float:
    """Least energy of our plans that take no longer [J]."""
    return min((p.energy_j for p in front.points if p.time_s <= time_s * (1.0 + 1e-12)), default=float("inf"))


def evaluated(
    front: Front, path: Path, stages: tuple[int, ...], wait_w: float, plan: list[list[float]]
) -> tuple[float, float]:
    """Time and energy of a plan with the measured rows: earliest starts, and waiting until the slowest stage ends."""
    rows = measured(path)
    dag = front.problem.dag
    flat = [
        rows[stages[r], i.kind, f] for r, order in enumerate(dag.ranks) for i, f in zip(order, plan[r], strict=True)
    ]
    needs: list[list[int]] = [[] for _ in flat]
    for u, v in zip(dag.source.tolist(), dag.target.tolist(), strict=True):
        needs[v].append(u)
    end = [0.0] * len(flat)
    for v in dag.order.tolist():
        end[v] = max((end[u] for u in needs[v]), default=0.0) + flat[v][0]
    time_s = max(end)
    busy = sum(t for t, _ in flat)
    return time_s, sum(e for _, e in flat) + wait_w * (len(stages) * time_s - busy)


def measured(path: Path) -> dict[tuple[int, str, float], tuple[float, float]]:
    """Time and energy of every stage, instruction and clock."""
    if path not in _ROWS:
        with path.open(encoding="utf-8") as file:
            _ROWS[path] = {
                (int(r["stage"]), r["instruction"], float(r["frequency"])): (float(r["time"]), float(r["energy"]))
                for r in csv.DictReader(file)
            }
    return _ROWS[path]


_ROWS: dict[Path, dict[tuple[int, str, float], tuple[float, float]]] = {}

if __name__ == "__main__":
    sys.exit(main())
