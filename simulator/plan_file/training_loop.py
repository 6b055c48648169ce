"""Waits for the host in every micro-batch, in transformers' code and in the loop of Hugging Face's Trainer.

In every forward transformers reads back whether sequences are packed. The Trainer's host waits for the GPU more often
(:mod:`joulecast.simulator.plan_file.trainer_waits`). In mixed precision accelerate has the model's logits copied to
fp32 (``convert_outputs_to_fp32``), beside the loss, which widens its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.model.training.bitsandbytes_steps import KINDS
from joulecast.model.transformer.log_probabilities import WHOLE
from joulecast.simulator.plan_file.trainer_waits import trainer_launches

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.plan import Plan
    from joulecast.simulator.plan_file.source import Source

LOOP, WORKERS = "implementation.training_loop", "implementation.dataloader_num_workers"
#: Launches that the GPU waits for in every forward of transformers' code, which first asks it whether sequences are
#: packed (``find_packed_sequence_indices``) and then has none ahead, until the first layers' products let the host
#: pass: of eleven models on two H100s 25 to 70, of five of these on an H200, whose host's pace is not known, 1.0 to
#: 1.6 ms [estimate, +-30 %].
ASKED = 42.0
#: The same of Liger's fused head and loss, which asks how many targets count, and in the backward whether the loss's
#: gradient is one: 0.9 to 1.5 ms in three iterations on an H200 whose host takes 31 us for a launch [estimate, +-30 %].
ASKED_BY_LIGER = 30.0
#: Time of the host for a launch where the plan does not say it [s]: that of these jobs' host.
LAUNCH_S = 38e-6
#: Launches that bitsandbytes' Python costs the host at each parameter, behind which it waits for the GPU. Adapters of
#: 448 tensors on an H100 made an iteration 50 ms longer than PyTorch's fused AdamW did, whose step is short, on a host
#: that launches in 41 us; steps of whole models in a loop of their own, which find all in the processor's caches, took
#: 1.1 to 1.7 a parameter [estimate, +-40 %].
STEPPED = 2.5


def is_trainer(plan: Plan) -> bool:
    """Whether Hugging Face's Trainer runs the loop."""
    return plan.implementation.training_loop == "trainer"


def widens_outputs(plan: Plan) -> bool:
    """Whether the loop has the model's logits, where it gives any, copied to fp32."""
    given = plan.implementation.log_probabilities in ("", WHOLE) and not _fused(plan)
    return is_trainer(plan) and plan.workload.precision in ("bf16", "fp16") and given


def loop_wait_s(plan: Plan) -> float:
    """Time for which the GPU waits for the host in every micro-batch, by a loop or by the model's code [s]."""
    wait_s = forward_wait_s(plan)
    return wait_s + trainer_launches(plan) * said_launch_s(plan) if is_trainer(plan) else wait_s


def forward_wait_s(plan: Plan) -> float:
    """Time for which the GPU waits for the host in a forward by the model's code [s]."""
    run = plan.implementation
    asked = ASKED + ASKED_BY_LIGER * _fused(plan)
    asks = run.framework == "pytorch-eager" and run.modules == "transformers" and not run.compile
    return asked * said_launch_s(plan) if asks else 0.0


def _fused(plan: Plan) -> bool:
    return "fused_linear_cross_entropy" in plan.implementation.liger_kernel


def said_launch_s(plan: Plan) -> float:
    """Time of the host for a launch where the GPU waits for it: what the plan says, or the usual; 0 in graphs [s]."""
    return 0.0 if plan.implementation.cuda_graphs else launch_s(plan.implementation.host_launch_us)


def step_wait_s(plan: Plan) -> float:
    """Time for which the GPU waits for the host at each parameter that the plan's optimizer steps [s]."""
    return pause_s(plan.implementation.optimizer, said_launch_s(plan))


def pause_s(optimizer: str, each_s: float) -> float:
    """The same of an optimizer by its name, on a host that takes so long for a launch."""
    return STEPPED * each_s if optimizer in KINDS else 0.0


def launch_s(host_launch_us: float | None) -> float:
    """Time of the host for a launch as it is stated, or the usual [s]."""
    return LAUNCH_S if host_launch_us is None else 1e-6 * host_launch_us


def check_training_loop(plan: Plan, source: Source) -> None:
    """The Trainer runs the modules of transformers, and its workers are known with it alone."""
    if plan.implementation.dataloader_num_workers is not None and not is_trainer(plan):
        raise source.error(
            "who makes batches is known of Hugging Face's Trainer",
            WORKERS,
            remedy=f'Leave the key out, or set {LOOP} = "trainer".',
        )
    if is_trainer(plan) and plan.implementation.modules != "transformers":
        raise source.error(
            "Hugging Face's Trainer is known with the modules of transformers",
            LOOP,
            remedy='Leave the key out, or set implementation.modules = "transformers".',
        )
