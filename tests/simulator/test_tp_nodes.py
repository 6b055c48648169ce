"""Tensor parallelism beyond a node: bytes and seconds of what crosses the network, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from plan_tables import changed
from ways_agree import ways_agree

from joulecast.model.cluster.collectives import REFERENCE_EFFICIENCY
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Collective
from joulecast.plan.sweep.legal import combinations
from joulecast.plan.sweep.plans import Plans
from joulecast.plan.sweep.space import space_from_dict
from joulecast.simulator.instructions.program import plan_program
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict

GPU = gpu_model(load_gpu("h100-sxm"))
TP = "parallelism.tensor_model_parallel_size"


def tables(tp: int = 16, **changes: Any) -> dict[str, Any]:
    out: dict[str, Any] = {
        "workload": {"model": "gpt3-175b", "layers": 8, "sequence_length": 2048, "global_batch_size": 16},
        "cluster": {"gpu": "h100-sxm", "gpus": 32},
        "parallelism": {
            "tensor_model_parallel_size": tp,
            "pipeline_model_parallel_size": 2,
            "sequence_parallel": True,
        },
        "network": {"jitter": 0.0, "step_latency_us": 0.0},
        "implementation": {"framework": "megatron", "cuda_graphs": True},
    }
    return changed(out, changes)


def plan(tp: int = 16, **changes: Any) -> Plan:
    return plan_from_dict(tables(tp, **changes))


def collectives(one: Plan) -> dict[str, Collective]:
    """Communication of the first stage's forward and backward by name."""
    launches = [x for kind in plan_program(one).ranks[0].types[:2] for x in kind]
    return {x.operator.name: x.operator for x in launches if isinstance(x.operator, Collective)}


def test_a_gathering_of_two_nodes_leaves_each_by_its_eight_cards():
    """15/16 of the tensor out of each node, over 8 cards of 50 GB/s."""
    gather = collectives(plan())["qkv.all_gather"]
    size = 2048 * 12288 * 2.0
    assert (gather.gpus, gather.bytes, gather.fabric and gather.fabric.domains) == (16, size, 2)
    share = GPU["collective.network_share"] * plan().cluster.links.efficiency / REFERENCE_EFFICIENCY
    costs = lower([gather], GPU)
    assert costs.link_s[0] == pytest.approx(size * 15 / 16 / (share * 8 * 50e9))
    assert costs.fixed_s[0] == GPU["collective.latency_s"] + 7 * GPU["collective.latency_per_gpu_s"]


def test_steps_carry_between_nodes_what_one_collective_does():
    """Fifteen steps of a sixteenth each, over all cards of a node."""
    whole, steps = collectives(plan())["qkv.all_gather"], collectives(plan(overlap__tp_comm=True))
    step = steps["qkv.all_gather.step"]
    assert step.copy_engine and step.bytes == whole.bytes / 16
    costs = lower([whole, step], GPU)
    assert 15 * costs.link_s[1] == pytest.approx(costs.link_s[0])
    one_card = lower([replace(step, kind="ring_step")], GPU)
    assert one_card.link_s[0] == pytest.approx(8 * costs.link_s[1])
    assert steps["qkv.input.all_gather"].kind == "all_gather"  # beside a whole product: as it was


def test_it_is_slow_and_the_forecast_says_why():
    """Eight cards of 50 GB/s carry as much as an H100's links, half of what a B200's do."""
    times = {
        "one node": forecast(plan(16, cluster__gpu="b200", cluster__gpus_per_node=16), must_fit=False),
        "two": forecast(plan(cluster__gpu="b200"), must_fit=False),
        "in steps": forecast(plan(cluster__gpu="b200", overlap__tp_comm=True), must_fit=False),
        "slow": forecast(plan(cluster__gpu="b200", network__nic_gbit_per_s=100.0), must_fit=False),
    }
    assert 1.03 * times["one node"].time_s < times["two"].time_s < 0.6 * times["slow"].time_s
    assert times["in steps"].time_s < times["two"].time_s
    exposed = {name: it.ranks[0].exposed_communication_s for name, it in times.items()}
    assert exposed["one node"] < exposed["two"] and exposed["in steps"] < exposed["two"]
    said = [any("tensor-parallel ranks lie on 2 nodes" in x for x in times[n].assumptions) for n in ("one node", "two")]
    assert said == [False, True]


@pytest.mark.parametrize(("tp", "sequence_parallel", "share"), [(8, False, 8), (16, False, 8), (16, True, 16)])
def test_each_node_is_sent_a_stages_whole_output(tp: int, sequence_parallel: bool, share: int):
    """Ranks of one node then hold all of it between them; with sequence parallelism each needs a share."""
    one = plan(tp, parallelism__sequence_parallel=sequence_parallel)
    assert plan_program(one).transfers[0].bytes == 2048 * 12288 * 2 / share


@pytest.mark.parametrize("steps", [False, True])
def test_the_closed_form_agrees(steps: bool):
    one = plan(overlap__tp_comm=steps)
    ways_agree(one, time=0.02, must_fit=False)


def test_a_sweep_of_all_sizes_stays_within_nodes_and_a_list_does_not():
    def sizes(offered: Any) -> set[int]:
        space = space_from_dict({**tables(offered), "objective": {"minimise": "time"}})
        found = combinations(space, Plans(space))
        return {found.of(i)[TP] for i in range(len(found))}

    assert sizes("all") == {1, 2, 4, 8}
    assert sizes([8, 16, 64]) == {8, 16}
