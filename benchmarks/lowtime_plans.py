"""Plans of lowtime for a measured profile, written as JSON; runs in an environment with lowtime, without Joulecast.

``python lowtime_plans.py PROFILE STAGES MICROBATCHES WAIT_POWER OUT``: options, cost model and graph as in the example
that Zeus ships for its pipeline frequency optimizer, with its defaults (1 ms units, noise factor 0.95).
"""

from __future__ import annotations

import csv
import json
import sys
import time
import warnings
from itertools import pairwise
from pathlib import Path

import networkx
from lowtime.cost_model import ExponentialModel
from lowtime.graph_utils import add_sink_node, add_source_node
from lowtime.operation import CandidateExecutionOptions, ExecutionOption, OperationSpec
from lowtime.perseus.instruction import Backward, Forward
from lowtime.perseus.schedule import Synchronous1F1B
from lowtime.solver import PhillipsDessouky

UNIT_S, NOISE_FACTOR = 1e-3, 0.95
NAMES = {Forward: "forward", Backward: "backward"}
SOURCE, SINK = 0, 1


def specification(rows: list[dict[str, str]], wait_power_w: float) -> OperationSpec:
    options = []
    for row in rows:
        option = ExecutionOption(
            real_time=float(row["time"]), unit_time=UNIT_S, cost=float(row["energy"]), knob=float(row["frequency"])
        )
        option.cost -= wait_power_w * option.quant_time * option.unit_time
        options.append(option)
    candidates = CandidateExecutionOptions(options=options)
    if len(candidates.options) <= 3:
        candidates = CandidateExecutionOptions(options=options, noise_factor=NOISE_FACTOR)
    return OperationSpec(options=candidates, cost_model=ExponentialModel(candidates, search_strategy="best"))


def main(profile: str, stages: str, microbatches: str, wait_power: str, out: str) -> None:
    along = [int(stage) for stage in stages.split(",")]
    with Path(profile).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    graph = networkx.DiGraph()
    node_of: dict[tuple[str, int, int], int] = {}
    orders = []
    for rank, stage in enumerate(along):
        mine = [row for row in rows if int(row["stage"]) == stage]
        specs = {
            kind: specification([row for row in mine if row["instruction"] == name], float(wait_power))
            for kind, name in NAMES.items()
        }
        order = list(
            Synchronous1F1B(
                num_stages=len(along), num_micro_batches=int(microbatches), stage_id=rank, operation_spec_map=specs
            )
        )
        for instruction in order:
            key = (NAMES[type(instruction)], rank, instruction.micro_batch_id)
            node_of[key] = len(node_of) + 2
            graph.add_node(node_of[key], op=instruction)
        keys = [(NAMES[type(i)], rank, i.micro_batch_id) for i in order]
        graph.add_edges_from((node_of[a], node_of[b]) for a, b in pairwise(keys))
        orders.append(order)
    for (name, rank, microbatch), node in node_of.items():
        before = (name, rank - 1 if name == "forward" else rank + 1, microbatch)
        if before in node_of:
            graph.add_edge(node_of[before], node)
    add_source_node(graph, SOURCE)
    add_sink_node(graph, SINK)
    graph.graph |= {"source_node": SOURCE, "sink_node": SINK}
    start = time.perf_counter()
    plans = [[[i.assigned_knob for i in order] for order in orders] for _ in PhillipsDessouky(graph).run()]
    Path(out).write_text(json.dumps({"seconds": time.perf_counter() - start, "plans": plans}), encoding="utf-8")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
