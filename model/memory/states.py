"""Parameters that a GPU holds, how its states are split over data-parallel ranks, and what FSDP holds whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.training.data_parallel import gathered_bytes
from joulecast.model.training.layer_wise import largest_share
from joulecast.model.training.matrix import values_of
from joulecast.model.training.muon import counted
from joulecast.model.training.optimizer import matrix_state_bytes, state_bytes, temporary_bytes
from joulecast.model.training.parameters import (
    ParameterTensor,
    layer_parameters,
    outside_layers,
    parameters_of_stage,
    trained,
)
from joulecast.model.transformer.head import head_words
from joulecast.model.transformer.log_probabilities import head_outputs
from joulecast.model.transformer.narrow_kernels import weight_bytes

#: Layers whose parameters FSDP holds whole at once: the one at work and the next; and their gradients: the one at work
#: and the one that is being reduced.
WHOLE_LAYERS = 2


@dataclass(frozen=True, slots=True)
class StateShards:
    """Ranks over which parameters, gradients and optimizer states (those of experts apart) are split; 1 is whole.

    ``gradient_copies`` of all gradients lie in PyTorch's memory throughout: two with buckets, 0 where they come and go
    (:func:`joulecast.model.memory.moments.gradient_copies`).
    Parameters that ``stay_gathered`` are whole throughout a step, and so are their gradients in the type of their sums;
    layers ``wait_gathered`` from their forward to their backward.
    Gradients that ``add_up_whole`` are split in the last micro-batch's backward alone.
    """

    parameters: int = 1
    gradients: int = 1
    optimizer: int = 1
    expert_parameters: int = 1
    expert_gradients: int = 1
    expert_optimizer: int = 1
    gradient_copies: int = 0
    stay_gathered: bool = False
    wait_gathered: bool = False
    add_up_whole: bool = False

    @property
    def splits_parameters(self) -> bool:
        """Whether a rank gathers parameters that others hold."""
        return max(self.parameters, self.expert_parameters) > 1


@dataclass(frozen=True, slots=True)
class Stage:
    """What of a model one GPU of a pipeline rank has.

    ``layers`` are their number, ``others`` how many of them are of each of the model's kinds but the last; ``first``
    and ``last`` say whether it has the embedding, and the head.
    """

    config: ModelConfig
    implementation: Implementation
    layers: int
    first: bool
    last: bool
    others: tuple[int, ...]

    def parameters(self) -> tuple[ParameterTensor, ...]:
        """All of its parameters."""
        return parameters_of_stage(
            self.config, self.implementation, self.layers, first=self.first, last=self.last, others=self.others
        )

    def outside(self) -> tuple[ParameterTensor, ...]:
        """Those outside the layers."""
        return parameters_of_stage(self.config, self.implementation, 0, first=self.first, last=self.last)

    def kinds(self) -> tuple[tuple[tuple[ParameterTensor, ...], int], ...]:
        """Those of a layer of each kind, and how many of these layers there are."""
        stack = self.config.sorted_kinds(self.others, self.layers)
        return tuple((layer_parameters(kind, self.implementation), count) for kind, count in stack)


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
    if of.megatron:
        return _held(some, of, of.dtype)
    return Held(_trained_elements(some), gathered_bytes(some, of))


@lru_cache(maxsize=4096)
def parameter_bytes(stage: Stage) -> tuple[Held, Held]:
    """A stage's parameters: those that are no experts', and those that are."""
    groups = ((stage.outside(), 1), *stage.kinds())

    def held(*, expert: bool) -> Held:
        run, dtype = stage.implementation, stage.implementation.parameter_dtype
        each = [(_held((p for p in of if p.expert == expert), run, dtype), n) for of, n in groups]
        return Held(
            sum(one.elements * n for one, n in each),
            sum(one.weights * n for one, n in each),
            sum(one.optimizer * n for one, n in each),
            max(one.temporary for one, _ in each),
        )

    return held(expert=False), held(expert=True)


@lru_cache(maxsize=1024)
def uneven_bytes(stage: Stage, split: StateShards) -> float:
    """States of whole matrices that Muon's layer-wise optimizer gives the GPU with most, beyond an even share."""
    run = stage.implementation
    if run.muon is None:
        return 0.0
    parameters = stage.parameters()
    more = 0.0
    for expert, ranks in ((False, split.optimizer), (True, split.expert_optimizer)):
        matrices = counted(p for p in parameters if p.expert == expert)
        if ranks > 1 and matrices:
            more += largest_share(matrices, ranks) - values_of(matrices) / ranks
    return more * matrix_state_bytes(run)


