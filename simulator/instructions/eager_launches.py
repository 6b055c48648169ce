"""What PyTorch's kernels cost the host, in launches of ``joulecast doctor --host``.

Iterations of tiny models with 2 and with 8 layers were timed on the host in turns with the doctor's own, so that both
saw it in one state: forward, backward and step of 20 families in transformers' code, with checkpoints, clipping,
autocast, adapters, Liger's kernels, DDP and FSDP (`validate/recorded/host_launches`). The costs below are a fit to what
a layer adds to forward and backward of 70 such iterations, which it meets within 6 % (root mean square), where the
number of kernels is 32 % off.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain

from joulecast.model.framework.launches import Launch
from joulecast.model.kernels.operators import Attention, Gemm, Operator, Scan
from joulecast.model.training.bitsandbytes_steps import KINDS
from joulecast.model.training.generation import PREFIX
from joulecast.model.transformer.vision_tower import CALLED, RECORDED, UNDONE
from joulecast.simulator.plan_file.plan import Plan

#: How much longer whole programs take for what costs one launch of a doctor that ran before them. Timed in turns with
#: the doctor, twelve programs of small models on three hosts cost what is counted here within 4 % (1.00 in the mean);
#: but a doctor reads 1.2 times as long beside them as in a process of its own, and a virtual machine's pace drifts.
#: The mean of six hosts (1.58, 1.39, 1.14, about 1.3, 1.2 and 1.2) [+-12 %].
WHOLE = 1.3
#: A product's module in the forward, with the calls, views and hooks around it; one of its gradients [+-12, +-20 %].
PRODUCT = (2.3, 0.8)
#: The same of adapters' products (PEFT) [+-16, +-20 %].
ADAPTERS, ADAPTER = ".lora_", (1.5, 0.9)
#: Attention in one kernel; its gradients, with all nodes of autograd around them that run no kernel [+-1, +-1.4].
ATTENTION = (1.0, 5.9)
#: Any other kernel, one of PyTorch's operations [+-12, +-7 %].
OPERATION = (0.33, 0.44)
#: What stands in names of Liger's kernels, whose functions are Python both ways [+-15 %].
LIGER, IN_LIGER = ".liger", (2.7, 2.7)
#: Choosing experts, by its first product, beside kernels [+-25, +-45 %].
ROUTER, CHOSEN = ("router", "router.dgrad"), (14.0, 10.0)
#: A layer that is computed again, where autograd calls hooks for every tensor that it would have kept: its launches in
#: the backward over those in the forward, and what its checkpoint costs in both [+-25 %].
HOOKS = (1.5, 15.0 + 19.0)
#: The same with ``use_reentrant``, which has none; ten layers in turns with the doctor's [+-15 %].
REENTRANT = (1.0, 15.0)
#: Products that stand once in a layer and are computed again in any.
ONCE_A_LAYER = ("output", "out_proj")
#: A communication of FSDP's units (``fully_shard``): hooks, events and copies of parameters one by one [+-10 %].
SHARDED_LAUNCHES, SHARDED = 27.0, ("layer.", "root.")
#: What a parameter costs PyTorch's fused AdamW; beside that DDP's hooks, and DTensors of FSDP [+-20 %].
STEPPED, HOOKED, AS_DTENSOR = 0.25, 0.8, 0.5
#: What transformers' forward, which begins with this kernel, and its backward cost beside their kernels: masks,
#: positions, the loss [+-20 %].
FIRST, MODEL = "embedding", 55.0 + 17.0
#: A kernel within a compiled graph; an estimate by one iteration [+-40 %].
COMPILED = 0.75

#: The costs of what follows were measured beside launches of whole programs.
#:
#: A Triton kernel of a scan. Calls of seven such kernels, which waited for the host, took it 168 us a kernel on an
#: H200's, calls of seventeen and 28 of PyTorch's 220; on an H100's 166 and 188. An autotuner in Python is behind each
#: (`validate/recorded/scans`) [estimate, +-40 %].
TRITON = 4.6
#: An operator that an optimizer calls in a loop over parameters, without autograd and modules, by the optimizer. Muon's
#: took 10.0 and 12.6 us on a host where the doctor's launch took 37 and 43 (`validate/recorded/muon`) [+-25 %]; 10,752
#: of Adafactor's for adapters made an iteration 183 ms longer than PyTorch's fused AdamW where it took 41 us [+-20 %].
LOOPED = {"muon": 0.28, "adafactor": 0.41}
#: Attention of one image or window where a vision tower's code calls it by itself: of a frozen tower, of one whose
#: backward is recorded, and in that backward, by the end of the kernel's name. Two iterations of Qwen2.5-VL with some
#: 8,000 and 4,500 calls on an H100, whose doctor's launch took 38 us (`validate/recorded/h100_sxm/train_vision.jsonl`)
#: [estimates, +-20 %].
CALLS = {CALLED: 1.25, RECORDED: 2.3, UNDONE: 3.2}
#: How names of kernels begin whose launch the GPU waits for anyway, so that it is part of the kernel's time, or that
#: are replayed as graphs.
WAITED_FOR = (PREFIX, *(f"optimizer.{name}" for name in KINDS))
#: How names of a model's head begin, whose gradients Liger computes in the forward.
HEAD = "head"


def eager_launches(plan: Plan, launches: Sequence[Launch]) -> float:
    """Launches of the doctor's that the kernels of an instruction cost PyTorch's host as much as."""
    if plan.implementation.compile:
        return sum(COMPILED * one.repeat / one.share for one in launches)
    back = any(_is_gradient(one.operator.name) for one in launches if not one.operator.name.startswith(HEAD))
    again = (HOOKS if plan.implementation.recompute_stops_early else REENTRANT) if back else None
    of_parameter, model = _of_parameter(plan), MODEL * (plan.implementation.modules == "transformers")
    count = 0.0
    for one in launches:
        beside = of_parameter * bool(one.completes) + model * (one.operator.name == FIRST)
        count += _cost(one.operator, one.stream, again, beside) * one.repeat / one.share
    return count


def looped_launches(launches: Sequence[Launch]) -> float:
    """The same of what is called in a loop alone: an optimizer's operators, and attention of images and windows."""
    return sum((_apart(one.operator.name) or 0.0) * one.repeat / one.share for one in launches)


