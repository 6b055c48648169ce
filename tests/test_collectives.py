"""Collectives: volumes of a ring, thread blocks, latency and the network."""

import numpy as np
import pytest

from joulecast.errors import InputError
from joulecast.model.collectives import STEPS, CollectiveShapes, collective_work
from joulecast.model.lowering import lower
from joulecast.model.operators import Collective, Gemm
from joulecast.model.power import kernel_time_s
from joulecast.model.predict import Work, predict_work

SIZE = 256e6


def work(gpu, kind, *, size=SIZE, gpus=4, ctas=np.nan, nodes=1, network=50e9):
    columns = np.broadcast_arrays(*(np.asarray(v, dtype=float) for v in (size, gpus, ctas, nodes, network)))
    return collective_work(CollectiveShapes(*(np.atleast_1d(column) for column in columns)), kind, gpu)


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


def test_a_network_between_nodes_slows(h200):
    near, far, faster = work(
        h200, "all_reduce", gpus=np.array([8, 16, 16]), nodes=np.array([1, 2, 2]), network=np.array([50e9, 50e9, 100e9])
    ).fixed_s
    assert far > faster > near
    # Each of 8 GPUs of a node carries its eighth: S/8 · 2·(2-1)/2 over the network.
    share = h200["collective.network_share"]
    assert far - faster == pytest.approx(SIZE / 8 / share * (1 / 50e9 - 1 / 100e9))


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
