"""Backwards of layers whose own weights are frozen: what only their gradients need is not launched.

Gradients of activations flow on, through every frozen product, norm and the head, to the first layer with an adapter.
That one's input takes none, as the frozen embedding has no use for it; what leads there from its first adapters is left
out too.
"""

from __future__ import annotations

from collections.abc import Iterable

from joulecast.model.framework.launches import Launch
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import linear

#: How names of kernels end that only gradients of parameters need.
WEIGHT_ONLY = (
    *(".wgrad", ".wgrad.widen", ".bias.grad", ".bias.grad.widen", ".gamma.product", ".gamma.grad", ".gamma.round"),
    ".accumulate",
)
#: What stands in names of adapters' kernels.
ADAPTER = ".lora_"
#: How names of kernels end, behind a product's, that lead to its input's gradient.
TO_INPUT = (
    *(".dgrad", ".dgrad.widen", ".lora_a.dgrad", ".lora.grad.widen", ".lora.dropout.grad", ".lora.grad.round"),
    *(".lora.grad.sum", ".grad.branches", ".dgrad.round", ".dgrad.absmax", ".dgrad.offset", ".dgrad.nf4"),
)


def without_weight_gradients(launches: Iterable[Launch]) -> tuple[Launch, ...]:
    """A backward in which no weight has a gradient but those of adapters."""
    return tuple(one for one in launches if ADAPTER in one.operator.name or not one.operator.name.endswith(WEIGHT_ONLY))


def without_input_gradient(launches: tuple[Launch, ...], s: Shard) -> tuple[Launch, ...]:
    """Backward of a layer with adapters whose input takes no gradient."""
    targets = () if s.implementation.lora is None else s.implementation.lora.targets
    first, up = ([one.name for one in of(s)] for of in (linear.projections, linear.first_products))
    entered = next(group for group in (first, ["output"], up, ["down"]) if set(group) & set(targets))
    if s.config.shared_norm and entered == first:  # what the MLP reads is the first norm's result too
        entered = [*first, *up]
    own = {
        name: tuple(f"{before}{name}." for before in ("", "rotary.", "rotary.grad.", "attention.")) for name in entered
    }
    last = max(i for i, one in enumerate(launches) if one.operator.name.startswith(sum(own.values(), ())))
    needless = {f"{name}{end}" for name in entered for end in TO_INPUT}
    for name in entered:
        if name not in targets:
            ahead = (*own[name], f"{name}_norm.")
            needless |= {x.operator.name for x in launches if x.operator.name.startswith(ahead)}
    if "up" in targets:  # the gate's product gives up's gradient too
        needless.discard("gate.product.grad_up")
    elif "up" in entered:
        needless.add("gate.product.grad_up")
    return tuple(one for one in launches[: last + 1] if one.operator.name not in needless)