def weights_bytes(held: tuple[Held, Held], split: StateShards) -> float:
    """Weights that a rank has of what :func:`parameter_bytes` finds."""
    rest, experts = held
    return rest.weights / split.parameters + experts.weights / split.expert_parameters


def reference_bytes(stage: Stage, split: StateShards) -> float:
    """Weights of a reference model that is a copy, or of a teacher, split as those of the model are."""
    run, teacher = stage.implementation, stage.implementation.teacher
    if teacher is not None:
        stage = replace(stage, config=teacher, layers=teacher.layers, others=teacher.others(0, teacher.layers))
    elif run.reference != "copy":
        return 0.0
    return weights_bytes(parameter_bytes(replace(stage, implementation=run.of_reference)), split)


def whole_throughout_bytes(stage: Stage) -> tuple[float, float]:
    """Parameters of one GPU that stay gathered throughout a step, and their whole gradients, which add up."""
    held = _gathered(stage.parameters(), stage.implementation)
    return held.weights, held.elements * DTYPE_BYTES[stage.implementation.gradient_dtype]


def head_elements(config: ModelConfig, implementation: Implementation) -> int:
    """Weights of the head on one rank."""
    return head_outputs(head_words(config, implementation), implementation.log_probabilities) * config.hidden


@lru_cache(maxsize=4096)
def outside_layers_bytes(config: ModelConfig, implementation: Implementation, first: bool, last: bool) -> float:
    """Gathered parameters of embedding, final norm and head, as far as a GPU has them."""
    outside = parameters_of_stage(config, implementation, 0, first=first, last=last)
    return _gathered(outside_layers(outside), implementation).weights


class Whole(NamedTuple):
    """What FSDP holds whole [bytes].

    ``between`` forward and backward, ``during`` a layer's backward, and ``further`` in the next one's beyond; of layers
    that ``wait`` gathered, what is there beyond the first of these before the backward, and ``wait_within`` beyond the
    second in it.
    """

    between: float = 0.0
    during: float = 0.0
    further: float = 0.0
    wait: float = 0.0
    wait_within: float = 0.0


@lru_cache(maxsize=4096)
def gathered_by_fsdp_bytes(stage: Stage, split: StateShards) -> Whole:
    """What FSDP holds whole; nothing where parameters are not split.

    Of the layers one, and all outside them; in the backward two and the head's gradient, which waits for those of all
    that is outside; then what the reduction of the other's gradients reads, in the type that they are reduced in.
    Megatron has the gradients of a layer and of all that is outside them. Parameters that are not split are whole
    anyway.

    PyTorch lets what it gathered go when that has been copied, and each reduction's tensors before the next
    (``wait_for_unshard`` and ``post_backward`` in ``_fsdp_param_group.py``). Peaks in layers' backwards on two H200s
    and H100s are met within 0.2 %, with Liger's kernels, in FP8 and of small models within 0.7 %; with adapters one is
    1.1 % short.
    """
    if not split.splits_parameters:
        return Whole()
    implementation = stage.implementation
    dtype, reduced = implementation.dtype, DTYPE_BYTES[implementation.gradient_dtype]

    def whole(parameters: Iterable[ParameterTensor]) -> Held:
        gathered = (
            p for p in outside_layers(parameters) if (split.expert_parameters if p.expert else split.parameters) > 1
        )
        return _gathered(gathered, implementation)

    outside = whole(stage.outside())
    each = [one for layer, count in stage.kinds() for one in [whole(layer)] * count]
    largest = sorted(each, key=lambda one: one.elements, reverse=True)
    held = largest[:WHOLE_LAYERS]
    during = sum(one.weights for one in (outside, *held))
    if implementation.megatron:
        during += reduced * sum(one.elements for one in (outside, *held[:1]))
    elif stage.last and implementation.lora is None:
        during += DTYPE_BYTES[dtype] * head_elements(stage.config, implementation)
    further = reduced * sum(one.elements for one in held[1:])
    between = sum(one.weights for one in (outside, *largest[:1]))
    if not split.wait_gathered:
        return Whole(between, during, further)
    each_layer = (_gathered(layer, implementation).weights for layer, count in stage.kinds() for _ in range(count))
    layers = sorted(each_layer, reverse=True)
    return Whole(between, during, further, sum(layers[1:]), sum(layers[WHOLE_LAYERS:]))
