"""Floating-point operations that training a model takes by definition, whatever a plan adds to them.

Every weight of a matrix product that a token meets takes 2 operations forward and 4 backward; attention takes 4·D for
every pair of positions and head, half of the pairs being masked, and twice that backward. Only the experts that a token
is sent to count, and of pairs those within a local layer's window. Recomputation, padding and imbalance do not. Norms
and element-wise work are left out. A module that predicts a further token counts as a layer, an output head and its
projection.

Source: Narayanan et al., arXiv 2104.04473, appendix; Chowdhery et al., PaLM, arXiv 2204.02311, appendix B (masked pairs
are counted there too).
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.architecture.model_config import ModelConfig


def training_flops(config: ModelConfig, sequence: int, tokens: float) -> float:
    """Operations of a forward and backward of ``tokens`` tokens in sequences of ``sequence``."""
    layers, heads = config.layers + config.mtp_layers, 1 + config.mtp_layers
    weights = layers * matrix_elements(config) + heads * config.hidden * config.vocab
    weights += config.mtp_layers * 2 * config.hidden**2
    if config.experts is not None:
        weights += config.dense_layers * (matrix_elements(config.dense) - matrix_elements(config))
    local = config.others(0, config.layers) if config.window_pattern else layers if config.window else 0
    seen = (layers - local) * sequence + local * seen_share(config.sliding_window, sequence) * sequence
    pairs = 2.0 * seen * config.heads * config.head_dim
    return 3.0 * tokens * (2.0 * weights + pairs)


def seen_share(window: int, sequence: int) -> float:
    """Share of the pairs under a causal mask that lie within a window of so many tokens."""
    share = min(window, sequence) / sequence
    return share * (2.0 - share)


def matrix_elements(config: ModelConfig) -> int:
    """Elements of the matrices of one layer that one token meets, the layer having experts where the model has."""
    gates = 2 if config.gated_mlp else 1
    if config.latent is not None:
        norms = config.latent.kv_rank + config.latent.query_rank
        attention = config.latent.parameters(config.hidden, config.heads) - norms
    else:
        attention = config.hidden * (config.qkv_width + config.attention_width)
    if config.experts is None:
        return attention + config.hidden * config.ffn * (gates + 1)
    experts = replace(config.experts, bias=False)
    return attention + experts.parameters(config.hidden, gated=config.gated_mlp, active=True)
