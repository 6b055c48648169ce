"""Parameter tensors of a pipeline stage on one rank, in the order in which a module registers them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from joulecast.model.architecture.experts import Experts, LatentAttention
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.layer_shard import Shard, shard
from joulecast.model.training.matrix import Matrix
from joulecast.model.transformer import delta_net, linear, state_space, vision_tower
from joulecast.model.transformer.expert_rows import expert_shard
from joulecast.model.transformer.head import embedding_is_split, embedding_rows, head_words
from joulecast.model.transformer.linear import Linear
from joulecast.model.transformer.log_probabilities import head_outputs
from joulecast.model.transformer.vision_tower import TOWER

#: Products that end a branch of the residual stream, whose sums tensor-parallel ranks add up.
ENDS = ("output", "out_proj", "down", "shared_down")


@dataclass(frozen=True, slots=True)
class ParameterTensor:
    """One parameter of a module.

    Attributes
    ----------
    name
        ``embedding.weight``, ``layers.3.qkv.weight``, …; without the layer's prefix it is what
        :attr:`joulecast.model.framework.launches.Launch.completes` says.
    elements
        Number of values on this rank.
    rows
        Rows of a table whose gradient reaches only the rows of the tokens seen (an untied embedding), else 0.
    replicated
        Whether the tensor-parallel ranks hold copies rather than shares.
    linear
        Whether it is the weight of a layer's linear layer that may run in FP8 or FP4.
    expert
        Whether it belongs to experts, whose gradients other ranks sum than those of the rest.
    tensors
        Tensors that it stands for: Megatron keeps each expert's weights apart.
    frozen
        Whether it has neither a gradient nor states, as all beside adapters.
    adapter
        Whether it is an adapter's, which has a type of its own.
    columns
        Values of a row of a matrix that is not ``matrix``, 0 of a vector.
    matrix
        Shape of each of its tensors where they are weights of linear layers, but for the head.
    tower_layer
        Whether it belongs to a layer of a vision tower, which FSDP shards as a unit of its own.
    """

    name: str
    elements: int
    rows: int = 0
    replicated: bool = False
    linear: bool = False
    expert: bool = False
    tensors: int = 1
    frozen: bool = False
    adapter: bool = False
    columns: int = 0
    matrix: Matrix | None = None
    tower_layer: bool = False

    @property
    def row_values(self) -> int:
        """Values of a row of a matrix, 0 of a vector."""
        return self.columns if self.matrix is None else self.matrix.columns


def trained(parameters: Iterable[ParameterTensor]) -> tuple[ParameterTensor, ...]:
    """Those that have gradients."""
    return tuple(p for p in parameters if not p.frozen)


@lru_cache(maxsize=256)
def layer_parameters(config: ModelConfig, implementation: Implementation) -> tuple[ParameterTensor, ...]:
    """Parameters of one layer on one tensor-parallel rank, names without the layer's prefix."""
    s = shard(config, implementation, 1, 2 * implementation.tensor_parallel * implementation.context_parallel)
    tensors: list[ParameterTensor] = []
    linears: list[Linear] = []
    if config.attends:
        linears += (*(linear.projections(s) if config.latent is None else ()), linear.output(s))
    if s.state_space is not None:
        linears += state_space.projections(s)
        tensors += (ParameterTensor(name, elements) for name, elements in state_space.scalars(s).items())
    if s.delta_net is not None:
        linears += delta_net.projections(s)
        tensors += (ParameterTensor(name, elements) for name, elements in delta_net.scalars(s).items())
        tensors.append(ParameterTensor("delta_norm.weight", s.delta_net.value_dim))
    if config.latent is not None:
        tensors += _latent(s, config.latent)
    if config.feeds_forward and config.experts is None:
        linears += (*linear.first_products(s), linear.down(s))
    elif config.feeds_forward and config.experts is not None:
        tensors += _experts(s, config.experts)
    for one in linears:
        tensors += _of_linear(one, s)
    if config.attention_sinks and config.attends:
        tensors.append(ParameterTensor("sinks", s.heads))
    for part, size in zip(("query", "key"), config.qk_norm_sizes if config.attends else (), strict=False):
        tensors.append(ParameterTensor(f"{part}_norm.weight", size, replicated=True))
    if config.stays_wide:
        tensors = [replace(tensor, linear=False) for tensor in tensors]
    tensors += (tensor for name in config.norms for tensor in _norm(name, config))
    return (*_frozen(tensors, implementation), *_adapters(linears, implementation))


def _of_linear(one: Linear, s: Shard) -> Iterator[ParameterTensor]:
    """Weight and bias; products that end a branch are split by their inputs and have their bias on every rank."""
    ends = one.name in ENDS
    matrix = Matrix(_joint_rows(s) if one.name == "qkv" else (one.outputs,), one.inputs, "columns" if ends else "rows")
    yield ParameterTensor(f"{one.name}.weight", one.weights, linear=True, matrix=matrix)
    if one.bias:
        yield ParameterTensor(f"{one.name}.bias", one.outputs, replicated=ends)


