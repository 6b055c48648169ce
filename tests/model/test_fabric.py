"""What a group of ranks has of a cluster's links, and which links a GPU's usual node has."""

from dataclasses import replace
from itertools import pairwise

import pytest

from joulecast.errors import InputError
from joulecast.model.cluster.extremes import slowest_of, spread_of_slowest
from joulecast.model.cluster.fabric import ClusterLinks, Fabric, fabric_of
from joulecast.model.cluster.links import LinkChoices, _links, cluster_links, usual_node
from joulecast.model.framework.placed import placed
from joulecast.model.hardware.catalogue import gpu_names, load_gpu, load_node, node_names
from joulecast.model.kernels.operators import Collective


def links(gpu="h100-sxm", gpus=1024, node=None, **choices):
    return cluster_links(load_gpu(gpu), node, gpus, LinkChoices(jitter=0.0, **choices))


@pytest.mark.parametrize(
    ("members", "stride", "domains", "exit_gb_per_s"),
    [
        (8, 1, 1, None),  # a tensor-parallel group fills a node
        (4, 2, 1, None),
        (16, 1, 2, 400),  # a data-parallel group of two whole nodes has all their cards
        (16, 4, 8, 100),  # two members a node have two cards
        (16, 8, 16, 50),  # one member a node has its own card
        (2, 64, 2, 50),  # a pipeline's neighbours
    ],
)
def test_groups_in_the_order_of_megatron(members, stride, domains, exit_gb_per_s):
    fabric = fabric_of(members, stride, links())
    assert fabric.domains == domains
    if exit_gb_per_s is None:
        assert fabric == Fabric()
    else:
        assert fabric.exit_bytes_per_s == pytest.approx(exit_gb_per_s * 1e9)


@pytest.mark.parametrize(("members", "stride", "domains"), [(3, 1, 2), (6, 1, 2), (2, 3, 2), (12, 1, 3), (2, 4, 1)])
def test_groups_that_do_not_fill_nodes_lie_across_them(members, stride, domains):
    """Of groups of three on nodes of eight the third begins in one node and ends in the next."""
    assert fabric_of(members, stride, links()).domains == domains


def test_gpus_fill_racks_evenly():
    """120 GPUs take 60 of two racks each, not 40 of three; 73 cannot be spread evenly."""
    assert [links("gb200", gpus=gpus).domain_gpus for gpus in (64, 120, 144, 73)] == [64, 60, 72, 72]
    # Half a rack and one are the fewest that it is worth to fill alike: 74 lie in two halves, 75 not in three thirds.
    assert [links("gb200", gpus=gpus).domain_gpus for gpus in (74, 75)] == [37, 72]


def test_a_rack_is_one_domain():
    rack = links("gb200", gpus=64)
    assert fabric_of(64, 1, rack).domains == 1
    assert links("gb200", gpus=256).domain_gpus == 64  # 256 GPUs fill four racks evenly with 64 of 72
    assert fabric_of(32, 8, links("gb200", gpus=256)).domains == 4


def test_members_share_the_cards_of_their_node():
    """All GPUs of a node communicate at once, so that a group has as large a part of its cards as of its GPUs."""
    assert fabric_of(2, 8, links()).exit_bytes_per_s == pytest.approx(50e9)
    few = links(nics_per_node=2)
    assert fabric_of(2, 8, few).exit_bytes_per_s == pytest.approx(12.5e9)
    assert fabric_of(8, 2, few).exit_bytes_per_s == pytest.approx(4 * 12.5e9)


def test_nothing_leaves_a_node():
    """No step to wait for, at no other node's pace, and a way out that never binds."""
    within = fabric_of(8, 1, links())
    assert (within.domains, within.step_latency_s, within.delay, within.exit_bytes_per_s) == (1, 0.0, 1.0, float("inf"))


def test_links_of_which_no_more_is_said_are_even_and_wide():
    """No jitter, all that a leaf takes in goes out, and no switch reduces; a plan's usual jitter is 3 %."""
    plain = ClusterLinks(8, None, None, 8.0, 5e10, 0.9, 8e-6, 1e-6, leaf_gpus=64.0, fan_out=32.0)
    far = fabric_of(16, 8, plain)
    assert (far.delay, far.exit_bytes_per_s, far.nvls, far.sharp) == (1.0, 5e10, False, False)
    assert LinkChoices().jitter == 0.03


def test_switches_above_the_leaves_cost_hops_and_may_be_thin():
    """32 nodes hang on a rail of 64 ports; more take a second level."""
    near, far = (fabric_of(n, 8, links(gpus=8192, oversubscription=2.0)) for n in (32, 64))
    assert near.step_latency_s == links(gpus=8192).step_latency_s
    assert near.exit_bytes_per_s == pytest.approx(50e9)
    assert far.exit_bytes_per_s == pytest.approx(near.exit_bytes_per_s / 2)
    assert far.step_latency_s == pytest.approx(near.step_latency_s + 2 * 2.5e-7)
    without = fabric_of(32, 8, links(gpus=8192, oversubscription=2.0, rails=1))
    assert without.exit_bytes_per_s == pytest.approx(far.exit_bytes_per_s)  # a leaf then joins four nodes


