"""What libraries and Megatron hold from one iteration to the next beside states and activations."""

from __future__ import annotations

from functools import lru_cache

from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.training.parameters import layer_parameters
from joulecast.model.transformer.head import head_words

#: A workspace of cuBLAS on Hopper: PyTorch has one for cuBLAS and one for cuBLASLt, Transformer Engine one of its own
#: and four for the streams of grouped products.
LIBRARY_BYTES = 32 * 1024.0**2
PYTORCH, TRANSFORMER_ENGINE, GROUPED = 2, 1, 4


def workspace_bytes(s: Shard, *, last: bool) -> float:
    """Workspaces, and in Megatron buffers, of a rank that holds the head or (not ``last``) does not.

    Megatron's head keeps the buffer in which sequence-parallel ranks gather its input. With all of it 20 dense
    iterations on H200s are within 0.1 % (`validate/recorded/h200_sxm/train_megatron.jsonl` and ``…_second``).
    """
    run = s.implementation
    if not run.megatron:
        return PYTORCH * LIBRARY_BYTES
    experts = any(kind.experts is not None for kind in s.config.kinds)
    spaces = PYTORCH + TRANSFORMER_ENGINE + (GROUPED if experts else 0)
    gathered = s.activation_bytes if last and run.sequence_parallel else 0.0
    return spaces * LIBRARY_BYTES + gathered + _stand_in_bytes(s.config, run, last=last)


@lru_cache(maxsize=256)
def _stand_in_bytes(config: ModelConfig, implementation: Implementation, *, last: bool) -> float:
    """Gradients that Megatron's products give autograd in place of those that they add to the buffer: one a shape.

    Transformer Engine keeps them (``get_dummy_wgrad``); what an H200 had allocated between iterations showed them.
    """
    layers = (layer_parameters(kind, implementation) for kind in config.kinds)
    weights = (p for layer in layers for p in layer if p.name.endswith(".weight") and p.elements > config.hidden)
    shapes = {(p.elements // p.tensors, p.row_values) for p in weights}
    if last:
        shapes.add((head_words(config, implementation) * config.hidden, config.hidden))
    return float(DTYPE_BYTES[implementation.dtype] * sum(elements for elements, _ in shapes))
