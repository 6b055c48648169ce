"""The ``[overlap]`` table of a plan: windows from names or places of operators, and what must hold of its knobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from joulecast.errors import UnknownNameError
from joulecast.model.training.nanobatches import HALVES, Window, half_of, operators_of_half
from joulecast.simulator.plan_file.names import place
from joulecast.simulator.plan_file.placement import context_fabric, expert_fabric, group_fabric, tensor_fabric
from joulecast.simulator.plan_file.source import Source

if TYPE_CHECKING:
    from joulecast.model.architecture.model_config import ModelConfig
    from joulecast.model.cluster.fabric import Fabric
    from joulecast.model.framework.implementation import Framework
    from joulecast.model.hardware.description import GpuDescription
    from joulecast.simulator.plan_file.plan import Plan

NANOBATCHES, WINDOW, LAUNCH = "overlap.nanobatches", "overlap.window", "overlap.launch"
TP_COMM = "overlap.tp_comm"
CTAS, THREADS = "overlap.comm_ctas", "overlap.comm_threads"
ENGINE, FIRST, MARGIN = "overlap.comm_engine", "overlap.comm_first", "overlap.sm_margin"
#: Threads of a block come in warps of 32, up to 1024.
WARP, MOST_THREADS = 32, 1024


def read_windows(value: Any, model: ModelConfig, framework: Framework, source: Source) -> tuple[Window, ...]:
    """Windows of the layer's halves from what a plan says.

    Parameters
    ----------
    value
        ``[first, last]``: two operators' names of one half, or their places in each half from 0; or a table of
        ``attention`` and ``mlp`` with such a pair each; ``None`` or ``"all"`` for no window.

    Raises
    ------
    InputError
        It is neither, or lies outside the layer.
    """
    if value is None or value == "all":
        return ()
    named = {half: operators_of_half(model, framework, half) for half in HALVES}
    if isinstance(value, Mapping):
        for half in value:
            if half not in HALVES:
                raise place(UnknownNameError("half of a layer", str(half), HALVES), source, f"{WINDOW}.{half}")
        return tuple(
            Window(half, _span(value[half], half, named[half], f"{WINDOW}.{half}", source)) for half in sorted(value)
        )
    first, last = _pair(value, WINDOW, source)
    if isinstance(first, int):
        return tuple(Window(half, _span([first, last], half, named[half], WINDOW, source)) for half in HALVES)
    for name in (first, last):
        known = [operator for operators in named.values() for operator in operators]
        if name not in known:
            raise place(UnknownNameError("operator of a layer", name, known), source, WINDOW)
    half = half_of(first)
    if half != half_of(last):
        raise source.error(
            f"{first!r} and {last!r} lie in different halves of the layer, with communication between them",
            WINDOW,
            remedy=f"A window lies within one half: {_listed(named['attention'])}; or {_listed(named['mlp'])}.",
        )
    return (Window(half, _span([first, last], half, named[half], WINDOW, source)),)


def _pair(value: Any, key: str, source: Source) -> tuple[Any, Any]:
    """First and last as two names or two whole numbers."""
    if isinstance(value, list | tuple) and [type(v) for v in value] in ([str, str], [int, int]):
        return value[0], value[1]
    raise source.error(
        f"{value!r} is no window",
        key,
        remedy='Write [first, last], two names or two places of operators, for instance ["qkv", "output"].',
    )


def _span(value: Any, half: str, names: Sequence[str], key: str, source: Source) -> tuple[str, ...]:
    """The operators from the first to the last of a pair within one half."""
    places = []
    for one in _pair(value, key, source):
        if isinstance(one, str) and one not in names:
            raise place(UnknownNameError(f"operator of the {half} half", one, names), source, key)
        at = names.index(one) if isinstance(one, str) else one
        if not 0 <= at < len(names):
            raise source.error(
                f"a window to operator {at} lies outside the {half} half, which has 0 to {len(names) - 1}",
                key,
                remedy=f"The nearest is {min(max(at, 0), len(names) - 1)}; they are {_listed(names)}.",
            )
        places.append(at)
    if places[0] > places[1]:
        raise source.error(
            f"the window ends with {names[places[1]]!r} before it begins with {names[places[0]]!r}",
            key,
            remedy=f"Their order is {_listed(names)}.",
        )
    return tuple(names[places[0] : places[1] + 1])


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"{at} {name}" for at, name in enumerate(names))


def check_overlap(plan: Plan, gpu: GpuDescription, source: Source) -> None:
    """Refuse knobs of overlap that the plan cannot have."""
    overlap, micro = plan.overlap, plan.workload.micro_batch_size
    if overlap.nanobatches > 1 and plan.tp * plan.parallelism.expert_model_parallel_size == 1:
        raise source.error(
            "nano-batches overlap the communication of tensor or expert parallelism, of which one rank has none",
            NANOBATCHES,
            remedy="Set it to 1, or tensor_model_parallel_size or expert_model_parallel_size to 2 or more.",
        )
    if micro % overlap.nanobatches:
        if micro == 1:
            message = f"a micro-batch of 1 sequence cannot be cut into {overlap.nanobatches}: nano-batches are whole "
            message += "sequences, a cut along tokens is not offered"
        else:
            message = f"{overlap.nanobatches} nano-batches do not divide a micro-batch of {micro} sequences"
        raise source.error(message, NANOBATCHES, remedy=_nearest_parts(micro, overlap.nanobatches))
    _check_launch(plan, source)
    _check_steps(plan, source)
    _check_engine(plan, source)
    _check_kernel(plan, int(gpu.number("sm_count")), gpu.name, source)
    _check_margin(plan, int(gpu.number("sm_count")), gpu.name, source)


def _check_margin(plan: Plan, sms: int, name: str, source: Source) -> None:
    """SMs are left free for the experts' communication, and some for compute."""
    overlap = plan.overlap
    if overlap.sm_margin and not overlap.ep_comm:
        what = "SMs are left free for communication of experts beside another micro-batch's computation"
        raise source.error(what, MARGIN, remedy="Set overlap.ep_comm = true, or leave this key out.")
    if overlap.sm_margin >= sms:
        raise source.error(f"{name} has {sms} SMs in all", MARGIN, remedy=f"Use at most {sms - 1}.")


