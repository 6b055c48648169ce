"""Tensor-parallel communication in steps beside products, as PyTorch's compiled graphs do it (asynchronous TP).

``torch.compile`` puts one operator of symmetric memory in the place of a gathering with the products that multiply what
it gives, and of a product with the scattering of its sum. Ranks then copy one another's shares by copy engines while
they multiply those that are there, as Transformer Engine's user buffers do
(:mod:`joulecast.model.transformer.pipelined_products`). What a graph does not see as such a pair stays whole: sums of
the gradients of several products, which are scattered behind an addition, and all that is not compiled.

Source: ``micro_pipeline_tp`` in PyTorch's Inductor, ``_pipelined_multi_all_gather_and_consume`` and
``_pipelined_produce_and_all2all`` in ``torch/distributed/_symmetric_memory``, torchtitan's
``enable_async_tensor_parallel`` (2024 and 2025). None of it was measured here.
"""

from __future__ import annotations

from collections.abc import Sequence

from joulecast.model.framework.launches import Launch
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import Collective, Gemm
from joulecast.model.transformer import linear
from joulecast.model.transformer.float8_linear import ROW_PARALLEL
from joulecast.model.transformer.pipelined_products import gathered_products, scattered_product

GATHERED, SCATTERED = ".all_gather", ".reduce_scatter"


def pipelined(launches: Sequence[Launch], s: Shard) -> tuple[Launch, ...]:
    """The launches of a layer's forward or backward, with their communication in steps where products are beside it."""
    out: list[Launch] = []
    taken: set[int] = set()
    for place, launch in enumerate(launches):
        if place in taken:
            continue
        names = _multiplied(launch, s)
        products = [i for i in range(place + 1, len(launches)) if launches[i].operator.name in names][: len(names)]
        if products:
            between = [i for i in range(place + 1, products[-1]) if i not in products]
            first = [i for i in between if not isinstance(launches[i].operator, Gemm)]
            later = [i for i in between if i not in first]
            whole = [launches[i] for i in products]
            out += [launches[i] for i in first]
            out += gathered_products(
                launch.operator.name.removesuffix(GATHERED), whole, _bytes(launch), s.implementation
            )
            out += [launches[i] for i in later]
            taken |= {*between, *products}
        elif _is_scattered(launches, place):
            name, run = launch.operator.name, s.implementation
            out += scattered_product(name, launch, float(s.tokens * s.hidden), run)
            taken.add(place + 1)
        else:
            out.append(launch)
    return tuple(out)


def _multiplied(launch: Launch, s: Shard) -> tuple[str, ...]:
    """Products that a gathering is beside: those that its result is the first operand of."""
    name = launch.operator.name
    if not isinstance(launch.operator, Collective) or not name.endswith(GATHERED):
        return ()
    gradient = name.removesuffix(f".grad{GATHERED}")
    if gradient in ROW_PARALLEL:
        return (f"{gradient}.dgrad",)
    read = {"qkv": linear.projections(s), "up": linear.first_products(s)}
    return tuple(one.name for one in read.get(name.removesuffix(GATHERED), ()))


def _is_scattered(launches: Sequence[Launch], place: int) -> bool:
    """Whether a product's sum alone is scattered right behind it."""
    if not isinstance(launches[place].operator, Gemm) or place + 1 == len(launches):
        return False
    return launches[place + 1].operator.name == launches[place].operator.name + SCATTERED


def _bytes(launch: Launch) -> float:
    if not isinstance(launch.operator, Collective):
        raise TypeError(f"{launch} is no communication")
    return launch.operator.bytes
