"""Collectives: volumes of a ring, thread blocks, latency and the network."""

import numpy as np
import pytest

from joulecast.errors import InputError
from joulecast.model.cluster.collectives import STEPS, CollectiveShapes, collective_work, copy_share
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Collective, Gemm
from joulecast.model.power.kernel_power import kernel_time_s
from joulecast.model.predict import predict_work
from joulecast.model.repeated_work import Work

SIZE = 256e6


def work(gpu, kind, *, size=SIZE, gpus=4, ctas=np.nan, domains=1, exit=np.inf, algorithm="ring", **others):
    """Work of collectives; ``exit`` is the rate out of one domain."""
    own = {"link_bytes_per_s": np.nan, "efficiency": 0.95, "step_latency_s": 7.8e-6, "delay": 1.0}
    values = {"bytes": size, "gpus": gpus, "ctas": ctas, "domains": domains, "exit_bytes_per_s": exit}
    values |= own | {"nvls": 0.0, "sharp": 0.0, "rows": 0.0} | others
    columns = np.broadcast_arrays(*(np.atleast_1d(np.asarray(v, dtype=float)) for v in values.values()))
    return collective_work(CollectiveShapes(**dict(zip(values, columns, strict=True))), kind, gpu, algorithm)


@pytest.fixture(scope="session")
def ring(h200):
    """The ring alone, without the copies at its ends."""
    return h200.with_values({"collective.link_copy_share": 0.0, "collective.cta_copy_share": 0.0})


@pytest.mark.parametrize(("kind", "steps"), [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)])
def test_volumes_of_a_ring(ring, kind, steps):
    gpus = np.array([2, 4, 8])
    bandwidth = ring["collective.link_share"] * ring.device["link_bandwidth_bytes_per_s"]
    moved = work(ring, kind, gpus=gpus).link_s * bandwidth
    assert moved == pytest.approx(SIZE * steps * (gpus - 1) / gpus)


def test_the_ends_of_the_ring_cost_a_copy(h200, ring):
    extra = work(h200, "all_reduce").link_s / work(ring, "all_reduce").link_s
    assert extra[0] == pytest.approx(1 + h200["collective.link_copy_share"] / 6)


def test_an_all_to_all_sends_every_part_straight_and_copies_its_own_beside(h200):
    gpus = np.array([2, 4, 8])
    found = work(h200, "all_to_all", gpus=gpus)
    rate = h200["collective.exchange_link_share"] * h200.device["link_bandwidth_bytes_per_s"]
    assert found.link_s * rate == pytest.approx(SIZE * (gpus - 1) / gpus)
    copied = found.link_bytes - SIZE * (gpus - 1) / gpus
    assert copied == pytest.approx(h200["collective.link_copy_share"] * SIZE / gpus)


@pytest.mark.parametrize(
    ("gpus", "size", "time_s"), [(2, 1 << 30, 1621e-6), (4, 1 << 28, 651.5e-6), (4, 1 << 30, 2404.5e-6)]
)
def test_all_to_alls_take_what_they_took(gpus, size, time_s):
    gpu = gpu_model(load_gpu("h200-sxm"))
    costs = lower([Collective("all_to_all", float(size), gpus)], gpu)
    assert kernel_time_s(costs, 1980.0, gpu)[0] == pytest.approx(time_s, rel=0.05)


def test_one_gpu_has_nothing_to_say(h200):
    alone = work(h200, "all_reduce", gpus=1)
    assert alone.link_s[0] == alone.cycles[0] == alone.link_bytes[0] == 0.0


def test_thread_blocks_copy_at_the_clock_until_the_link_binds(h200):
    ctas = np.array([2, 4, 8, 16, 32])
    operators = [Collective("all_reduce", SIZE, 4, ctas=int(c)) for c in ctas]
    costs = lower(operators, h200)
    time = kernel_time_s(costs, 1980.0, h200)
    assert time[0] / time[1] == pytest.approx(2.0, rel=0.05)  # copies bind
    assert time[3] / time[4] < 1.2  # the link does
    slower = kernel_time_s(costs, 990.0, h200)
    assert slower[0] / time[0] == pytest.approx(2.0, rel=0.05)
    assert slower[4] / time[4] < 1.4


def test_the_library_chooses_its_own_thread_blocks(h200):
    own, stated = work(h200, "all_reduce"), work(h200, "all_reduce", ctas=h200["collective.default_ctas"])
    assert own.cycles[0] == stated.cycles[0]


def test_latency_grows_with_the_ring(h200):
    fixed = work(h200, "all_reduce", gpus=np.array([2, 3, 4])).fixed_s
    assert np.diff(fixed) == pytest.approx(h200["collective.latency_per_gpu_s"])
    assert fixed[0] == pytest.approx(h200["collective.latency_s"] + h200["collective.latency_per_gpu_s"])