def _nearest_parts(micro: int, parts: int) -> str:
    near = min((d for d in range(1, micro + 1) if micro % d == 0), key=lambda d: abs(d - parts))
    return f"The nearest is {near}, or make workload.micro_batch_size a multiple of {parts}."


def _check_launch(plan: Plan, source: Source) -> None:
    overlap = plan.overlap
    if overlap.windows and overlap.nanobatches == 1:
        raise source.error(
            "a micro-batch in one piece has nothing independent to run beside its communication",
            WINDOW,
            remedy="Set overlap.nanobatches to 2 or more, or leave the window out.",
        )
    if overlap.launch == "window" and not overlap.windows:
        raise source.error(
            "there is no window to launch communication in", LAUNCH, remedy="Set overlap.window, or this to 'asap'."
        )


def _check_steps(plan: Plan, source: Source) -> None:
    """Stepwise communication beside products is Transformer Engine's, or compiled torchtitan's; of split sequences."""
    run = plan.implementation
    if not plan.overlap.tp_comm:
        return
    if run.framework != "megatron" and not (run.modules == "torchtitan" and run.compile):
        raise source.error(
            "PyTorch communicates in steps beside its products in torchtitan's compiled modules alone",
            TP_COMM,
            remedy='Set it to false, or implementation.modules = "torchtitan" with implementation.compile = true.',
        )
    if not plan.sequence_parallel:
        raise source.error(
            "steps beside products gather and scatter the sequence, which is not split",
            TP_COMM,
            remedy="Set parallelism.sequence_parallel = true and tensor_model_parallel_size to 2 or more.",
        )
    if plan.overlap.nanobatches > 1:
        raise source.error(
            "communication runs beside the products of its own part already",
            NANOBATCHES,
            remedy="Set it to 1, or overlap.tp_comm = false.",
        )


def _check_engine(plan: Plan, source: Source) -> None:
    """Copy engines need something that is only moved; an order of kernels needs two that run beside each other."""
    overlap, split = plan.overlap, plan.parallelism
    if overlap.comm_engine == "copy" and all(fabric.domains > 1 for fabric in _moving(plan)):
        raise source.error(
            "copy engines move what is gathered or exchanged within a node, of which this plan's layers have nothing",
            ENGINE,
            remedy='Use "sm"; sums always take SMs. parallelism.sequence_parallel gathers, as fsdp_shard_size does.',
        )
    beside = overlap.nanobatches > 1 or overlap.ep_comm or (split.fsdp and overlap.fsdp_prefetch)
    if overlap.comm_first and not beside:
        raise source.error(
            "this plan's layers wait for their communication: no kernel runs beside it that could come first",
            FIRST,
            remedy="Leave it out, or set overlap.nanobatches to 2 or more.",
        )


def _moving(plan: Plan) -> Iterator[Fabric]:
    """Links of the groups of ranks whose layers gather or exchange something."""
    split = plan.parallelism
    if plan.sequence_parallel:
        yield tensor_fabric(plan)
    if (context := context_fabric(plan)) is not None:
        yield context
    if split.expert_model_parallel_size > 1:
        yield expert_fabric(plan)
    if split.fsdp:
        yield group_fabric(plan, split.fsdp_shard_size, plan.tp)


def _check_kernel(plan: Plan, sms: int, name: str, source: Source) -> None:
    """Blocks and threads of the communication kernel within what the GPU has."""
    ctas, threads = plan.overlap.comm_ctas, plan.overlap.comm_threads
    if ctas is not None and ctas > sms:
        raise source.error(
            f"{ctas} thread blocks, one an SM, but {name} has {sms} SMs", CTAS, remedy=f"The nearest is {sms}."
        )
    if threads is not None and (threads % WARP or threads > MOST_THREADS):
        near = min(max(WARP * round(threads / WARP), WARP), MOST_THREADS)
        raise source.error(
            f"{threads} is no size of a thread block",
            THREADS,
            remedy=f"Use a multiple of {WARP} up to {MOST_THREADS}; the nearest is {near}.",
        )


def overlap_assumptions(plan: Plan) -> tuple[str, ...]:
    """What a forecast takes for granted of a plan's overlap."""
    found = []
    if plan.overlap.nanobatches > 1:
        found.append("nano-batches are cut between sequences before the first layer and copied together after the last")
    if plan.overlap.tp_comm:
        found.append("copy engines move the steps of tensor-parallel communication, which take no SM (not measured)")
    if plan.overlap.comm_engine == "copy":
        found.append("copy engines reach the links' whole rate, start within 4 us and take no SM (not measured)")
    if plan.overlap.comm_first:
        found.append("communication gets its SMs at once, and costs compute no more than while it runs (not measured)")
    if plan.overlap.comm_threads is not None:
        found.append(
            "a block of a collective copies in proportion to its threads up to the library's own number (not measured)"
        )
    return tuple(found)
