"""Floating-point operations that training a model takes by definition, whatever a plan adds to them.

Every weight of a matrix product that a token meets takes 2 operations forward and 4 backward; attention takes 4·D for
every pair of positions and head, half of the pairs being masked, and twice that backward. Only the experts that a token
is sent to count, and of pairs those within a local layer's window. State spaces and linear attention take
the products of their chunked scan (``scan_operations`` of :class:`~joulecast.model.architecture.state_space.StateSpace`
and :class:`~joulecast.model.architecture.delta_net.DeltaNet`). Recomputation, padding and imbalance do
not. Norms and element-wise work are left out. A module that predicts a further token counts as a layer, an output head
and its projection.

Source: Narayanan et al., arXiv 2104.04473, appendix; Chowdhery et al., PaLM, arXiv 2204.02311, appendix B (masked pairs
are counted there too).
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.architecture.vision import Images, Vision
from joulecast.model.kernels.documents import Documents


def training_flops(
    config: ModelConfig,
    sequence: int,
    tokens: float,
    adapters: int | None = None,
    documents: Documents | None = None,
    *,
    scored: float = 1.0,
    further_forwards: float = 0.0,
) -> float:
    """Operations of a forward and backward of ``tokens`` tokens in sequences of ``sequence``.

    ``scored``: the head meets this share of the tokens. ``further_forwards``: so often a model of this size reads them
    without gradients. ``adapters``: so many weights are trained beside the model's, which are frozen and take 2
    operations backward. ``documents``: attention keeps to these in each sequence, and sees no pairs of other positions.
    """
    layers = [*config.runs(0, config.layers), (config.prediction_layer, config.mtp_layers)]
    scans = sum(count * kind.mixer.scan_operations(sequence) for kind, count in layers if kind.mixer)
    weights = float(sum(count * matrix_elements(kind) for kind, count in layers))
    weights += (scored + config.mtp_layers) * config.hidden * config.vocab + config.mtp_layers * 2 * config.hidden**2
    seen = sum(count * _seen(kind, sequence, documents) for kind, count in layers)
    pairs = 2.0 * seen * sequence * config.heads * config.head_dim
    whole = (3.0 + further_forwards) * tokens * (2.0 * weights + pairs + scans)
    return whole if adapters is None else whole + tokens * (6.0 * adapters - 2.0 * weights)


def image_flops(vision: Vision, images: Images, sequences: float) -> float:
    """Operations of the images of so many sequences: forward, and backward of what is trained."""
    patches, of, shape = float(images.patches), vision.tower, (images.rows, images.columns)
    pairs = sum(
        count * patches / (vision.windows(*shape) if kind.window else 1) for kind, count in of.runs(0, of.layers)
    )
    elements = of.layers * matrix_elements(of) + of.hidden * vision.patch_values
    tower = patches * (2.0 * elements + 4.0 * pairs * of.heads * of.head_dim)
    products = sum(outputs * inputs for _, outputs, inputs in vision.projector.products)
    projectors = 2.0 * vision.own_projectors * vision.tokens(*shape) * products
    each = (3.0 if images.trains_tower else 1.0) * tower
    return sequences * images.per_sequence * (each + (1.0 + images.trains_tower + images.trains_projector) * projectors)


def megatron_flops(config: ModelConfig, sequence: int, tokens: float) -> float:
    """Operations of a step as Megatron counts them: :func:`training_flops` but for state spaces.

    Of each of these it takes twice the hidden size for the values of a token, however many its heads have, and 7
    operations for each of them and of its states (``mamba_layer_flops`` in ``megatron/training/training.py``).
    """
    counted = training_flops(config, sequence, tokens)
    for kind, count in config.runs(0, config.layers):
        mixer = kind.state_space
        if mixer is not None:
            inner = 2 * config.hidden
            products = 2.0 * config.hidden * (3 * inner - 3 * mixer.inner)
            counted += 3.0 * tokens * count * (products + 7.0 * inner * mixer.state - mixer.scan_operations(sequence))
    return counted


def seen_share(window: int, sequence: int) -> float:
    """Share of the pairs under a causal mask that lie within a window of so many tokens."""
    share = min(window, sequence) / sequence
    return share * (2.0 - share)


def chunk_share(chunk: int, sequence: int) -> float:
    """Share of those pairs that lie within chunks of so many tokens; of the last one there may be a part."""
    whole, rest = divmod(sequence, chunk)
    return (whole * chunk**2 + rest**2) / sequence**2


def _seen(config: ModelConfig, sequence: int, documents: Documents | None) -> float:
    """Share of the pairs under a causal mask that a model of like layers sees."""
    if not config.attends:
        return 0.0
    if documents is not None:
        return documents.pairs(config.window) / (0.5 * sequence**2)
    if not config.window:
        return 1.0
    return (chunk_share if config.chunked else seen_share)(config.window, sequence)


def matrix_elements(config: ModelConfig) -> int:
    """Elements of the matrices of one layer that one token meets, the layer having experts where the model has."""
    gates, attention = 2 if config.gated_mlp else 1, 0
    if config.state_space is not None:
        attention = config.hidden * (config.state_space.projected + config.state_space.inner)
    elif config.delta_net is not None:
        attention = config.hidden * (config.delta_net.projected + config.delta_net.values)
    elif not config.attends:
        pass
    elif config.latent is not None:
        norms = config.latent.kv_rank + config.latent.query_rank
        attention = config.latent.parameters(config.hidden, config.heads) - norms
    else:
        attention = config.hidden * (config.qkv_width + config.attention_width + config.gate_width)
    if not config.feeds_forward:
        return attention
    if config.experts is None:
        return attention + config.hidden * config.ffn * (gates + 1)
    experts = replace(config.experts, bias=False)
    return attention + experts.parameters(config.hidden, gated=config.gated_mlp, active=True)