def test_each_level_of_a_fat_tree_joins_as_many_switches_as_one_has_ports_down():
    """Leaves of 32 ports down join 256 GPUs over eight rails, a level above them 8,192, a second one 262,144."""
    steps = [fabric_of(nodes, 8, links(gpus=8 * nodes)).step_latency_s for nodes in (32, 33, 1024, 1025)]
    hops = [round((step - steps[0]) / (2 * 2.5e-7), 6) for step in steps]
    assert hops == [0, 1, 1, 2]


def test_the_slowest_of_ever_more_is_ever_slower():
    """Extremes of normal values: 0.56 of two, 1.42 of eight, 3.24 of a thousand; rounding hides none of the largest."""
    assert [slowest_of(n) for n in (1, 2, 8, 1000)] == pytest.approx([0, 0.564, 1.42, 3.24], abs=0.03)
    many = [slowest_of(10**n) for n in range(18)]
    assert all(b > a for a, b in pairwise(many)) and many[-1] < 9.0


def test_the_slowest_of_more_is_surer():
    """Standard deviations of extremes of normal values: Tippett 1925."""
    assert [spread_of_slowest(n) for n in (1, 2, 10, 1000)] == pytest.approx([1.0, 0.8256, 0.5868, 0.3514], abs=2e-3)


def test_the_slowest_of_many_transfers_delays_the_step():
    wide = replace(links(gpus=8192), jitter=0.05)
    few, many = (fabric_of(n, 8, wide).delay for n in (2, 1024))
    assert 1.0 < few < many
    assert many == pytest.approx(1 + 0.05 * 3.24, rel=0.01)  # the largest of 1024 normal values lies 3.24 sd out


def test_a_mesh_gives_a_pair_one_link():
    """MI300X: seven links of 64 GB/s, one to each other GPU."""
    mesh = links("mi300x", gpus=8)
    assert fabric_of(2, 1, mesh).link_bytes_per_s == pytest.approx(64e9)
    assert fabric_of(8, 1, mesh).link_bytes_per_s == pytest.approx(448e9)


def test_links_of_amd_join_pairs_in_a_mesh():
    """MI210: three links of 50 GB/s; a pair of GPUs has one of them, not the 150 GB/s of all."""
    assert usual_node(load_gpu("mi210")) is None
    assert fabric_of(2, 1, links("mi210", gpus=4)).link_bytes_per_s == pytest.approx(50e9)
    assert fabric_of(4, 1, links("mi210", gpus=4)).link_bytes_per_s == pytest.approx(150e9)
    # The two halves of an MI250X have all four links of each other's; its neighbours two or one.
    assert fabric_of(2, 1, links("mi250x-gcd", gpus=8)).link_bytes_per_s is None


def test_a_faster_card_of_the_same_links_shares_them_alike():
    """MI350X and MI355X: seven links of 76.8 GB/s each."""
    slow, fast = (fabric_of(2, 1, links(name, gpus=8)) for name in ("mi350x", "mi355x"))
    assert slow.link_bytes_per_s == fast.link_bytes_per_s == pytest.approx(76.8e9)


def test_usual_nodes_exist_and_hold_that_gpu():
    found = {name: usual_node(load_gpu(name)) for name in gpu_names()}
    assert found["h200-sxm-rows"] == found["h200-sxm"] == "hgx-h200"
    assert found["rtx-4090"] is None
    for name, node in found.items():
        if node is not None:
            assert node in node_names()
            own = load_gpu(name).number("link_bandwidth_bytes_per_s")
            assert load_node(node)["link_bandwidth_bytes_per_s"] == own


def test_a_card_without_a_usual_node_stands_with_seven_others():
    plain = links("rtx-4090", gpus=16)
    assert (plain.domain_gpus, plain.nics_per_domain, plain.link_bytes_per_s) == (8, 8, None)


def test_a_network_that_leaves_out_ports_and_overhead():
    """64 ports, half of them downwards, and 6 us of the library's in each step."""
    network = {
        "latency_s": 2e-6, "nic_bandwidth_bytes_per_s": 5e10, "bandwidth_efficiency": 0.9, "hop_latency_s": 1e-6,
    }  # fmt: skip
    found = _links(None, None, 8, 4.0, network, 64, LinkChoices())
    assert found.step_latency_s == pytest.approx(8e-6)
    # Four cards of a node go to four leaf switches, each of which takes a card of 32 nodes.
    assert (found.fan_out, found.leaf_gpus) == (32.0, 256.0)
    assert (found.oversubscription, found.nvls, found.sharp) == (1.0, False, False)
    assert ClusterLinks(8, None, None, 8.0, 5e10, 0.9, 7e-6, 1e-6, 64.0, 32.0).oversubscription == 1.0


def test_nonsense_is_refused():
    with pytest.raises(InputError, match="0 ranks"):
        fabric_of(0, 1, links())


def test_all_reduces_alone_have_a_choice_and_only_where_the_links_leave_one():
    near, switched, far = Fabric(link_bytes_per_s=1e10), Fabric(nvls=True), Fabric(domains=2)
    for kind, choices in (("all_reduce", ["ring", "auto", "auto"]), ("all_gather", ["ring"] * 3)):
        found = [placed(Collective(kind, 1e6, 4), fabric) for fabric in (near, switched, far)]
        assert [one.algorithm for one in found] == choices
        assert [one.fabric for one in found] == [near, switched, far]
