"""The linear layers around attention and MLP: sizes and biases that forward, backward and parameters have in common."""

from __future__ import annotations

from dataclasses import dataclass

from joulecast.model.framework.layer_shard import Shard


@dataclass(frozen=True, slots=True)
class Linear:
    """``y[tokens, outputs] = x[tokens, inputs]·Wᵀ``, plus a ``bias`` where it has one; sizes are those of one rank."""

    name: str
    outputs: int
    inputs: int
    bias: bool = False

    @property
    def weights(self) -> int:
        """Values of the weight."""
        return self.outputs * self.inputs


def qkv(s: Shard) -> Linear:
    """The joint product for queries, keys and values."""
    return Linear("qkv", s.qkv_width, s.hidden, s.config.qkv_bias)


def projections(s: Shard) -> tuple[Linear, ...]:
    """Products in front of attention."""
    if _joint(s) or (s.config.joint_attention and s.implementation.modules == "transformers"):
        return (qkv(s),)
    keys = s.kv_heads * s.config.head_dim
    widths = {"query": s.heads * s.config.head_dim * (1 + s.config.gated_attention), "key": keys, "value": keys}
    return tuple(Linear(name, width, s.hidden, s.config.qkv_bias) for name, width in widths.items())


def output(s: Shard) -> Linear:
    """The product behind attention."""
    return Linear("output", s.hidden, s.attention_width, s.config.output_bias)


def up(s: Shard) -> Linear:
    """The MLP's first product, joined with its gate's where it has one."""
    return Linear("up", s.up_width, s.hidden, s.config.mlp_bias)


def first_products(s: Shard) -> tuple[Linear, ...]:
    """First products of the MLP."""
    if not s.config.gated_mlp or _joint(s) or (s.config.joint_up and s.implementation.modules == "transformers"):
        return (up(s),)
    return tuple(Linear(name, s.ffn, s.hidden, s.config.mlp_bias) for name in ("gate", "up"))


def down(s: Shard) -> Linear:
    """The last product of the MLP."""
    return Linear("down", s.hidden, s.ffn, s.config.mlp_bias)


def shared_up(s: Shard) -> Linear:
    """The shared experts' first product, joined with their gate's where they have one."""
    return Linear("shared_up", s.up_width, s.hidden)


def shared_first(s: Shard) -> tuple[Linear, ...]:
    """First products of shared experts: those of transformers' modules are apart but where a family joins them."""
    if s.implementation.modules != "transformers" or not s.config.gated_mlp or s.config.joint_up:
        return (shared_up(s),)
    return tuple(Linear(name, s.ffn, s.hidden) for name in ("shared_gating", "shared_up"))


def shared_down(s: Shard) -> Linear:
    """The shared experts' last product."""
    return Linear("shared_down", s.hidden, s.ffn)


def linears(s: Shard) -> tuple[Linear, ...]:
    """All products of a layer without experts."""
    return (*projections(s), output(s), *first_products(s), down(s))


def _joint(s: Shard) -> bool:
    """Whether one product makes queries, keys and values, and one gate and up."""
    modules = s.implementation.modules
    return modules == "joint" or (modules == "transformers" and s.config.joint_projections)