def _joint_rows(s: Shard) -> tuple[int, ...]:
    """Outputs of a joint product for queries, their gates, keys and values."""
    keys, queries = s.kv_heads * s.config.head_dim, s.heads * s.config.head_dim
    gates = s.qkv_width - queries - 2 * keys
    return (queries, *((gates,) if gates else ()), keys, keys)


def _frozen(tensors: Iterable[ParameterTensor], run: Implementation) -> tuple[ParameterTensor, ...]:
    """Parameters of which all but adapters are frozen where there are any."""
    return tuple(tensors) if run.lora is None else tuple(replace(one, frozen=not one.adapter) for one in tensors)


def _adapters(linears: Iterable[Linear], run: Implementation) -> Iterator[ParameterTensor]:
    """A and B beside the linear layers that have adapters."""
    if run.lora is None:
        return
    by_name = {one.name: one for one in linears}
    for name in run.lora.targets:
        one = by_name[name]
        elements, columns = run.lora.elements(one.outputs, one.inputs), (one.inputs, run.lora.rank)
        for matrix, values, width in zip("ab", elements, columns, strict=True):
            yield ParameterTensor(f"{name}.lora_{matrix}.weight", values, adapter=True, columns=width)


def _latent(s: Shard, latent: LatentAttention) -> Iterator[ParameterTensor]:
    """Projections of latent attention in front of its kernel; those to the latent vectors are on every rank."""
    hidden, keys = s.hidden, latent.kv_rank
    if latent.query_rank:
        yield _whole("query_down.weight", latent.query_rank, hidden, linear=True)
        yield ParameterTensor("query_norm.weight", latent.query_rank, replicated=True)
    yield _split("query_up.weight", s.heads * latent.key_dim, latent.query_rank or hidden)
    yield _whole("key_down.weight", keys + latent.rotary_dim, hidden, linear=True)
    yield ParameterTensor("key_norm.weight", keys, replicated=True)
    yield _split("key_up.weight", s.heads * (latent.plain_dim + latent.value_dim), keys)


def _whole(name: str, outputs: int, inputs: int, *, linear: bool = False) -> ParameterTensor:
    """A weight that every tensor-parallel rank has whole."""
    return ParameterTensor(name, outputs * inputs, replicated=True, linear=linear, matrix=Matrix((outputs,), inputs))


def _split(name: str, outputs: int, inputs: int) -> ParameterTensor:
    """A weight of which every tensor-parallel rank has some of the outputs."""
    return ParameterTensor(name, outputs * inputs, linear=True, matrix=Matrix((outputs,), inputs, "rows"))


def _experts(s: Shard, experts: Experts) -> Iterator[ParameterTensor]:
    """Router, the rank's experts and its share of the shared ones."""
    e, hidden = expert_shard(s), s.hidden
    yield _whole("router.weight", experts.count, hidden)
    width = experts.row_width(hidden)
    for name, matrix in (
        ("experts.up", Matrix((e.up_width,), width, "rows", expert=True)),
        ("experts.down", Matrix((width,), e.ffn, "columns", expert=True)),
    ):
        yield ParameterTensor(
            f"{name}.weight", e.experts * matrix.elements, linear=True, expert=True, tensors=e.experts, matrix=matrix
        )
    if experts.latent:
        yield _whole("experts.latent_down.weight", experts.latent, hidden, linear=True)
        yield _whole("experts.latent_up.weight", hidden, experts.latent, linear=True)
    if experts.bias:
        yield ParameterTensor("router.bias", experts.count, replicated=True)
        yield ParameterTensor("experts.up.bias", e.experts * e.up_width, expert=True)
        yield ParameterTensor("experts.down.bias", e.experts * hidden, expert=True)
    if experts.shared_ffn:
        for one in (*linear.shared_first(s), linear.shared_down(s)):
            yield from _of_linear(one, s)
    if experts.shared_gate:
        yield _whole("shared_gate.weight", 1, hidden)


