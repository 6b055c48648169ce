"""Parameters that a GPU holds, how its states are split over data-parallel ranks, and what FSDP holds whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.training.data_parallel import gathered_bytes
from joulecast.model.training.optimizer import state_bytes, temporary_bytes
from joulecast.model.training.parameters import ParameterTensor, layer_parameters, parameters_of_stage, trained
from joulecast.model.transformer.narrow_kernels import weight_bytes

#: Layers whose parameters FSDP holds whole at once: the one at work and the next; and their gradients: the one at work
#: and the one that is being reduced.
WHOLE_LAYERS = 2


@dataclass(frozen=True, slots=True)
class StateShards:
    """Ranks over which parameters, gradients and optimizer states (those of experts apart) are split; 1 is whole.

    ``gradient_copies`` of all gradients lie in PyTorch's memory throughout: two with buckets, 0 where they come and go.
    Parameters that ``stay_gathered`` are whole throughout a step, and so are their gradients in the type of their sums.
    """

    parameters: int = 1
    gradients: int = 1
    optimizer: int = 1
    expert_parameters: int = 1
    expert_gradients: int = 1
    expert_optimizer: int = 1
    gradient_copies: int = 0
    stay_gathered: bool = False

    @property
    def splits_parameters(self) -> bool:
        """Whether a rank gathers parameters that others hold."""
        return max(self.parameters, self.expert_parameters) > 1


@dataclass(frozen=True, slots=True)
class Held:
    """Parameters held together: the number of those that are trained, and the bytes of all weights.

    ``optimizer`` are the bytes of the optimizer's states, ``temporary`` what its step needs beside, at most.
    """

    elements: float
    weights: float
    optimizer: float = 0.0
    temporary: float = 0.0


def _held(parameters: Iterable[ParameterTensor], of: Implementation, dtype: str) -> Held:
    some = tuple(parameters)
    small = of.lora is not None and bool(of.lora.base)
    own = [p for p in some if not p.adapter and not (small and p.linear)]
    adapters = sum(p.elements for p in some if p.adapter) * DTYPE_BYTES[of.trained_dtype]
    if of.lora is not None and small:
        adapters += sum(p.elements for p in some if p.linear) * of.lora.base_bytes
    return Held(
        _trained_elements(some),
        weight_bytes(own, of.kept_narrow, dtype) + adapters,
        sum(state_bytes(p, of) for p in trained(some)),
        max((temporary_bytes(p, of) for p in trained(some)), default=0.0),
    )


def _trained_elements(parameters: Iterable[ParameterTensor]) -> float:
    return float(sum(p.elements for p in trained(parameters)))


def _gathered(parameters: Iterable[ParameterTensor], of: Implementation) -> Held:
    """The same of parameters that are gathered: Megatron keeps them as it has them, PyTorch as they arrive."""
    some = tuple(parameters)
    if of.framework == "megatron":
        return _held(some, of, of.dtype)
    return Held(_trained_elements(some), gathered_bytes(some, of))


@lru_cache(maxsize=4096)
def parameter_bytes(
    config: ModelConfig, implementation: Implementation, layers: int, first: bool, last: bool, others: tuple[int, ...]
) -> tuple[Held, Held]:
    """A stage's parameters: those that are no experts', and those that are."""
    outside = parameters_of_stage(config, implementation, 0, first=first, last=last)
    stack = config.sorted_kinds(others, layers)
    groups = [(outside, 1), *((layer_parameters(kind, implementation), count) for kind, count in stack)]

    def held(*, expert: bool) -> Held:
        dtype = implementation.parameter_dtype
        each = [(_held((p for p in of if p.expert == expert), implementation, dtype), n) for of, n in groups]
        return Held(
            sum(one.elements * n for one, n in each),
            sum(one.weights * n for one, n in each),
            sum(one.optimizer * n for one, n in each),
            max(one.temporary for one, _ in each),
        )

    return held(expert=False), held(expert=True)


def weights_bytes(held: tuple[Held, Held], split: StateShards) -> float:
    """Weights that a rank has of what :func:`parameter_bytes` finds."""
    rest, experts = held
    return rest.weights / split.parameters + experts.weights / split.expert_parameters


def reference_bytes(
    config: ModelConfig,
    implementation: Implementation,
    layers: int,
    first: bool,
    last: bool,
    others: tuple[int, ...],
    split: StateShards,
) -> float:
    """Weights of a reference model that is a copy, split as those of the model are."""
    if implementation.reference != "copy":
        return 0.0
    return weights_bytes(parameter_bytes(config, implementation.of_reference, layers, first, last, others), split)


def whole_throughout_bytes(
    config: ModelConfig, implementation: Implementation, layers: int, first: bool, last: bool, others: tuple[int, ...]
) -> tuple[float, float]:
    """Parameters of one GPU that stay gathered throughout a step, and their whole gradients, which add up."""
    outside = parameters_of_stage(config, implementation, layers, first=first, last=last, others=others)
    held = _gathered(outside, implementation)
    return held.weights, held.elements * DTYPE_BYTES[implementation.gradient_dtype]


@lru_cache(maxsize=4096)
def outside_layers_bytes(config: ModelConfig, implementation: Implementation, first: bool, last: bool) -> float:
    """Gathered parameters of embedding, final norm and head, as far as a GPU has them."""
    return _gathered(parameters_of_stage(config, implementation, 0, first=first, last=last), implementation).weights


@lru_cache(maxsize=4096)
def gathered_by_fsdp_bytes(
    config: ModelConfig,
    implementation: Implementation,
    layers: int,
    first: bool,
    last: bool,
    others: tuple[int, ...],
    split: StateShards,
) -> tuple[float, float, float]:
    """What FSDP holds whole between forward and backward, while a layer's backward runs, and in the next one's beyond.

    Of the layers one, and all outside them; then two with the gradients of one and, eagerly, the source of a copy; then
    the other's gradients, in the type that they are reduced in. Megatron has the gradients of what is outside them as
    well. Parameters that are not split are whole anyway.
    """
    dtype, reduced = implementation.dtype, DTYPE_BYTES[implementation.gradient_dtype]

    def whole(parameters: Iterable[ParameterTensor]) -> Held:
        gathered = (p for p in parameters if (split.expert_parameters if p.expert else split.parameters) > 1)
        return _gathered(gathered, implementation)

    outside = whole(parameters_of_stage(config, implementation, 0, first=first, last=last))
    stack = config.sorted_kinds(others, layers)
    each = [one for kind, count in stack for one in [whole(layer_parameters(kind, implementation))] * count]
    largest = sorted(each, key=lambda one: one.elements, reverse=True)
    copies = 0 if implementation.framework == "megatron" else 1
    held = largest[:WHOLE_LAYERS]
    during = sum(one.weights for one in (outside, *held, *largest[:copies]))
    made = reduced if copies == 0 else DTYPE_BYTES[dtype]
    during += made * sum(one.elements for one in ((outside, *held[:1]) if copies == 0 else held[:1]))
    further = reduced * sum(one.elements for one in held[1:])
    return sum(one.weights for one in (outside, *largest[:1])), during, further
