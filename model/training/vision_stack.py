"""A vision tower's forward and backward: its layers, and what stands around them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch
from joulecast.model.training import step
from joulecast.model.transformer import vision_tower as tower

#: How names of the kernels of tower, projector and what is between them and the text model begin.
TOWER = "tower."


@lru_cache(maxsize=64)
def images_forward(config: ModelConfig, run: Implementation, batch: int, sequence: int) -> tuple[Launch, ...]:
    """From pixels to rows among the embedded tokens of a micro-batch; nothing where the model sees no images."""
    if run.images is None:
        return ()
    vision, images = tower.seen(config, run)
    s = tower.patches_of(config, run, batch)
    launches = list(tower.patches_forward(vision, s))
    for model, count in tower.tower_layers(vision, images):
        layer = step.layer_forward(model, s.implementation, s.batch, s.sequence)
        launches += (*tower.layer_called(layer, vision, images, s),) * count
    launches += (*tower.projected_forward(vision, s, config.hidden, batch * sequence), tower.asked(vision, images))
    return tuple(_named(launches))


@lru_cache(maxsize=64)
def images_backward(
    config: ModelConfig, run: Implementation, batch: int, sequence: int, *, accumulate: bool = True
) -> tuple[Launch, ...]:
    """Gradient of :func:`images_forward` as far as anything of it is trained."""
    if run.images is None:
        return ()
    vision, images = tower.seen(config, run)
    s, finds = tower.patches_of(config, run, batch), accumulate and run.added_share > 0.0
    rows = batch * sequence
    launches = list(tower.projected_backward(vision, s, images, config.hidden, rows, accumulate=finds))
    if images.trains_tower:
        for model, count in read_layers(config, run)[::-1]:
            layer = step.layer_backward(model, s.implementation, s.batch, s.sequence, accumulate=accumulate)
            launches += (*tower.layer_called(layer, vision, images, s),) * count
        launches += tower.patches_backward(vision, s, accumulate=finds)
    return step.with_added_share(tuple(_named(launches)), run)


def read_layers(config: ModelConfig, run: Implementation) -> tuple[tuple[ModelConfig, int], ...]:
    """Layers of the tower whose results are read, as :func:`~vision_tower.tower_layers` gives them."""
    vision, images = tower.seen(config, run)
    (*before, (last, count)) = tower.tower_layers(vision, images)
    return (*before, (last, count - vision.unread))


def _named(launches: list[Launch]) -> Iterator[Launch]:
    """Launches whose names tell them, and the parameters whose gradients they complete, from the text model's."""
    for one in launches:
        name = replace(one.operator, name=f"{TOWER}{one.operator.name}")
        yield replace(one, operator=name, completes=one.completes and f"{TOWER}{one.completes}")
