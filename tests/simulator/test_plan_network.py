"""The table ``[network]`` and the node type of a plan."""

import itertools

import numpy as np
import pytest
from paths import ROOT

import joulecast as jc
from joulecast.errors import InputError
from joulecast.model.cluster.extremes import slowest_of
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.power.limits import group_lag
from joulecast.simulator.fluid.prepared import lag_of, prepare
from joulecast.simulator.fluid.steady_state import fluid_program
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.assumptions import plan_assumptions
from joulecast.simulator.plan_file.gpu import gpu_of
from joulecast.simulator.plan_file.placement import data_fabric, stage_fabric, tensor_fabric
from joulecast.simulator.plan_file.plan import load_plan, plan_from_dict
from joulecast.simulator.schedules import build_schedule


def plan(network=None, gpus=64, **tables):
    cluster = {"gpu": "h100-sxm", "gpus": gpus} | tables.pop("cluster", {})
    split = {"tensor_model_parallel_size": 8, "pipeline_model_parallel_size": 2} | tables.pop("parallelism", {})
    work = {"model": "llama-3.1-8b", "sequence_length": 4096, "global_batch_size": 64}
    whole = {
        "workload": tables.pop("workload", work),
        "cluster": cluster,
        "parallelism": split,
    }
    return plan_from_dict(whole | ({"network": network} if network else {}) | tables, "PLAN.toml")


def test_defaults_come_from_the_usual_node():
    found = plan().cluster.links
    assert (found.domain_gpus, found.nics_per_domain, found.nic_bytes_per_s) == (8, 8, 50e9)
    assert (found.oversubscription, found.nvls, found.sharp) == (1.0, False, False)
    assert plan(cluster={"gpu": "gb300"}).cluster.gpus_per_node == 64  # all in one rack
    assert plan(cluster={"gpu": "a100-sxm-80gb"}).cluster.links.nic_bytes_per_s == 25e9


@pytest.mark.parametrize(
    ("key", "value", "attribute", "found"),
    [
        ("name", "infiniband-hdr", "nic_bytes_per_s", 25e9),
        ("nics_per_node", 4, "nics_per_domain", 4),
        ("nic_gbit_per_s", 200.0, "nic_bytes_per_s", 25e9),
        ("efficiency", 0.5, "efficiency", 0.5),
        ("step_latency_us", 20.0, "step_latency_s", 20e-6),
        ("rails", 1, "leaf_gpus", 32),
        ("oversubscription", 3.0, "oversubscription", 3.0),
        ("jitter", 0.0, "jitter", 0.0),
        ("nvls", True, "nvls", True),
        ("sharp", True, "sharp", True),
    ],
)
def test_every_key_reaches_the_links(key, value, attribute, found):
    assert getattr(plan({key: value}).cluster.links, attribute) == pytest.approx(found)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("name", "infiniband-hrd", "infiniband-hdr"),
        ("nics_per_node", 0, "above 0"),
        ("nic_gbit_per_s", -1.0, "above 0"),
        ("efficiency", 1.5, "less than or equal to 1"),
        ("step_latency_us", -1.0, "at least 0"),
        ("rails", 0, "above 0"),
        ("oversubscription", 0.5, "at least 1"),
        ("jitter", -0.1, "at least 0"),
        ("nvls", "yes", "true or false"),
        ("sharp", 1, "true or false"),
        ("oversubscripton", 2.0, "oversubscription"),
    ],
)
def test_wrong_values_name_file_key_and_remedy(key, value, says):
    with pytest.raises(InputError) as error:
        plan({key: value})
    assert error.value.file == "PLAN.toml"
    assert error.value.key == f"network.{key}"
    assert says in str(error.value)


def test_the_slowest_card_cannot_take_back_what_others_do():
    """Waiting lets faster boards run faster, not the slowest: its lag counts for more."""
    gpu = gpu_model(load_gpu("h200-sxm"))
    clocks, spread = np.array([1200.0]), gpu["governor.card_clock_spread"]
    one, several = (group_lag(clocks, 1, 64, gpu, between)[0] / slowest_of(64) for between in (0.0, 0.013))
    assert one == pytest.approx(spread)
    assert several == pytest.approx(np.hypot(spread, 0.013 / 0.7))


def test_boards_at_their_highest_clock_keep_in_step_and_below_they_wander():
    gpu = gpu_model(load_gpu("h200-sxm"))
    top = gpu.max_clock_mhz
    lag = group_lag(np.array([top, 0.975 * top, 0.95 * top, 0.5 * top]), 4, 1, gpu)
    assert lag[0] == 0.0
    assert 2 * lag[1] == pytest.approx(lag[2]) and lag[2] == lag[3] == pytest.approx(
        slowest_of(4) * gpu["governor.wander"]
    )


