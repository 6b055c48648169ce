"""What the user says beside the job's own files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from joulecast.model.architecture.hf import load_model
from joulecast.model.architecture.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user says beside the job's own files.

    Attributes
    ----------
    gpu, gpus
        Catalogue name or path of the GPU, and how many there are.
    model
        Catalogue name, or path of a ``config.json``, in place of the job's own sizes.
    power_limit_w
        Of each GPU [W].
    environment
        Variables that the job's environment sets.
    passed_over
        Flags of the user's own, which are not asked about.
    counted
        What says how many GPUs there are.
    """

    gpu: str | None = None
    gpus: int | None = None
    model: str | None = None
    power_limit_w: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    passed_over: frozenset[str] = frozenset()
    counted: str = "--gpus"

    def named_model(self) -> ModelConfig:
        """The model that is named."""
        return load_model(self.model or "")
