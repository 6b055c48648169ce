"""What the Trainer of Hugging Face has its host do while the GPU waits.

The Trainer asks in every micro-batch whether the loss is a number (``logging_nan_inf_filter``), accelerate copies the
next batch to the GPU and waits for it, and TRL reads metrics back. Each time the host waits until the GPU has nothing
left to run, and what Python does next costs the GPU as long: it fetches a batch, walks over all modules
(``model.train()``, ``floating_point_ops``), clips gradients tensor by tensor, and switches adapters off and on again.

All numbers are of timelines of six jobs of TRL 1.16 on an H200, models of 1 to 8 billion parameters with and without
adapters, whose host launched a kernel in 31 to 35 us; they are given in such launches, as the same interpreter does
both. With them 28 jobs of the Trainer and of TRL on three hosts are met
(``validate/recorded/h200_sxm/metered_jobs.jsonl``, ``metered_commands.jsonl``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.model.transformer.log_probabilities import CHUNKED
from joulecast.simulator.plan_file.parts import NEXT_TOKEN

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.plan import Plan

#: Launches for each module in every micro-batch: ``train()`` takes 5 us and ``floating_point_ops`` 6 us a module of
#: PyTorch, 10.6 us together in models of 215 modules as in one of 2,663 with its adapters [estimate, +-30 %].
WALKED = 0.31
#: Launches in every micro-batch beside those of the forward itself: reading the loss back, clipping's norm, and the
#: first kernels behind each wait, 2 ms [estimate, +-40 %].
LOOPED = 58.0
#: The same of TRL's metrics of finetuning (entropy, accuracy, tokens), 1.5 to 3.4 ms [estimate, +-40 %].
READ_BACK = 60.0
#: Launches for each token of a micro-batch that is made of Python's lists: 2.0 to 3.7 ms for 4,096 tokens, 3.6 to 5.6
#: for 8,192, 10 for 16,384 [estimate, +-30 %].
COLLATED = 0.016
#: Launches for each product with adapters that are switched off for the reference, and on again: 18 ms for 56 of them
#: [estimate of one job, +-40 %].
SWITCHED = 8.0
#: Launches for each trained tensor in an iteration: 9.5 us in clipping, 6 us in the optimizer's lists, of 112 to 448
#: tensors [estimate, +-30 %].
CLIPPED = 0.45
#: Modules of a layer of a dense transformer in transformers' code: itself, attention, MLP and activation beside seven
#: products and its norms; and those that PEFT puts around a product (counted, transformers 5.17, PEFT 0.21).
PLAIN, PRODUCTS, ADAPTED = 4, 7, 10


def trainer_launches(plan: Plan) -> float:
    """Launches that the GPU waits for in a micro-batch, beside those of the forward: of an iteration an even part."""
    w, run = plan.workload, plan.implementation
    layers, adapted = w.model.layers, _adapted(plan)
    each = WALKED * ((PLAIN + PRODUCTS + _norms(plan)) * layers + ADAPTED * adapted) + LOOPED
    if run.log_probabilities == CHUNKED and w.objective == NEXT_TOKEN:
        each += READ_BACK
    if run.dataloader_num_workers == 0:
        each += COLLATED * w.micro_batch_sequences * w.sequence_length
    if w.reference == "adapters-off":
        each += SWITCHED * adapted
    return each + CLIPPED * _trained(plan) / plan.microbatches


def _adapted(plan: Plan) -> int:
    lora = plan.workload.lora
    return 0 if lora is None else plan.workload.model.layers * len(lora.targets)


def _norms(plan: Plan) -> int:
    model = plan.workload.model
    return model.layer_norms + len(model.qk_norm_sizes)


def _trained(plan: Plan) -> int:
    """Tensors that are trained, counted by layers: both of each adapter, or weights and norms."""
    if plan.workload.lora is not None:
        return 2 * _adapted(plan)
    return (PRODUCTS + _norms(plan)) * plan.workload.model.layers
