"""The nearest plan that fits memory, of one that does not: fewest more GPUs first, then fewest changed keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product
from typing import TYPE_CHECKING

from joulecast.errors import DoesNotFitError, InputError
from joulecast.simulator.instructions.footprints import enough_recomputation, footprints
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.gpu import gpu_of
from joulecast.simulator.plan_file.replicas import SYNC
from joulecast.simulator.plan_file.ways_out import splitting_sizes

if TYPE_CHECKING:
    from joulecast.simulator.iteration.result import Iteration
    from joulecast.simulator.plan_file.plan import Plan

#: Most GPUs that are tried, as a multiple of the plan's.
MOST_MORE = 64
#: Keys changed at once, beside the number of GPUs.
MOST_CHANGES = 2


def forecast_or_nearest(load: Callable[[Sequence[str]], Plan], *, alone: bool = True) -> Iteration:
    """The forecast of a plan; where it does not fit, the error names the nearest plan that does.

    Parameters
    ----------
    load
        Reads the plan, with settings ``table.key=value`` that win over its own.
    alone
        Whether a command has this plan alone: its settings would change other plans too, and functions have none.

    Raises
    ------
    DoesNotFitError
        The plan needs more memory than a GPU has.
    """
    plan = load(())
    try:
        return forecast(plan)
    except DoesNotFitError as error:
        enough = enough_recomputation(plan, gpu_of(plan).number("memory_bytes")) is not None
        found = None if enough else nearest_fit(plan, load)
        if found is None:
            raise
        settings, most, reserved = found
        changes = " ".join(f"--set {one}" if alone else one for one in settings)
        fits = "The nearest plan that fits" if alone else "The nearest plan that fits has in its file"
        nearest = f"{fits}: {changes}, which takes {most / 1e9:.1f} GB{_beyond(plan, reserved)}."
        remedy = f"{nearest} Otherwise: {error.remedy}"
        raise DoesNotFitError(error.message, file=error.file, key=error.key, remedy=remedy) from None


def _beyond(plan: Plan, reserved: float) -> str:
    """What PyTorch's allocator would reserve, where that is more than a GPU has."""
    if reserved <= gpu_of(plan).number("memory_bytes"):
        return ""
    return f" ({reserved / 1e9:.1f} GB with what PyTorch would reserve: it may run slower, or fail)"


def nearest_fit(plan: Plan, load: Callable[[Sequence[str]], Plan]) -> tuple[tuple[str, ...], float, float] | None:
    """Settings of the nearest plan that fits; ``None`` where none that is tried does.

    With them the bytes of its fullest GPU, and with what PyTorch's allocator would reserve. Whether a plan fits goes by
    the former, here as in a forecast.
    """
    gpu = gpu_of(plan)
    capacity = gpu.number("memory_bytes")
    for more in (2**power for power in range(MOST_MORE.bit_length())):
        for settings in _changes(plan, more, load):
            try:
                changed = load(settings)
            except InputError:  # such a plan cannot be, whatever the reason
                continue
            held = footprints(changed, gpu, must_fit=False)
            most = max(one.total_bytes for one in held)
            if most <= capacity:
                return settings, most, max(one.total_bytes + one.cached for one in held)
    return None


def _changes(plan: Plan, more: int, load: Callable[[Sequence[str]], Plan]) -> Iterator[tuple[str, ...]]:
    """Settings of plans on ``more`` times as many GPUs, fewer changes first, the cheaper ones in front."""
    grown = () if more == 1 else (f"cluster.gpus={plan.cluster.gpus * more}",)
    batch = f"workload.global_batch_size={plan.workload.global_batch_size * more}"
    try:  # a node may have more GPUs than a small plan uses of it
        per_node = load((*grown, batch)).cluster.gpus_per_node
    except InputError:
        per_node = plan.cluster.gpus_per_node
    keys = _keys(plan, plan.cluster.gpus * more, per_node)
    for count in range(0 if grown else 1, MOST_CHANGES + 1):
        for chosen in combinations(keys, count):
            for settings in product(*chosen):
                yield *settings, *grown
                if grown:
                    yield *settings, *grown, batch


def _keys(plan: Plan, gpus: int, per_node: int) -> list[list[str]]:
    """What each key may be in place of what it is on so many GPUs, the gentler first."""
    split = plan.parallelism
    keys = []
    if plan.schedule.recompute != "full":
        keys.append(["schedule.recompute=full"])
    if plan.workload.micro_batch_size > 1:
        keys.append(["workload.micro_batch_size=1"])
    if not split.fsdp_sync_each_batch and plan.microbatches > 1:
        keys.append([f"{SYNC}=true"])
    states = ["distributed_optimizer"] if not (split.distributed_optimizer or split.fsdp) else []
    states += ["fsdp"] if not split.fsdp else []
    if gpus > 1 and states:
        keys.append([f"parallelism.{one}=true" for one in states])
    experts, known = plan.workload.model.experts, splitting_sizes(plan)
    for name, size, most in (
        ("expert_model_parallel_size", split.expert_model_parallel_size, experts.count if experts else 1),
        ("tensor_model_parallel_size", plan.tp, per_node),
        ("pipeline_model_parallel_size", plan.pp, min(gpus, plan.workload.layers)),
    ):
        raised = [f"parallelism.{name}={size * 2**power}" for power in range(1, (most // size).bit_length())]
        if raised and name in known:
            keys.append(raised)
    return keys
