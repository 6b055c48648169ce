"""Shared fixtures."""

from dataclasses import replace
from pathlib import Path

import pytest

from joulecast.threads import use_one_thread

use_one_thread()

from joulecast.model.catalogue import load_gpu  # noqa: E402
from joulecast.model.gpu_model import GpuModel, gpu_model  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def examples() -> Path:
    """The example plans."""
    return ROOT / "examples"


@pytest.fixture(scope="session")
def data() -> Path:
    """The measured rows, which lie beside the repository and are not part of it."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no measured data in {folder}")
    return folder


@pytest.fixture(scope="session")
def h200() -> GpuModel:
    """The numbers of the shipped H200, without uncertainty."""
    return replace(gpu_model(load_gpu("h200-sxm-rows")), description=None)
