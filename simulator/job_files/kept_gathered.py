"""FSDP that keeps parameters gathered from the forward to the backward, as far as a plan has it."""

from __future__ import annotations

from joulecast.model.architecture.hf import load_model
from joulecast.simulator.job_files.draft import Draft

KEY = "parallelism.fsdp_reshard_after_forward"


def keep_gathered(draft: Draft, said: str, source: tuple[str, int | None]) -> None:
    """Put into the plan that parameters stay gathered; of models with experts, tell that it cannot say so."""
    model = draft.value("workload.model")
    if model is not None and load_model(model).experts is not None:
        draft.warn(
            f"{said}: parameters that stay gathered after the forward are not known of experts; the forecast gathers "
            "them again in the backward, in less memory"
        )
    else:
        draft.put(KEY, False, *source)
