"""By what sizes and states a plan's code can be split further, for remedies that name no key which it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.model.training.other_optimizers import RULES

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.plan import Plan


def splitting_sizes(plan: Plan) -> list[str]:
    """Sizes in ``[parallelism]`` that the plan may raise, in the order in which they help most.

    None of a plan in Hugging Face's code that splits no layer yet: what finetunes with it splits states over GPUs.
    """
    run, model = plan.implementation, plan.workload.model
    if plan.workload.lora is not None or run.log_probabilities or run.liger_kernel:
        return []
    if finetunes(plan) and plan.tp == plan.pp == plan.cp == 1:
        return []
    eager, users = run.framework == "pytorch-eager", run.modules == "transformers"
    experts, hybrid = model.experts is not None, bool(model.mixers)
    whole = _steps_whole(plan) or model.qk_norm_whole
    chunked = model.sliding_window > 0 and model.chunked
    known = {
        "tensor_model_parallel_size": not (whole or (users and experts) or (eager and hybrid)),
        "pipeline_model_parallel_size": True,
        "expert_model_parallel_size": experts and run.modules == "joint",
        "context_parallel_size": not (users or chunked or model.attention_softcap or model.alibi),
    }
    return [size for size, may in known.items() if may]


def splitting_states(plan: Plan) -> list[str]:
    """What may split states over replicas that the plan does not do: ``distributed_optimizer``, ``fsdp``."""
    split, rule = plan.parallelism, RULES.get(plan.implementation.optimizer)
    if split.fsdp:
        return []
    states = [] if split.distributed_optimizer or rule is not None or _steps_whole(plan) else ["distributed_optimizer"]
    return states if _steps_whole(plan) or plan.implementation.muon is not None else [*states, "fsdp"]


def finetunes(plan: Plan) -> bool:
    """Whether the plan runs transformers' modules, as Hugging Face's Trainer always does."""
    return plan.implementation.modules == "transformers"


def smaller_trainings(plan: Plan) -> list[str]:
    """Other trainings of less memory that the plan's code knows: of adapters, and beside weights in 4 bits."""
    run, w, lora = plan.implementation, plan.workload, plan.workload.lora
    model, sizes = w.model, (plan.tp, plan.pp, plan.cp, plan.overlap.nanobatches)
    own = model.experts is not None or model.latent is not None or model.own_code or model.learned_positions > 0
    if not finetunes(plan) or own or model.mixers or run.compile or w.narrow is not None or max(sizes) > 1:
        return []
    if lora is None:
        whole = w.images is not None or run.muon is not None or plan.schedule.recompute not in ("none", "full")
        return [] if whole else ["train adapters ([workload.lora])"]
    narrow = run.parameter_precision == w.precision != "fp32"
    if lora.base or plan.parallelism.fsdp or run.main_parameters or not narrow:
        return []
    return ['keep frozen weights in 4 bits (workload.lora.base_precision = "nf4")']


def _steps_whole(plan: Plan) -> bool:
    """Whether an optimizer of PyTorch steps whole parameters alone."""
    run, rule = plan.implementation, RULES.get(plan.implementation.optimizer)
    return run.framework == "pytorch-eager" and (run.muon is not None or (rule is not None and not rule.sharded))