def test_locked_clocks_have_no_cliff_where_the_limit_begins_to_bind():
    """Boards that the limit spares hold a locked clock alike: nobody waits for the slowest as if all were throttled."""
    tables = {
        "workload": {"model": "llama-3.1-70b", "layers": 4, "global_batch_size": 4, "sequence_length": 4096},
        "cluster": {"gpu": "h200-sxm", "gpus": 4},
        "parallelism": {"tensor_model_parallel_size": 4},
        "power": {"power_limit_w": 600},
    }
    clocks = [f"power.clock_mhz={clock}" for clock in range(1380, 1621, 30)]
    times = [jc.predict(tables, [clock]).time_s for clock in clocks]
    assert all(faster < 1.01 * slower for slower, faster in itertools.pairwise(times))
    assert times[0] > 1.02 * times[-1]


def test_many_in_step_wait_no_longer_than_eight():
    """A swinging clock has bounds: no board of hundreds is as far below its mean as the extreme of a normal value."""
    gpu = gpu_model(load_gpu("h200-sxm"))
    eight, many = (group_lag(np.array([1200.0]), boards, 1, gpu)[0] for boards in (8, 2048))
    assert many == eight == pytest.approx(np.sqrt(2.0) * gpu["governor.wander"])
    assert many < 0.5 * slowest_of(2048) * gpu["governor.wander"]


def test_the_slowest_card_of_many_nodes_sets_the_pace():
    """Cards of several nodes differ more than those of one, and the slowest of more of them is slower."""
    one = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1}
    beside = {"grad_reduce": "overlapped"}

    def time_s(gpus, spread):
        work = {"model": "llama-3.1-8b", "sequence_length": 8192, "global_batch_size": 8 * gpus}
        cluster = {"node_clock_spread": spread, "gpu": "h200-sxm"}
        return forecast(plan(gpus=gpus, cluster=cluster, parallelism=one, workload=work, overlap=beside)).time_s

    few, many = (time_s(gpus, 0.02) / time_s(gpus, 0.0) - 1 for gpus in (16, 1024))
    assert 0.3 < few / (0.02 * 1.77) < 1.0  # the slowest of 16 lies 1.77 sd out; only the SMs' part of the time follows
    assert many / few == pytest.approx(3.24 / 1.77, rel=0.2)
    assert time_s(8, 0.0) == time_s(8, 0.02)  # within one node nothing changes


@pytest.mark.parametrize(
    ("value", "says"), [(-0.01, "at least 0"), (0.5, "less than or equal to 0.2"), ("x", "number")]
)
def test_a_wrong_spread_is_named(value, says):
    with pytest.raises(InputError, match=says) as error:
        plan(cluster={"node_clock_spread": value})
    assert error.value.key == "cluster.node_clock_spread"


def test_switches_that_cannot_reduce_are_refused():
    with pytest.raises(InputError, match="cannot reduce") as error:
        plan({"sharp": True, "name": "roce-400g"})
    assert error.value.key == "network.sharp"
    with pytest.raises(InputError, match="cannot reduce") as error:
        plan({"nvls": True}, cluster={"gpu": "a100-sxm-80gb"})
    assert error.value.key == "network.nvls"


def test_an_unknown_node_is_named():
    with pytest.raises(InputError, match="dgx-h100") as error:
        plan(cluster={"node": "dgx-h10"})
    assert error.value.key == "cluster.node"


