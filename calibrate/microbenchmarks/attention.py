"""Fused attention, forward and backward, by backend."""

from __future__ import annotations

import importlib
from typing import Any

from joulecast.calibrate.microbenchmarks.kernel import Bench, Kernel, allocating_kernel
from joulecast.errors import MeasurementError


def build(bench: Bench) -> Kernel:
    """Attention of a row: ``B Hq Hkv S D causal backend direction``.

    On CPU tensors every backend is the CPU's own kernel: that shows the code to work and says nothing about a GPU.
    """
    query, key, value = _inputs(bench)
    causal, grouped = bool(bench.row.get("causal", True)), bench.whole("Hq") != bench.whole("Hkv")
    attend = bench.torch.nn.functional.scaled_dot_product_attention
    select = _selector(bench)

    def forward() -> Any:
        with select():
            return attend(query, key, value, is_causal=causal, enable_gqa=grouped)

    direction = str(bench.row.get("direction") or "fwd")
    if direction == "fwd":
        return allocating_kernel(bench.torch.no_grad()(forward))
    if direction != "bwd":
        raise MeasurementError(f"{bench.name}: unknown direction {direction!r}", key="direction")
    inputs = (query, key, value)
    for tensor in inputs:
        tensor.requires_grad_(True)
    output = forward()
    incoming = bench.values(*output.shape)
    return allocating_kernel(lambda: bench.torch.autograd.grad(output, inputs, incoming, retain_graph=True))


def _inputs(bench: Bench) -> tuple[Any, Any, Any]:
    batch, length, width = bench.whole("B"), bench.whole("S"), bench.whole("D")
    heads, shared = bench.whole("Hq"), bench.whole("Hkv")
    if heads % shared:
        raise MeasurementError(f"{bench.name}: {heads} heads do not divide into {shared} groups", key="Hkv")
    query = bench.values(batch, heads, length, width)
    return query, bench.values(batch, shared, length, width), bench.values(batch, shared, length, width)


def _selector(bench: Bench) -> Any:
    """A context that admits the row's backend alone."""
    word = str(bench.row.get("backend") or "")
    if bench.device.type == "cpu":
        import contextlib

        return contextlib.nullcontext
    module = importlib.import_module("torch.nn.attention")
    backend = getattr(module.SDPBackend, word, None)
    if backend is None:
        raise MeasurementError(f"{bench.name}: attention backend {word!r} is missing in this PyTorch", key="backend")
    return lambda: module.sdpa_kernel(backend)
