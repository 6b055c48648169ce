"""What a vision tower and its projectors keep for their backward, as far as they are trained."""

from __future__ import annotations

from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.layer_shard import shard
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.memory.activations import layer_bytes
from joulecast.model.training.vision_stack import read_layers
from joulecast.model.transformer import vision_tower


def kept_bytes(config: ModelConfig, run: Implementation, batch: int, sequence: int) -> float:
    """Bytes of one micro-batch; 0 where nothing that sees images is trained.

    Projectors keep the inputs of their products, and of the activation between them; ``masked_scatter`` keeps its mask,
    of a byte for each value of the embedded tokens.
    """
    if run.images is None or not (run.images.trains_tower or run.images.trains_projector):
        return 0.0
    vision, images = vision_tower.seen(config, run)
    s, size = vision_tower.patches_of(config, run, batch), float(DTYPE_BYTES[run.dtype])
    of, rows = vision.projector, s.batch * vision.tokens(images.rows, images.columns)
    kept = float(batch * sequence * config.hidden) + vision.own_projectors * rows * size * (of.inputs + 2 * of.inner)
    if not images.trains_tower:
        return kept
    kept += size * s.tokens * vision.patch_values
    kept += (s.tokens * s.hidden * size) * ((of.norm != "") * vision.own_projectors + vision.norm_after)
    return kept + sum(
        count * layer_bytes(shard(model, s.implementation, s.batch, s.sequence))
        for model, count in read_layers(config, run)
    )