def test_every_group_has_its_own_links():
    whole = plan()
    assert tensor_fabric(whole).domains == 1
    assert data_fabric(whole).domains == 4
    assert stage_fabric(whole, 0).domains == 2
    small = plan(gpus=16, parallelism={"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 8})
    assert [stage_fabric(small, r).domains for r in range(8)] == [1, 1, 1, 2, 1, 1, 1, 2]


def test_transfers_wait_for_the_links_that_they_cross():
    """Eight stages on two nodes: only between the fourth and the fifth, in both directions, and back to the first."""
    split = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 8}
    chosen = plan(gpus=16, parallelism=split, implementation={"framework": "megatron"})
    fluid = fluid_program(prepare(chosen, gpu_model(load_gpu("h100-sxm"))))
    edges = build_schedule("1f1b", 8, chosen.microbatches).edges
    far = {(3, 4), (4, 3)}
    crosses = [pair in far for pair in zip(edges.source_rank.tolist(), edges.target_rank.tolist(), strict=True)]
    slow = fluid.delay_s > 2 * fluid.delay_s.min()
    assert slow.tolist() == crosses


@pytest.mark.parametrize("network", [{"nics_per_node": 1}, {"nic_gbit_per_s": 50.0}, {"jitter": 0.9}])
def test_a_worse_network_takes_longer(network):
    base, worse = forecast(plan()), forecast(plan(network))
    assert worse.time_s > 1.02 * base.time_s
    assert worse.ranks[0].exposed_communication_s > base.ranks[0].exposed_communication_s


def test_oversubscription_counts_beyond_a_leaf_only():
    one = {"tensor_model_parallel_size": 8, "pipeline_model_parallel_size": 1}
    thin = {"oversubscription": 4.0}
    assert forecast(plan(thin, parallelism=one)).time_s == forecast(plan(parallelism=one)).time_s
    few = {"oversubscription": 4.0, "rails": 1}
    assert forecast(plan(few, parallelism=one)).time_s > forecast(plan(parallelism=one)).time_s


def test_a_forecast_says_which_network_it_assumes():
    work = {"model": "llama-3.1-8b", "sequence_length": 4096, "global_batch_size": 72}
    several, one = (
        forecast(plan(gpus=gpus, cluster={"gpu": "gb200"}, workload=work)).assumptions for gpus in (144, 48)
    )
    assert any("gb200-nvl72 (72 GPUs, 72 cards of 400 Gbit/s) on infiniband-ndr" in words for words in several)
    assert not any("infiniband" in words for words in one)


def test_reduction_in_the_switch_shortens_all_reduces():
    one = {"tensor_model_parallel_size": 8, "pipeline_model_parallel_size": 1}
    base, inside = (forecast(plan(network, gpus=8, parallelism=one)) for network in (None, {"nvls": True}))
    assert inside.ranks[0].exposed_communication_s < base.ranks[0].exposed_communication_s


def test_ranks_that_gather_every_layer_together_keep_step():
    """Wandering clocks slow sharded replicas as they slow a tensor-parallel group; whole replicas meet once a step."""
    gpu = gpu_model(load_gpu("h200-sxm"))
    clocks, split = np.array([1400.0]), {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1}
    whole, sharded = (lag_of(plan(gpus=4, parallelism=split | {"fsdp": on}), clocks, gpu)[0] for on in (False, True))
    assert whole == pytest.approx(slowest_of(4) * gpu["governor.card_clock_spread"])
    assert sharded - whole == pytest.approx(slowest_of(4) * gpu["governor.wander"])


@pytest.mark.parametrize(
    ("split", "together"),
    [
        ({"context_parallel_size": 2}, 4),
        ({"expert_model_parallel_size": 4}, 8),
        ({"context_parallel_size": 2, "expert_model_parallel_size": 4}, 8),
        ({"expert_model_parallel_size": 4, "expert_tensor_parallel_size": 1}, 4),
    ],
)
def test_ranks_that_share_a_sequence_or_experts_keep_step(split, together):
    """They wait for each other in every layer; replicas of both meet once a step."""
    gpu = gpu_model(load_gpu("h200-sxm"))
    sizes = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1, "sequence_parallel": True, **split}
    tables = {
        "cluster": {"gpus_per_node": 16},
        "parallelism": sizes,
        "workload": {"model": "mixtral-8x7b", "sequence_length": 4096, "global_batch_size": 64},
    }
    lag = lag_of(plan(gpus=16, **tables), np.array([1400.0]), gpu)[0]
    alone = slowest_of(16) * gpu["governor.card_clock_spread"]
    assert lag - alone == pytest.approx(min(slowest_of(together), np.sqrt(2.0)) * gpu["governor.wander"])


def test_a_node_type_of_other_gpus_is_refused_or_told(examples, tmp_path):
    plan = examples / "llama-3.1-8b-4xh200.toml"
    with pytest.raises(InputError, match="node type hgx-b200 holds b200, not h200-sxm") as caught:
        load_plan(plan, ["cluster.node=hgx-b200"])
    assert caught.value.key == "cluster.node"
    assert caught.value.remedy == "Leave it out for hgx-h200, or give the path of a node type of your own."

    def told(*settings):
        loaded = load_plan(plan, settings)
        return [note for note in plan_assumptions(loaded, gpu_of(loaded)) if "node type" in note]

    note = "price, links and power of node type hgx-h100 are those with h100-sxm, not h200-sxm"
    assert told("cluster.node=hgx-h100") == [note]
    assert told() == told("cluster.node=hgx-h200") == told("cluster.gpu=h200-sxm-rows", "cluster.node=hgx-h200") == []
    assert told("cluster.gpu=a100-sxm-40gb", "cluster.node=dgx-a100") == []
    shipped = ROOT / "model" / "catalogue_data"
    own_gpu, own_node = tmp_path / "gpu.toml", tmp_path / "node.toml"
    own_gpu.write_text((shipped / "gpus" / "h100-nvl.toml").read_text().replace('name = "h100-nvl"', 'name = "own"'))
    own_node.write_text((shipped / "nodes" / "hgx-b200.toml").read_text().replace('"hgx-b200"', '"mine"'))
    assert told(f"cluster.node={own_node}") == []
    assert told(f"cluster.gpu={own_gpu}", f"cluster.node={own_node}") == []
    assert len(told(f"cluster.gpu={own_gpu}", "cluster.node=hgx-h100")) == 1
