"""A vision tower's forward and backward: its layers, and what stands around them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch
from joulecast.model.training import step
from joulecast.model.transformer import vision_tower as tower


class TowerPass(NamedTuple):
    """A pass through a vision tower: launches in front of its layers and behind them, in the pass's order.

    ``layers`` are launches of one layer, with how many alike follow each other.
    """

    before: tuple[Launch, ...] = ()
    layers: tuple[tuple[tuple[Launch, ...], int], ...] = ()
    after: tuple[Launch, ...] = ()

    @property
    def launches(self) -> tuple[Launch, ...]:
        """All of them."""
        return (*self.before, *(one for layer, count in self.layers for one in layer * count), *self.after)


@lru_cache(maxsize=64)
def images_forward(config: ModelConfig, run: Implementation, batch: int, sequence: int) -> TowerPass:
    """From pixels to rows among the embedded tokens of a micro-batch; nothing where the model sees no images."""
    if run.images is None:
        return TowerPass()
    vision, images = tower.seen(config, run)
    s = tower.patches_of(config, run, batch)
    each = (
        (tower.layer_called(step.layer_forward(model, s.implementation, s.batch, s.sequence), vision, images, s), count)
        for model, count in tower.tower_layers(vision, images)
    )
    after = (*tower.projected_forward(vision, s, config.hidden, batch * sequence), tower.asked(vision, run))
    return _named(tower.patches_forward(vision, s), each, after)


@lru_cache(maxsize=64)
def images_backward(
    config: ModelConfig, run: Implementation, batch: int, sequence: int, *, accumulate: bool = True
) -> TowerPass:
    """Gradient of :func:`images_forward` as far as anything of it is trained."""
    if run.images is None:
        return TowerPass()
    vision, images = tower.seen(config, run)
    s, finds = tower.patches_of(config, run, batch), accumulate and run.added_share > 0.0
    before = tower.projected_backward(vision, s, images, config.hidden, batch * sequence, accumulate=finds)
    before = step.with_added_share(before, run)
    if not images.trains_tower:
        return _named(before, (), ())
    each = (
        (
            tower.layer_called(
                step.layer_backward(model, s.implementation, s.batch, s.sequence, accumulate=accumulate),
                vision,
                images,
                s,
            ),
            count,
        )
        for model, count in read_layers(config, run)[::-1]
    )
    return _named(before, each, step.with_added_share(tower.patches_backward(vision, s, accumulate=finds), run))


def read_layers(config: ModelConfig, run: Implementation) -> tuple[tuple[ModelConfig, int], ...]:
    """Layers of the tower whose results are read, as :func:`~vision_tower.tower_layers` gives them."""
    vision, images = tower.seen(config, run)
    (*before, (last, count)) = tower.tower_layers(vision, images)
    return (*before, (last, count - vision.unread))


def _named(
    before: Iterable[Launch], layers: Iterable[tuple[Iterable[Launch], int]], after: Iterable[Launch]
) -> TowerPass:
    """Launches whose names tell them, and the parameters whose gradients they complete, from the text model's."""

    def named(launches: Iterable[Launch]) -> tuple[Launch, ...]:
        return tuple(
            replace(
                one,
                operator=replace(one.operator, name=f"{tower.TOWER}{one.operator.name}"),
                completes=one.completes and f"{tower.TOWER}{one.completes}",
            )
            for one in launches
        )

    return TowerPass(named(before), tuple((named(layer), count) for layer, count in layers), named(after))