def test_bus_bandwidth_of_a_large_all_reduce(h200):
    time = kernel_time_s(lower([Collective("all_reduce", 1e9, 4)], h200), 1980.0, h200)[0]
    assert 300e9 < 1e9 * 2 * 3 / 4 / time < 450e9


def test_the_slower_kind_of_link_sets_the_pace(h200):
    """2(n − 1)/n of the buffer leaves each node of a ring, over the cards of all its members."""
    share = h200["collective.network_share"]
    near, slow, fast = work(
        h200, "all_reduce", gpus=np.array([8, 16, 16]), domains=np.array([1, 2, 2]), exit=np.array([1e9, 80e9, 4e12])
    ).link_s
    assert slow == pytest.approx(SIZE * 2 * 15 / 16 / share / 80e9)
    assert near < fast < 1.1 * near < slow  # the network keeps up: only the ring is longer


@pytest.mark.parametrize(
    ("kind", "algorithm", "leaving"),
    [
        ("all_reduce", "ring", 2 * 31 / 32),
        ("all_reduce", "tree", 2 / 0.9),
        ("all_reduce", "nvls", 2 * 3 / 4),
        ("all_reduce", "sharp", 1),
        ("all_gather", "ring", 31 / 32),
        ("reduce_scatter", "ring", 31 / 32),
        ("all_to_all", "ring", 8 * 24 / 32),
        ("send_recv", "ring", 1),
    ],
)
def test_what_leaves_a_node(h200, kind, algorithm, leaving):
    """32 ranks on 4 nodes behind so slow a network that nothing else counts."""
    found = work(h200, kind, gpus=32, domains=4, exit=1e9, algorithm=algorithm)
    assert found.link_s[0] * 1e9 * h200["collective.network_share"] == pytest.approx(leaving * SIZE)


def test_the_library_takes_the_fastest_algorithm(h200):
    """A ring is best within a node; across many nodes its steps cost more than a tree's; switches that reduce win."""

    def total(algorithm, **of):
        found = work(h200, "all_reduce", algorithm=algorithm, **of)
        return found.fixed_s[0] + max(found.link_s[0], found.cycles[0] / 1980e6)

    near, far = {"gpus": 8}, {"gpus": 512, "domains": 64, "exit": 400e9}
    assert total("auto", **near) == total("ring", **near) < total("tree", **near)
    assert total("auto", **far, size=1e6) == total("tree", **far, size=1e6) < 0.2 * total("ring", **far, size=1e6)
    reducing = far | {"nvls": 1.0, "sharp": 1.0, "size": 1e9}
    assert total("auto", **reducing) == total("sharp", **reducing) < total("auto", **far, size=1e9)


@pytest.mark.parametrize("domains", [2, 8, 64])
def test_large_all_reduces_go_around_a_ring(h200, domains):
    """A tree's bandwidth is below a ring's however many nodes there are; its few hops win for small messages."""
    far = {"gpus": 8 * domains, "domains": domains, "exit": 50e9}
    for size, taken in ((4e9, "ring"), (64e3, "tree")):
        chosen = work(h200, "all_reduce", algorithm="auto", size=size, **far)
        assert chosen.link_s[0] == work(h200, "all_reduce", algorithm=taken, size=size, **far).link_s[0]


def test_other_networks_scale_the_description(h200):
    slow = work(h200, "all_gather", gpus=64, domains=8, exit=400e9)
    worse = work(h200, "all_gather", gpus=64, domains=8, exit=400e9, efficiency=0.475, step_latency_s=15.6e-6)
    assert worse.link_s[0] == pytest.approx(2 * slow.link_s[0])


def test_an_exchange_reaches_no_more_of_the_network_than_it_was_seen_to(h200):
    """Steps that hide behind transfers let a ring have all of it; an exchange stays at 85 %."""
    network = h200.with_values({"collective.network_share": 1.0})
    far = {"gpus": 32, "domains": 4, "exit": 1e9}
    gathered, exchanged = (work(network, kind, **far).link_s[0] * 1e9 for kind in ("all_gather", "all_to_all"))
    assert gathered == pytest.approx(31 / 32 * SIZE)
    assert exchanged == pytest.approx(8 * 24 / 32 * SIZE / 0.85)


def test_the_networks_switches_reduce_nothing_within_a_domain(h200):
    near = {"gpus": 8, "sharp": 1.0}
    assert work(h200, "all_reduce", algorithm="auto", **near) == work(h200, "all_reduce", **near)


def test_latencies_of_steps_show_in_small_messages_only(h200):
    far = {"gpus": 64, "domains": 8, "exit": 400e9}
    small, larger = work(h200, "all_gather", **far, size=np.array([1e3, 1e9])).link_s
    step, near = h200["collective.network_latency_s"], h200["collective.latency_per_gpu_s"]
    assert small == pytest.approx(8 * 63 / 64 * step + 56 * near)
    assert larger == pytest.approx(1e9 * 63 / 64 / (0.85 * 400e9), rel=1e-3)
    assert work(h200, "all_gather", **far, size=1e3, step_latency_s=15.6e-6).link_s[0] > 1.3 * small


