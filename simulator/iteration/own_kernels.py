"""What a forecast says of kernels of a user's own, which the GPU's description has in place of a library's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.operators import Operator
from joulecast.model.kernels.own_kernels import OWN, QUANTITIES, interpolated, knots, own_kind, own_kinds, work_of

#: A kernel of more than so many times the work of any row, or less than one over it, is far from what was measured.
FAR = 4.0
_WORDS = {"time": "time", "energy": "energy above idle"}


def own_kernel_assumptions(operators: Iterable[Operator], description: GpuDescription) -> tuple[str, ...]:
    """Which of a plan's kernels are scaled, by how much and from which rows, and what was measured for nothing."""
    gpu = gpu_model(description)
    if not (kinds := own_kinds(gpu)):
        return ()
    work: dict[str, list[float]] = {kind: [] for kind in ("", *kinds)}
    for operator in operators:
        work[own_kind(operator, kinds)].append(work_of(operator))
    return tuple(_said(kind, sorted(work[kind]), description) for kind in kinds)


def _said(kind: str, work: Sequence[float], description: GpuDescription) -> str:
    if not work:
        return f"the plan runs no kernel {kind}: what {description.name} has of its own changes nothing"
    parts, (low, *_, high) = [], (*work, work[-1])
    for quantity in QUANTITIES:
        at, factors = knots(kind, quantity, gpu_model(description))
        if len(at):
            found = [interpolated(one, at, factors) for one in (low, high, *(knot for knot in at if low < knot < high))]
            ends = dict.fromkeys(f"{end:.2f}" for end in (min(found), max(found)))
            parts.append(f"{' to '.join(ends)} of the {_WORDS[quantity]}")
    at = knots(kind, "time", gpu_model(description))[0]
    source = description.kernel.parameters[f"{OWN}{kind}.time.rows"].source
    said = f"kernels {kind} take {' and '.join(parts)} of the library's, by {source}"
    if high > FAR * at[-1] or low < at[0] / FAR:
        unit = "bytes" if kind.startswith("streaming") else "operations"
        said += f" of {at[0]:.2g} to {at[-1]:.2g} {unit}: those of {low:.2g} to {high:.2g} are taken to differ alike"
    return said
