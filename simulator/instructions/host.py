"""What the host needs to launch instructions, and how long the GPU waits for it.

How uncertain that makes an iteration is in :mod:`joulecast.simulator.iteration.host_pace`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joulecast.arrays import Array
from joulecast.model.framework.launches import Launch
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.operators import Gemm, Scan
from joulecast.model.transformer.vision_tower import TOWER
from joulecast.simulator.instructions.eager_launches import LOOPED, eager_launches, looped_launches
from joulecast.simulator.plan_file.gpu import launch_s
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.plan_file.training_loop import LAUNCH_S

#: How sharply the longer of host and GPU decides; an estimate: short and long kernels alternate within a layer.
HOST_EXPONENT = 8.0
#: How names of kernels end that come with another kernel's launch and cost the host nothing more.
WITHIN = (".step", ".quantise", ".amax", ".transpose", ".accumulate", ".gathered", ".scanned")
#: How those end that :data:`ROUTED` stands for.
OF_ROUTER = ".unfused"
#: Host's time for a launch in a library's own loop, over that of a module's launch: 13 us where modules' take 280
#: [estimate, +-50 %].
LOOPED_LAUNCH = 0.048
#: Host's time for one of PyTorch's own operations over that of a module's launch: 55 us where modules' take 280
#: [estimate, +-40 %]. How names of kernels begin that Megatron leaves to such operations.
OPERATION = 0.2
OPERATIONS = ("rotary.unfused.", "gate.clamp.", "experts.down.bias.", "scan.", "optimizer.muon.")
#: Host's time for a Triton kernel of a scan over that of a module's launch: 166 to 188 us where calls of such kernels
#: alone waited for an H200's and an H100's host (`validate/recorded/scans`) [estimate, +-40 %].
SCANNED = 0.73
#: Host's time for a launch in the backward, which autograd walks in C++, over that in the forward [estimate, +-40 %].
BACKWARD_LAUNCH = 0.5
#: Launches that an exchange among experts costs it beside its own: 64 experts on two GPUs [estimate, +-50 %].
EXCHANGED = 1.4
#: Launches of modules that a layer of experts costs Megatron's host in the forward beside its kernels that are
#: forecast: it chooses and sorts experts by some fifty small operations, and then waits until the GPU has told it how
#: many rows each has, so that it never runs ahead. Layers of 8 and of 128 experts on an H200 took 9.8 and 11 ms, their
#: kernels 5.6 and 3.9, on a host whose modules' launches take 0.28 ms [estimate, +-40 %].
ROUTED = 10.0
#: Parts of a layer whose launches Megatron's graphs replay (``cuda_graph_scope``), by how names of kernels begin. The
#: small operations of :data:`ROUTED` are of the last one, which leaves the wait for the numbers of rows.
SCOPES = {
    "attn": ("norm1", "qkv", "query", "key", "rotary", "attention", "output", "residual1", "latent"),
    "mamba": ("norm1", "in_proj", "scan", "conv.", "step.", "decay.", "skip.", "out_proj", "residual1"),
    "moe_router": ("norm2", "router", "shared"),
    "moe_preprocess": ("router.counts",),
}
#: Kernels that stand for more launches than their own, by name.
BESIDE = {"router.choice": ROUTED} | {
    f"{way}.all_to_all": EXCHANGED for way in ("dispatch", "combine", "dispatch.grad", "combine.grad")
}


def host_s(plan: Plan, gpu: GpuModel, types: Sequence[Sequence[Launch]]) -> Array:
    """Time that the host needs to launch each type of instruction, shape ``(types,)``; 0 where nobody waits [s].

    Where no pace is stated, kernels are taken not to wait, but for those that are called in a loop: an optimizer's, and
    attention of images and windows.
    """
    one, run = launch_s(plan, gpu), plan.implementation
    if one > 0:
        return one * launches_of(plan, types)
    if run.cuda_graphs or run.host_launch_us is not None or not (run.optimizer in LOOPED or plan.workload.images):
        return np.zeros(len(types))
    return LAUNCH_S * np.array([looped_launches(launches) for launches in types])


def of_towers(types: Sequence[Sequence[Launch]]) -> list[list[Launch]]:
    """What of each type of instruction is a vision tower's."""
    return [[one for one in launches if one.operator.name.startswith(TOWER)] for launches in types]


def launches_of(plan: Plan, types: Sequence[Sequence[Launch]]) -> Array:
    """Launches that each type of instruction costs the host, shape ``(types,)``."""
    if plan.implementation.framework == "pytorch-eager":
        return np.array([eager_launches(plan, launches) for launches in types])
    return np.array([module_launches(launches, plan.implementation.graph_scopes) for launches in types])


def module_launches(launches: Sequence[Launch], scopes: Sequence[str] = ()) -> float:
    """Launches that cost Megatron's host time of their own: steps of one product count once, casts come with theirs.

    Products and casts of one layer's experts are launched in a loop of the library, each further one at a share of the
    cost; as much again takes the gradient of each weight, which autograd and Megatron's hook hand over one by one. What
    graphs of ``scopes`` replay one after another is one launch.
    """
    own = [launch for launch in launches if not launch.operator.name.endswith((*WITHIN, OF_ROUTER))]
    beside = [launch for launch in launches if launch.operator.name.endswith(WITHIN)]
    replayed = tuple(name for scope in scopes for name in SCOPES[scope])
    count, before, inside = LOOPED_LAUNCH * sum((one.repeat - 1) / one.share for one in beside), "", False
    for launch in own:
        operator, part = launch.operator, 1.0 / launch.share
        entered, inside = not inside, bool(replayed) and operator.name.startswith(replayed)
        if inside:
            count, before = count + part * entered, operator.name
            continue
        if isinstance(operator, Scan):
            count, before = count + SCANNED * part, operator.name
            continue
        back = BACKWARD_LAUNCH if "grad" in operator.name else 1.0
        if operator.name.startswith(OPERATIONS):
            count, before = count + OPERATION * back * launch.repeat * part, operator.name
            continue
        if operator.name != before or launch.share > 1:
            count += part * back
        before = operator.name
        if isinstance(operator, Gemm) and operator.separate:
            handed_over = 2 if launch.completes else 1
            count += LOOPED_LAUNCH * (operator.batch - 1) * handed_over * part
        count += LOOPED_LAUNCH * (launch.repeat - 1) * part + BESIDE.get(operator.name, 0.0) * part
    return count


def gaps_with_tower(duration_s: Array, host_s: Array, tower_s: Array, tower_host_s: Array) -> Array:
    """:func:`host_gaps` of instructions of which a vision tower takes ``tower_s``, and its host ``tower_host_s``.

    Between tower and text model the host asks the GPU how many tokens images have, in the backward too
    (``masked_scatter`` and its gradient), and has launched nothing further when the one ends [s].
    """
    rest = host_gaps(np.maximum(duration_s - tower_s, 0.0), host_s - tower_host_s)
    return np.asarray(rest + host_gaps(tower_s, tower_host_s))


def host_gaps(duration_s: Array, host_s: Array) -> Array:
    """Time for which the GPU waits for its host, which needs ``host_s`` to launch what takes ``duration_s`` [s]."""
    longer = (duration_s**HOST_EXPONENT + host_s**HOST_EXPONENT) ** (1.0 / HOST_EXPONENT)
    return np.asarray(longer - duration_s)