def _predictions(config: ModelConfig, run: Implementation, *, embedding: bool) -> Iterator[ParameterTensor]:
    """Modules that predict further tokens; ``embedding``: with a copy of the table that another stage has too."""
    if embedding:
        split = embedding_is_split(config, run)
        rows = embedding_rows(config, run)
        yield ParameterTensor("mtp.embedding.weight", rows * config.hidden, rows=rows, replicated=not split)
    for index in range(config.prediction_modules):
        yield _split(f"mtp.{index}.projection.weight", config.hidden // run.tensor_parallel, 2 * config.hidden)
        for name in ("token_norm", "hidden_norm", "norm"):
            yield from _norm(f"mtp.{index}.{name}", config)
        for tensor in layer_parameters(config.prediction_layer, run):
            yield replace(tensor, name=f"mtp.{index}.{tensor.name}")


def _norm(name: str, config: ModelConfig) -> tuple[ParameterTensor, ...]:
    kinds = ("weight", "bias") if config.norm_bias else ("weight",)
    return tuple(ParameterTensor(f"{name}.{kind}", config.hidden, replicated=True) for kind in kinds)


@lru_cache(maxsize=2048)
def _numbered(config: ModelConfig, implementation: Implementation, index: int) -> tuple[ParameterTensor, ...]:
    """Parameters of a layer with its number in their names."""
    return tuple(replace(t, name=f"layers.{index}.{t.name}") for t in layer_parameters(config, implementation))


@lru_cache(maxsize=256)
def parameters_of_stage(
    config: ModelConfig,
    implementation: Implementation,
    layers: int,
    *,
    first: bool,
    last: bool,
    others: tuple[int, ...] = (),
    with_frozen: bool = True,
) -> tuple[ParameterTensor, ...]:
    """Parameters of one stage (or virtual stage) on one tensor-parallel rank.

    Parameters
    ----------
    layers
        Number of the stage's layers.
    others
        How many of them are of each of the model's kinds of layers but the last; empty: all are as the last.
    first, last
        If it holds the embedding, and the final norm with the head. A tied matrix counts once where the stage holds
        both, and on each stage otherwise. Modules that predict further tokens lie behind the final norm.
    with_frozen
        Whether those without gradients are among them.
    """
    tied = implementation.tied(config)
    stack = [kind for kind, count in config.sorted_kinds(others, layers) for _ in range(count)]
    tensors = [*_embedding(config, implementation), *vision_parameters(config, implementation)] if first else []
    for index, kind in enumerate(stack):
        tensors += _numbered(kind, implementation, index)
    if last:
        tensors += _head(config, implementation, matrix=not (tied and first))
        if config.mtp_layers:
            tensors += _predictions(config, implementation, embedding=not (first or tied))
    found = _frozen(tensors, implementation)
    return found if with_frozen else trained(found)


def _embedding(config: ModelConfig, implementation: Implementation) -> list[ParameterTensor]:
    """In front of the first layer; the gradient of a table of its own has few rows, that of a tied one all."""
    split = embedding_is_split(config, implementation)
    rows = embedding_rows(config, implementation)
    sparse = 0 if implementation.tied(config) else rows
    hidden = config.hidden
    tensors = [ParameterTensor("embedding.weight", rows * hidden, rows=sparse, replicated=not split, columns=hidden)]
    if config.learned_positions:
        positions = config.learned_positions * hidden
        tensors.append(ParameterTensor("positions.weight", positions, replicated=True, columns=hidden))
    if config.embedding_norm:
        tensors += _norm("embedding_norm", config)
    return tensors


def tower_layer_parameters(config: ModelConfig, run: Implementation) -> tuple[ParameterTensor, ...]:
    """Parameters of one layer of a vision tower."""
    vision, images = vision_tower.seen(config, run)
    layer = layer_parameters(vision.tower, vision_tower.tower_run(run))
    return tuple(replace(p, frozen=not images.trains_tower, tower_layer=True) for p in layer)


def outside_layers(parameters: Iterable[ParameterTensor]) -> tuple[ParameterTensor, ...]:
    """Those that are of no layer of a vision tower."""
    return tuple(p for p in parameters if not p.tower_layer)


def vision_parameters(
    config: ModelConfig, run: Implementation, *, numbered: bool = True
) -> tuple[ParameterTensor, ...]:
    """Parameters of a vision tower and its projectors, where images are seen.

    ``numbered``: of all its layers, else of one, with the names that :attr:`Launch.completes` has. Layers that nothing
    reads have no gradients.
    """
    if run.images is None:
        return ()
    vision, images = vision_tower.seen(config, run)
    layer, read = tower_layer_parameters(config, run), vision.tower.layers - vision.unread
    tensors = [
        replace(p, name=f"{TOWER}{index}.{p.name}", frozen=p.frozen or index >= read)
        for index in range(vision.tower.layers)
        for p in layer
    ]
    if not numbered:
        tensors = [replace(p, name=f"{TOWER}{p.name}") for p in layer]
    for sizes, trains in (
        (vision.end_sizes, images.trains_tower),
        (vision_tower.projector_sizes(vision), images.trains_projector),
    ):
        tensors += (ParameterTensor(f"{TOWER}{name}", size, frozen=not trains) for name, size in sizes.items())
    return tuple(tensors)


def _head(config: ModelConfig, implementation: Implementation, *, matrix: bool) -> list[ParameterTensor]:
    """Behind the last layer: the final norm, the head's ``matrix`` unless it is the stage's embedding, and its bias."""
    split = implementation.splits_head
    vocab = head_words(config, implementation)
    rows = head_outputs(vocab, implementation.log_probabilities)
    tensors = [*_norm("norm", config)]
    if matrix:
        weights = rows * config.hidden
        tensors.append(ParameterTensor("head.weight", weights, replicated=not split, columns=config.hidden))
    if config.head_bias:
        tensors.append(ParameterTensor("head.bias", rows, replicated=not split))
    return tensors
