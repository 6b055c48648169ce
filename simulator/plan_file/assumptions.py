"""What a forecast takes for granted of a plan, of each of its parts."""

from __future__ import annotations

from joulecast.model.hardware.description import GpuDescription
from joulecast.model.training.factors import foreign_generation
from joulecast.simulator.plan_file.attention import attention_assumptions
from joulecast.simulator.plan_file.deterministic import deterministic_assumptions
from joulecast.simulator.plan_file.documents import document_assumptions
from joulecast.simulator.plan_file.experts import expert_assumptions
from joulecast.simulator.plan_file.images import image_assumptions
from joulecast.simulator.plan_file.layer_assumptions import layer_assumptions
from joulecast.simulator.plan_file.lora import lora_assumptions
from joulecast.simulator.plan_file.loss_and_optimizer import optimizer_assumptions
from joulecast.simulator.plan_file.muon import muon_assumptions
from joulecast.simulator.plan_file.narrow import narrow_assumptions
from joulecast.simulator.plan_file.network import network_assumptions, node_assumptions
from joulecast.simulator.plan_file.overlap import overlap_assumptions
from joulecast.simulator.plan_file.pairs import pair_assumptions
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.plan_file.power import limit_assumptions
from joulecast.simulator.plan_file.prediction import prediction_assumptions
from joulecast.simulator.plan_file.recomputation import recomputation_assumptions
from joulecast.simulator.plan_file.site import site_assumptions
from joulecast.simulator.plan_file.stored import stored_assumptions


def plan_assumptions(plan: Plan, description: GpuDescription) -> tuple[str, ...]:
    """What is taken for granted of a plan on a GPU, one sentence each."""
    return (
        *foreign_generation(plan.implementation.generation, description),
        *limit_assumptions(description, [plan.power.limit_w(stage) for stage in range(plan.pp)]),
        *node_assumptions(plan, description),
        *network_assumptions(plan, description),
        *site_assumptions(plan, description),
        *overlap_assumptions(plan),
        *attention_assumptions(plan, description),
        *recomputation_assumptions(plan),
        *document_assumptions(plan),
        *deterministic_assumptions(plan),
        *layer_assumptions(plan),
        *image_assumptions(plan),
        *narrow_assumptions(plan),
        *lora_assumptions(plan),
        *optimizer_assumptions(plan),
        *pair_assumptions(plan),
        *muon_assumptions(plan),
        *expert_assumptions(plan),
        *stored_assumptions(plan),
        *prediction_assumptions(plan),
    )
