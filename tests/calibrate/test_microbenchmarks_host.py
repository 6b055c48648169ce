"""The pace of a host's launches: the program that measures it, on CPU tensors, and what it is divided by."""

import math

import pytest

torch = pytest.importorskip("torch")

from joulecast.calibrate.microbenchmarks import host_pace  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(host_pace, "LAYERS", 1)
    monkeypatch.setattr(host_pace, "TOKENS", 16)


def test_the_program_trains(small):
    torch.manual_seed(0)
    iterate = host_pace.iteration(torch, CPU)
    losses = [iterate().item() for _ in range(15)]
    assert losses[0] == pytest.approx(math.log(host_pace.VOCABULARY), abs=0.5)
    assert losses[-1] < losses[0]


def test_a_launch_takes_its_share_of_an_iteration(small):
    assert 1e-7 < host_pace.host_launch_s(torch, CPU, seconds=0.02) < 1e-2


def test_launches_are_those_of_layers_and_ends(monkeypatch):
    """Traces of such layers have 61 kernels each, some of which fill or copy few bytes."""
    many = host_pace.launches()
    monkeypatch.setattr(host_pace, "LAYERS", 4)
    assert 40 < (many - host_pace.launches()) / 4 < 62
