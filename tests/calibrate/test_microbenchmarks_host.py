"""The pace of a host's launches: the program that measures it, on CPU tensors, and what it is divided by."""

import math
from types import SimpleNamespace

import pytest

from joulecast.calibrate.microbenchmarks import host_pace


@pytest.fixture
def torch(monkeypatch):
    """PyTorch, for a model of one layer."""
    monkeypatch.setattr(host_pace, "LAYERS", 1)
    monkeypatch.setattr(host_pace, "TOKENS", 16)
    return pytest.importorskip("torch")


def test_the_program_trains(torch):
    torch.manual_seed(0)
    iterate = host_pace.iteration(torch, torch.device("cpu"))
    losses = [iterate().item() for _ in range(15)]
    assert losses[0] == pytest.approx(math.log(host_pace.VOCABULARY), abs=0.5)
    assert losses[-1] < losses[0]


def test_a_launch_takes_its_share_of_an_iteration(torch):
    found = host_pace.host_launches_s(torch, torch.device("cpu"), seconds=0.02)
    assert len(found) == host_pace.READINGS and all(1e-7 < one < 1e-2 for one in found)


def test_the_time_for_a_launch_is_that_of_an_iteration_over_its_launches(monkeypatch):
    clock, pace = [0.0], [0.003]

    def iterate():
        clock[0] += pace[0]
        pace[0] = 0.003 if clock[0] < 3.0 else 0.004

    monkeypatch.setattr(host_pace, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(host_pace, "iteration", lambda torch, device: iterate)
    found = host_pace.host_launches_s(None, SimpleNamespace(type="cpu"))
    assert min(found) == pytest.approx(0.003 / host_pace.launches())
    assert max(found) == pytest.approx(0.004 / host_pace.launches())


def test_launches_are_those_of_layers_and_ends(monkeypatch):
    """Traces of such layers have 61 kernels each, some of which fill or copy few bytes."""
    many = host_pace.launches()
    monkeypatch.setattr(host_pace, "LAYERS", 4)
    assert 40 < (many - host_pace.launches()) / 4 < 62