def test_energy_follows_the_bytes_on_the_link(h200):
    once, twice = lower([Collective("all_reduce", s, 4) for s in (SIZE, 2 * SIZE)], h200).link_j
    assert twice == pytest.approx(2 * once)


def test_an_unknown_collective_is_named(h200):
    with pytest.raises(InputError, match="all_redcue"):
        work(h200, "all_redcue")
    assert set(STEPS) >= {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_recv"}


def test_small_messages_wait_for_the_host(h200):
    """Launched one after another each takes the host's time; between other kernels it does not."""
    small, large = Collective("all_reduce", 65536, 4), Collective("all_reduce", SIZE, 4)
    alone, heavy = predict_work([Work((small,)), Work((large,))], h200, clock_mhz=1980.0).time_s
    assert alone == pytest.approx(h200["collective.host_launch_s"], rel=1e-6)
    assert heavy == pytest.approx(kernel_time_s(lower([large], h200), 1980.0, h200)[0], rel=1e-6)
    mixed = predict_work([Work((small, Gemm(512, 512, 512)))], h200, clock_mhz=1980.0).time_s[0]
    assert mixed < alone


def test_algorithms_of_an_all_reduce_differ_in_volume_and_in_hops(h200):
    def time_s(size: float, algorithm: str, gpus: int = 8) -> float:
        operator = Collective("all_reduce", size, gpus, algorithm=algorithm)
        return float(kernel_time_s(lower([operator], h200), 1980.0, h200)[0])

    assert time_s(1e9, "nvls") < time_s(1e9, "ring") < time_s(1e9, "tree")
    assert time_s(1e3, "nvls") < time_s(1e3, "tree", 64) < time_s(1e3, "ring", 64)
    assert time_s(1e9, "ring") / time_s(1e9, "nvls") == pytest.approx(1.3, abs=0.15)
    with pytest.raises(InputError, match="algorithm"):
        lower([Collective("all_gather", 1e9, 8, algorithm="nvls")], h200)


#: Eight GPUs of one node, 32 on four nodes, and four that are alone in theirs.
PLACES = {"gpus": np.array([8, 32, 4]), "domains": np.array([1, 4, 4])}


@pytest.mark.parametrize(
    ("algorithm", "copied", "linked", "leaving"),
    [
        ("tree", [2, 2, 2], [2, 2, 0], [0, 2 / 0.9 / 8, 2 / 0.9]),
        ("nvls", [1.125 / 0.8, 1.125 / 0.8 + 2 / 8, 2], [1.125 / 0.8, 1.125 / 0.8, 0], [0, 1.5 / 8, 1.5]),
        ("sharp", [1.125 / 0.8, 1.125 / 0.8 + 2 / 8, 2], [1.125 / 0.8, 1.125 / 0.8, 0], [0, 1 / 8, 1]),
    ],
)
def test_bytes_of_a_gpu_by_algorithm(h200, algorithm, copied, linked, leaving):
    """Over the buffer's: a switch takes and gives it, one eighth more for what a GPU sums, at four fifths of the rate.

    What goes on to other nodes is an eighth each, in and out.
    """
    found = work(h200, "all_reduce", algorithm=algorithm, exit=1e20, ctas=4, **PLACES)
    rate = 4 * h200["collective.bytes_per_cta_cycle"]
    assert found.cycles * rate / SIZE == pytest.approx(copied)
    assert found.link_bytes / SIZE == pytest.approx(np.add(linked, leaving))


@pytest.mark.parametrize(
    ("algorithm", "near", "far"),
    [("ring", [7, 28, 0], [0, 8 * 31 / 32, 8 * 3 / 4]), ("tree", [6, 14, 0], [0, 4, 4]),
     ("nvls", [1, 1, 1], [0, 4, 4]), ("sharp", [1, 1, 1], [0, 2, 2])],
)  # fmt: skip
def test_steps_of_an_all_reduce_by_algorithm(h200, algorithm, near, far):
    """A tree of eight has three levels up and three down, one of four nodes two; the network's switches have one."""
    found = work(h200, "all_reduce", size=1.0, algorithm=algorithm, exit=1e20, **PLACES)
    one, step = h200["collective.latency_per_gpu_s"], h200["collective.network_latency_s"]
    steps = one * np.array(near) + step * np.array(far)
    assert found.link_s[1:] == pytest.approx(steps[1:])
    assert found.fixed_s - h200["collective.latency_s"] == pytest.approx([steps[0], 7 * one, 0.0])


def test_blocks_of_fewer_threads_copy_in_proportion():
    assert [copy_share(threads) for threads in (None, 1024, 512, 256, 128)] == [1.0, 1.0, 1.0, 0.5, 0.25]
