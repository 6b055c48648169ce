"""Completions that an inference engine on the training's own GPUs generates for a method that learns from them.

An engine (vLLM, SGLang) keeps a batch of sequences live. Each of its steps reads all weights once, and the keys and
values of all that the live sequences have seen, to give every one of them its next token:

    t_step ~ (weights + live * context * 2 * kv_heads * head_dim * layers) / bandwidth + overhead

Weights are read by the kernels of training, joined as such engines have them, with as many rows as there are live
sequences; keys and values as a kernel that reduces reads memory. Then a token is drawn from the logits. Before all
steps the weights are copied into the engine, and prompts run as a training's forward does, once for all completions.

Nothing here was fitted. What an engine's host adds to a step is :data:`STEP_OVERHEAD_S`.

Sources: Pope et al., arXiv 2211.05102 (memory-bound steps); Kwon et al., 2309.06180 (vLLM).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch, linear_forward, row_wise, streaming
from joulecast.model.framework.layer_shard import shard
from joulecast.model.kernels.operators import DTYPE_BYTES, Attention
from joulecast.model.training.parameters import parameters_of_stage
from joulecast.model.training.step import embedding_forward, layer_forward
from joulecast.model.transformer import pytorch_norm
from joulecast.model.transformer.row_operators import widened

#: Time for which a step's GPU waits for the engine's host, which chooses what runs next and reads the tokens back [s];
#: kernels are replayed as graphs. Engines of 2024 took 4 to 13 ms (vLLM's issue 6854), those of 2026 hide most of it
#: behind the step before: published times of a token of Llama-3.1-8B, on an H100 and an A100, were in view. The second
#: number is the most of the 90 % interval, whose least is none [estimate].
STEP_OVERHEAD_S, MOST_OVERHEAD_S = 0.5e-3, 3e-3
#: Tokens of prompts that an engine takes at once (vLLM's ``max_num_batched_tokens``, by default for offline use).
PREFILL_TOKENS = 8192
#: What all of these kernels' names begin with.
PREFIX = "generation."


@dataclass(frozen=True, slots=True)
class Generated:
    """What one GPU's engine generates for an iteration.

    Attributes
    ----------
    prompts, prompt_tokens
        Distinct prompts, and tokens of each.
    live, context
        Sequences that a step serves, and tokens that each of them has seen, in the mean.
    steps
        Steps that give every live sequence a token.
    overhead_s
        Time of a step in which the GPU waits for the engine's host [s].
    """

    prompts: int
    prompt_tokens: int
    live: int
    context: float
    steps: int
    overhead_s: float = STEP_OVERHEAD_S


def engine_of(run: Implementation) -> Implementation:
    """What runs in an engine: joint products and fused operations, in the type that the training computes in."""
    return Implementation(
        attention_backend=run.attention_backend,
        rotary=run.rotary,
        tie_embeddings=run.tie_embeddings,
        dtype=run.dtype,
        compiled=True,
    )


def generation(
    config: ModelConfig, kinds: Sequence[tuple[ModelConfig, int]], run: Implementation, work: Generated
) -> tuple[Launch, ...]:
    """Kernels of the generation of an iteration's completions on one GPU, each with how often it runs.

    Parameters
    ----------
    kinds
        Layers as pairs of their model and number.
    run
        What trains the model.
    """
    engine = engine_of(run)
    elements = sum(p.elements for p in parameters_of_stage(config, engine, config.layers, first=True, last=True))
    wait = streaming("fill", "wait", 1, reads=0, late_s=work.overhead_s)
    of_one = [*decode_step(config, kinds, engine, work), *((wait,) if work.overhead_s else ())]
    launches = (
        streaming("copy", "weights", elements, dtype=run.dtype),
        *_prefill(config, kinds, engine, work),
        *_often(of_one, work.steps),
    )
    return tuple(replace(x, operator=replace(x.operator, name=f"{PREFIX}{x.operator.name}")) for x in launches)


def key_value_bytes(config: ModelConfig, run: Implementation, tokens: float) -> float:
    """Keys and values of so many tokens, in all layers."""
    return 2.0 * DTYPE_BYTES[run.dtype] * tokens * config.layers * config.kv_heads * config.head_dim


def _prefill(
    config: ModelConfig, kinds: Sequence[tuple[ModelConfig, int]], engine: Implementation, work: Generated
) -> Iterable[Launch]:
    """Prompts' forward, as many at once as an engine takes."""
    most = max(1, PREFILL_TOKENS // work.prompt_tokens)
    times = -(-work.prompts // most)
    if not times:
        return
    at_once = -(-work.prompts // times)
    yield from _often(embedding_forward(config, engine, at_once, work.prompt_tokens), times)
    for kind, count in kinds:
        yield from _often(layer_forward(kind, engine, at_once, work.prompt_tokens), count * times)


def decode_step(
    config: ModelConfig, kinds: Sequence[tuple[ModelConfig, int]], engine: Implementation, work: Generated
) -> Iterable[Launch]:
    """Kernels of one step of all live sequences."""
    yield from embedding_forward(config, engine, work.live, 1)
    for kind, count in kinds:
        own = layer_forward(kind, engine, work.live, 1)
        yield from _often((_reads(kind, work, x) if isinstance(x.operator, Attention) else x for x in own), count)
    s = shard(config, engine, work.live, 1)
    yield from pytorch_norm.forward("norm", s)
    yield linear_forward("head", work.live, config.vocab, config.hidden, engine.dtype)
    yield from _drawn(work.live * config.vocab, work.live, config.vocab, engine.dtype)


def _reads(kind: ModelConfig, work: Generated, launch: Launch) -> Launch:
    """Attention of one query of each live sequence: its keys and values, read once."""
    seen = min(work.context, kind.window) if kind.window else work.context
    values = 2.0 * work.live * seen * kind.kv_heads * kind.head_dim
    return replace(
        launch, operator=streaming("reduce", "attention", values, writes=0, dtype=launch.operator.dtype).operator
    )


def _drawn(logits: int, rows: int, words: int, dtype: str) -> Iterable[Launch]:
    """Tokens drawn from logits: in fp32, over a temperature, as probabilities, each over a random number."""
    yield widened("draw.widen", logits, dtype)
    yield streaming("unary", "draw.temperature", logits, dtype="fp32")
    yield row_wise("log_softmax", "draw.softmax", rows, words, dtype="fp32")
    yield streaming("fill", "draw.random", logits, reads=0, dtype="fp32")
    yield streaming("mul", "draw.divide", logits, reads=2, dtype="fp32")
    yield streaming("reduce", "draw.greatest", logits, writes=0, dtype="fp32")


def _often(launches: Iterable[Launch], times: int) -> Iterable[Launch]:
    return (replace(one, repeat=one.repeat * times) for one in launches)