@lru_cache(maxsize=4096)
def _cost(operator: Operator, stream: str, again: tuple[float, float] | None, beside: float) -> float:
    """Cost of a kernel, where layers are computed ``again``: at how many times the cost, and what a checkpoint costs.

    ``again`` is ``None`` in a forward. ``beside`` is what comes with the launch, but for what was measured as a whole.
    """
    if isinstance(operator, Scan):
        return TRITON
    apart = _apart(operator.name)
    return WHOLE * (beside + _of_kernel(operator, stream, again)) if apart is None else apart


@lru_cache(maxsize=4096)
def _apart(name: str) -> float | None:
    """The cost of a kernel that was measured beside launches of whole programs, by its name."""
    if name.startswith(WAITED_FOR):
        return 0.0
    called = (cost for ending, cost in CALLS.items() if name.endswith(ending))
    looped = (cost for optimizer, cost in LOOPED.items() if name.startswith(f"optimizer.{optimizer}."))
    return next(chain(called, looped), None)


def _of_kernel(operator: Operator, stream: str, again: tuple[float, float] | None) -> float:
    name = operator.name
    if stream == "communication":
        return SHARDED_LAUNCHES if name.startswith(SHARDED) else OPERATION[0]
    gradient = _is_gradient(name)
    once = _of_kind(operator)[gradient] + (CHOSEN[gradient] if name in ROUTER else 0.0)
    if gradient or again is None:
        return once
    times, checkpoint = again
    return times * once + (checkpoint if name in ONCE_A_LAYER else 0.0)


def _of_kind(operator: Operator) -> tuple[float, float]:
    """Cost of a kernel of this kind in the forward, and of a gradient."""
    if LIGER in operator.name:
        return IN_LIGER
    if isinstance(operator, Attention):
        return ATTENTION
    if isinstance(operator, Gemm):
        return ADAPTER if ADAPTERS in operator.name else PRODUCT
    return OPERATION


def _of_parameter(plan: Plan) -> float:
    """Cost of a parameter whose gradient is complete, its step included."""
    if plan.parallelism.fsdp:
        return STEPPED + AS_DTENSOR
    return STEPPED + HOOKED * (plan.replicas > 1)


def _is_gradient(name: str) -> bool:
    return "grad" in name or name.endswith("backward")
