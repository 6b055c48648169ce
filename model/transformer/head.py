"""Embedding and output head, forward and backward, as PyTorch's eager mode launches them."""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import (
    Launch,
    collective,
    column_sums,
    input_gradient,
    linear_forward,
    reordered,
    row_wise,
    streaming,
    weight_gradient,
)
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.kernels.unaligned import FAST_BYTES
from joulecast.model.transformer import (
    autocast_linear,
    dropout,
    liger_loss,
    log_probabilities,
    loss,
    pytorch_norm,
    softcap,
    value_head,
)
from joulecast.model.transformer import eager_layer as layer
from joulecast.model.transformer import megatron_linear as linear
from joulecast.model.transformer.linear import Linear
from joulecast.model.transformer.megatron_norm import accumulation, norm_backward

#: Tokens up to which PyTorch scatters embedding gradients by one kernel without sorting the indices.
UNSORTED_EMBEDDING_TOKENS = 3072


def embedding_is_split(config: ModelConfig, implementation: Implementation) -> bool:
    """Whether the embedding's vocabulary is split: in Megatron, and where it is the split head's matrix."""
    tied = implementation.splits_head and implementation.tied(config)
    return tied or (implementation.megatron and implementation.tensor_parallel > 1)


def head_words(config: ModelConfig, implementation: Implementation) -> int:
    """Words of the head on one rank."""
    return _share(config.vocab, implementation.splits_head, implementation)


def embedding_rows(config: ModelConfig, implementation: Implementation) -> int:
    """Rows of the embedding's table on one rank."""
    return _share(config.vocab, embedding_is_split(config, implementation), implementation)


