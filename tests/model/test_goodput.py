"""What failures and checkpoints cost a run."""

import random
from math import exp

import pytest

from joulecast.model.cluster.goodput import goodput

HOUR = 3600.0


def simulated(nodes, mtbf_s, checkpoint_s, restart_s, apart_s, failures=20_000):
    """Work done over time, failure by failure: what follows the last checkpoint is lost."""
    rng, period = random.Random(1), apart_s + checkpoint_s
    time = work = 0.0
    for _ in range(failures):
        left = rng.expovariate(nodes / mtbf_s)
        time += left
        work += max(0.0, left - restart_s) // period * apart_s
    return work / time


@pytest.mark.parametrize(
    ("nodes", "checkpoint", "restart"), [(128, 30.0, 600.0), (2048, 30.0, 300.0), (2048, 300.0, 900.0)]
)
def test_it_is_what_a_simulation_finds_and_the_best_interval(nodes, checkpoint, restart):
    mtbf = 6300.0 * HOUR
    found = goodput(nodes, mtbf, checkpoint, restart)
    best = (2.0 * checkpoint * mtbf / nodes) ** 0.5 - checkpoint
    assert found == pytest.approx(simulated(nodes, mtbf, checkpoint, restart, best), abs=0.01)
    for factor in (0.4, 2.5):
        assert simulated(nodes, mtbf, checkpoint, restart, factor * best) < found


def test_shares_by_hand():
    """A failure every 400 s: checkpoints of 2 s are best sqrt(2*2*400) - 2 = 38 s apart, those of 300 s 400 s apart."""
    assert goodput(1, 400.0, 2.0, 0.0) == pytest.approx(38.0 / 400.0 / (exp(40.0 / 400.0) - 1.0))
    assert goodput(4, 1600.0, 2.0, 100.0) == pytest.approx(38.0 / 400.0 / (exp(0.1) - 1.0) / exp(0.25))
    apart = (2.0 * 150.0 * 400.0) ** 0.5 - 150.0  # a checkpoint of just less than half the time between failures
    assert goodput(1, 400.0, 150.0, 0.0) == pytest.approx(apart / 400.0 / (exp((apart + 150.0) / 400.0) - 1.0))
    assert goodput(1, 400.0, 300.0, 0.0) == pytest.approx(1.0 / (exp(700.0 / 400.0) - 1.0))


def test_llama_3_trained_for_nine_tenths_of_its_time():
    """419 unexpected interruptions in 54 days of 2,048 nodes, and more than 90 % effective time: arXiv:2407.21783."""
    mtbf = 54 * 24 * HOUR * 2048 / 419
    assert 0.88 < goodput(2048, mtbf, 30.0, 300.0) < 0.95


def test_the_more_nodes_the_less():
    shares = [goodput(nodes, 5000.0 * HOUR, 60.0, 600.0) for nodes in (1, 8, 128, 1024, 8192, 10**6, 10**9)]
    assert shares == sorted(shares, reverse=True)
    assert 0.0 < shares[-1] < shares[0] < 1.0


def test_a_sweep_and_a_forecast_count_failures(tables):
    import joulecast as jc

    run = {"workload__training_tokens": 1e9, "objective__top": 1}
    plain, failing = (jc.sweep(tables(**run, **more)) for more in ({}, {"site__node_mtbf_hours": 100.0}))
    share = goodput(1, 100.0 * HOUR, 30.0, 600.0)
    for before, after in zip(plain.rows + plain.best, failing.rows + failing.best, strict=True):
        assert after["run_time_s"] == pytest.approx(before["run_time_s"] / share)
        assert after["run_money"] == pytest.approx(before["run_money"] / share)