def _share(vocab: int, split: bool, implementation: Implementation) -> int:
    return -(-vocab // implementation.tensor_parallel) if split else vocab


def embedding_forward(s: Shard) -> tuple[Launch, ...]:
    """Gather of the tokens' rows, and of the positions' where they are learned.

    Under sequence parallelism every rank embeds its own share of the sequence, unless the table is split.
    """
    s = s.stream
    config, implementation = s.config, s.implementation
    split = embedding_is_split(config, implementation)
    tokens = s.tokens if split else s.norm_tokens
    launches = [_gather("embedding", tokens, config.hidden, implementation.dtype)]
    if split:
        kind = "reduce_scatter" if implementation.sequence_parallel else "all_reduce"
        launches.append(collective(kind, f"embedding.{kind}", s.activation_bytes, implementation))
    if config.learned_positions:
        elements = s.norm_tokens * config.hidden
        launches.append(_gather("positions", min(s.norm_tokens, s.sequence), config.hidden, implementation.dtype))
        launches.append(streaming("add", "positions.add", elements, reads=2, dtype=implementation.dtype))
    if config.scaled_embeddings:
        launches.append(_scaled("embedding.scale", s))
    launches += _positions_first("embedding.order", s)
    if config.embedding_norm:
        launches.append(layer.norm_forward("embedding_norm", s))
    return (*launches, *dropout.forward("embedding", s))


def _positions_first(name: str, s: Shard) -> tuple[Launch, ...]:
    """Copy that puts positions before sequences, as Megatron's layers have them, where there are several sequences."""
    if not s.implementation.megatron or s.batch == 1:
        return ()
    tokens = s.tokens if embedding_is_split(s.config, s.implementation) else s.norm_tokens
    return (reordered(name, tokens * s.hidden, s.dtype),)


def _norm_backward(s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    """Gradient of the norm behind the embedding, where the model has one."""
    if not s.config.embedding_norm:
        return ()
    if s.implementation.megatron:
        return norm_backward("embedding_norm", s)
    kernels, sums = layer.norm_backward("embedding_norm", s, accumulate)
    return (*kernels, *sums)


def _scaled(name: str, s: Shard) -> Launch:
    """The residual stream times a number."""
    return streaming("unary", name, s.stream_values, dtype=s.dtype)


def _gather(name: str, rows: int, columns: int, dtype: str) -> Launch:
    return row_wise("embedding", name, rows, columns, dtype=dtype)


def embedding_backward(s: Shard, *, accumulate: bool, head_here: bool) -> tuple[Launch, ...]:
    """Gradient of the embedding: sorted indices, a dense gradient filled with zeros, scattered sums, accumulation."""
    s = s.stream
    config, implementation = s.config, s.implementation
    launches: list[Launch] = [*dropout.backward("embedding", s), *_norm_backward(s, accumulate)]
    launches += _positions_first("embedding.grad.order", s)
    if config.scaled_embeddings:
        launches.append(_scaled("embedding.grad.scale", s))
    if config.learned_positions:
        launches.append(
            streaming(
                "reduce",
                "positions.grad.batch",
                s.norm_tokens * config.hidden,
                writes=1 / s.batch,
                dtype=implementation.dtype,
            )
        )
        launches += _scatter("positions", min(s.norm_tokens, s.sequence), config.learned_positions, s, accumulate)
    split = embedding_is_split(config, implementation)
    if split and implementation.sequence_parallel:
        launches.append(collective("all_gather", "embedding.grad.all_gather", s.activation_bytes, implementation))
    rows = embedding_rows(config, implementation)
    # A tied head's gradient of the same matrix waits in the autograd engine and is added first.
    join = head_here and implementation.tied(config) and not implementation.megatron
    launches += _scatter("embedding", s.tokens if split else s.norm_tokens, rows, s, accumulate, join=join)
    return tuple(launches)


def _scatter(name: str, tokens: int, rows: int, s: Shard, accumulate: bool, *, join: bool = False) -> list[Launch]:
    """Gradient of a table of ``rows`` from that of ``tokens`` gathered rows; ``join`` adds the tied head's first."""
    dtype, table, weight = s.dtype, rows * s.hidden, f"{name}.weight"
    launches = [streaming("fill", f"{name}.grad.fill", table, reads=0, dtype=dtype)]
    added = accumulate or s.implementation.megatron  # which has a buffer of gradients, sharded or not
    done = "" if added else weight
    if tokens <= UNSORTED_EMBEDDING_TOKENS:
        launches.append(_scattered_sum(f"{name}.grad", tokens, s, completes=done))
    else:
        wide = 4 / DTYPE_BYTES[dtype]  # partial sums are fp32
        # Eight radix passes over 8-byte indices and their 8-byte positions.
        launches.insert(0, streaming("embedding_sort", f"{name}.sort", 16 * tokens, dtype="fp64", rows=tokens))
        launches.append(streaming("embedding_segments", f"{name}.segments", 2 * tokens, dtype="fp64", rows=tokens))
        launches.append(_scattered_sum(f"{name}.grad.partial", tokens, s, writes=wide))
        launches.append(_scattered_sum(f"{name}.grad.sum", tokens, s, reads=wide, completes=done))
    if join:
        launches.append(streaming("add", f"{name}.grad.join", table, reads=2, dtype=dtype))
    if s.implementation.megatron:
        return [*launches, *accumulation(weight, table, s.implementation)]
    return [*launches, *layer.accumulation(weight, table, dtype, accumulate)]


def _scattered_sum(
    name: str, tokens: int, s: Shard, *, reads: float = 1.0, writes: float = 1.0, completes: str = ""
) -> Launch:
    columns, dtype = s.hidden, s.dtype
    return row_wise(
        "embedding_backward", name, tokens, columns, reads=reads, writes=writes, dtype=dtype, completes=completes
    )


def head_forward(s: Shard) -> tuple[Launch, ...]:
    """Final norm, head and loss of one micro-batch; under sequence parallelism the head sees the gathered sequence."""
    config, implementation = s.config, s.implementation
    vocab, norm = head_words(config, implementation), pytorch_norm.forward("norm", s)
    if implementation.teaches:
        return (*norm, *loss.loop(s, vocab))
    if value_head.applies(s):
        return (*norm, *loss.loop(s, vocab), *value_head.forward(s))
    if log_probabilities.in_tiles(s):
        return (*norm, *loss.loop(s, vocab), *log_probabilities.chunked_forward(s, vocab))
    if liger_loss.fused(s):
        return (*norm, *loss.loop(s, vocab), *liger_loss.fused_forward(s, vocab))
    return (
        *norm,
        *layer.enter_forward("head", s),
        *autocast_linear.casts(Linear("head", vocab, s.hidden), s, wide=_reads_fp32(s)),
        linear_forward("head", s.tokens, padded(vocab, s), config.hidden, implementation.dtype),
        *_logits_scaled("logits.scale", s, vocab),
        *softcap.forward("logits", s.tokens * vocab, s.dtype, present=config.logit_softcap),
        *loss.forward(s, vocab),
    )


def head_backward(s: Shard, *, accumulate: bool, embedding_here: bool) -> tuple[Launch, ...]:
    """Gradient of loss, head and final norm."""
    config, implementation = s.config, s.implementation
    vocab = head_words(config, implementation)
    if implementation.megatron:
        return _megatron_backward(s, vocab)
    tied = embedding_here and implementation.tied(config)
    done = "head.weight" if not (accumulate or tied) else ""
    kernels, sums = pytorch_norm.backward("norm", s, accumulate)
    rows = log_probabilities.head_outputs(vocab, implementation.log_probabilities)
    # A tied matrix is accumulated with the embedding's gradient.
    added = layer.accumulation("head.weight", rows * s.hidden, s.stream.dtype, accumulate and not tied)
    if value_head.applies(s):
        own = (*value_head.backward(s, done), *added)
    elif log_probabilities.in_tiles(s):
        own = (*log_probabilities.chunked_backward(s, vocab, done), *_bias_gradient(s, vocab, accumulate), *added)
    elif liger_loss.fused(s):
        own = (*liger_loss.fused_backward(s, vocab, done), *added)
    else:
        gathers = implementation.splits_head or implementation.sequence_parallel
        own = (
            *_whole_logits_backward(s, vocab, accumulate, done),
            *added,
            *(layer.enter_backward("head", s) if gathers else ()),
        )
    return (*own, *kernels, *sums)


def _megatron_backward(s: Shard, vocab: int) -> tuple[Launch, ...]:
    """The same in Megatron; Transformer Engine leaves the head alone."""
    split, wide = s.implementation.splits_head, replace(s, implementation=replace(s.implementation, narrow=None))
    products = linear.column_backward("head", wide, vocab) if split else _whole_products(s, vocab)
    return (*_logits_backward(s, vocab, accumulate=True), *products, *norm_backward("norm", s))


def _logits_backward(s: Shard, vocab: int, *, accumulate: bool) -> tuple[Launch, ...]:
    """Gradients of the loss, of what happens to logits in front of it, and of the head's bias."""
    return (
        *loss.backward(s, vocab),
        *softcap.backward("logits", s.tokens * vocab, s.dtype, present=s.config.logit_softcap),
        *_logits_scaled("logits.grad.scale", s, vocab),
        *_bias_gradient(s, vocab, accumulate),
    )


def _whole_logits_backward(s: Shard, vocab: int, accumulate: bool, done: str) -> tuple[Launch, ...]:
    """Gradients of the head's product in PyTorch, behind those of its logits."""
    first, last = ("", done) if s.implementation.autocast else (done, "")
    columns = padded(vocab, s)
    return (
        *_logits_backward(s, vocab, accumulate=accumulate),
        *((streaming("copy", "head.grad.pad", s.tokens * vocab, dtype=s.dtype),) if columns > vocab else ()),
        weight_gradient("head", s.tokens, columns, s.hidden, s.dtype, completes=first),
        input_gradient("head", s.tokens, columns, s.hidden, s.dtype),
        *autocast_linear.uncasts(Linear("head", vocab, s.hidden), s, wide=_reads_fp32(s), completes=last),
    )


def _reads_fp32(s: Shard) -> bool:
    """Whether the head's product is given fp32: a graph of the whole model rounds it where its norm makes it."""
    return pytorch_norm.gives_fp32(s) and not s.implementation.whole_graph


def _logits_scaled(name: str, s: Shard, vocab: int) -> tuple[Launch, ...]:
    """Logits, or their gradient, times a number, where the model has one."""
    if not s.config.scaled_logits:
        return ()
    return (streaming("unary", name, s.tokens * vocab, dtype=s.dtype),)


def _bias_gradient(s: Shard, vocab: int, accumulate: bool) -> tuple[Launch, ...]:
    """Column sum of the head's bias, where the model has one."""
    if not s.config.head_bias:
        return ()
    run, done = s.implementation, "" if accumulate or s.implementation.megatron else "head.bias"
    total = column_sums("head.bias.grad", s.tokens, vocab, run.dtype, done)
    if run.megatron:
        return (total, *accumulation("head.bias", vocab, run))
    return (total, *layer.accumulation("head.bias", vocab, s.stream.dtype, accumulate))


def padded(vocab: int, s: Shard) -> int:
    """Columns of the head's product: where it compiles the model whole, Inductor pads rows to multiples of 16 bytes."""
    values = int(FAST_BYTES // s.value_bytes)
    return -(-vocab // values) * values if s.implementation.whole_graph else vocab


def _whole_products(s: Shard, vocab: int) -> tuple[Launch, ...]:
    """Gradients of a head that every rank holds whole, in Megatron's order."""
    hidden, dtype = s.hidden, s.dtype
    return (
        input_gradient("head", s.tokens, vocab, hidden, dtype),
        weight_gradient("head", s.tokens, vocab, hidden, dtype, completes="head.weight"),
        *(layer.enter_backward("head", s) if s.implementation.sequence_parallel else ()),
    )
