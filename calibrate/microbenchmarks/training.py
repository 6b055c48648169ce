"""Single kernels of a training step (rows of op ``stream``), launched as PyTorch's modules launch them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from joulecast.calibrate.microbenchmarks import streaming
from joulecast.calibrate.microbenchmarks.kernel import Bench, Kernel, allocating_kernel, copy_kernel, kernel_into
from joulecast.errors import MeasurementError

#: Rows of the table from which embeddings are looked up where a row does not say.
VOCABULARY = 128256
RMS_EPSILON = 1e-6


def build(bench: Bench) -> Kernel:
    """The kernel of a row's ``pattern`` on a tensor of its ``shape``."""
    maker = _MAKERS.get(str(bench.row.get("pattern")))
    if maker is None:
        raise MeasurementError(f"{bench.name}: no training kernel {bench.row.get('pattern')!r}", key="pattern")
    rows, columns = (int(side) for side in bench.row["shape"])
    return maker(bench, rows, columns)


def _into_buffer(name: str, operands: int) -> Callable[[Bench, int, int], Kernel]:
    """An element-wise function of PyTorch that writes into a buffer."""

    def make(bench: Bench, rows: int, columns: int) -> Kernel:
        sources = [bench.values(rows, columns) for _ in range(operands)]
        return kernel_into(bench, getattr(bench.torch, name), *sources)

    return make


def _halves(bench: Bench, rows: int, columns: int) -> tuple[Any, Any]:
    """Gate and up of a gated MLP: the two halves of every row of one product, so that neither is contiguous."""
    gate, up = bench.values(rows, 2 * columns).chunk(2, -1)
    return gate, up


def _strided_unary(bench: Bench, rows: int, columns: int) -> Kernel:
    gate, _ = _halves(bench, rows, columns)
    return _forward(bench.torch.nn.functional.silu, gate)


def _strided_binary(bench: Bench, rows: int, columns: int) -> Kernel:
    _, up = _halves(bench, rows, columns)
    return kernel_into(bench, bench.torch.mul, bench.values(rows, columns), up)


def _strided_silu_backward(bench: Bench, rows: int, columns: int) -> Kernel:
    gate, _ = _halves(bench, rows, columns)
    return _gradient(bench, bench.torch.nn.functional.silu, (gate,))


def _cat(bench: Bench, rows: int, columns: int) -> Kernel:
    """Joins two tensors along the rows, as the gradient of a split does."""
    left, right = bench.values(rows, columns // 2), bench.values(rows, columns - columns // 2)
    out = bench.empty(rows, columns)
    return Kernel(lambda: bench.torch.cat((left, right), dim=-1, out=out), result=lambda: out)


def _forward(function: Callable[..., Any], *sources: Any) -> Kernel:
    return allocating_kernel(lambda: function(*sources))


def _gradient(
    bench: Bench,
    function: Callable[..., Any],
    active: tuple[Any, ...],
    constant: tuple[Any, ...] = (),
    *,
    capture: bool = True,
) -> Kernel:
    """The backward of ``function(*active, *constant)`` for all ``active`` tensors, its forward done once before."""
    torch = bench.torch
    leaves = tuple(tensor.detach().requires_grad_(True) for tensor in active)
    output = function(*leaves, *constant)
    incoming = torch.ones_like(output) if output.dim() == 0 else bench.values(*output.shape, dtype=output.dtype)
    return allocating_kernel(lambda: torch.autograd.grad(output, leaves, incoming, retain_graph=True), capture=capture)


def _rms_norm(bench: Bench) -> Callable[[Any, Any], Any]:
    functional = bench.torch.nn.functional
    return lambda x, weight: functional.rms_norm(x, (x.shape[-1],), weight, RMS_EPSILON)


def _layer_norm(bench: Bench) -> Callable[[Any, Any, Any], Any]:
    functional = bench.torch.nn.functional
    return lambda x, weight, offset: functional.layer_norm(x, (x.shape[-1],), weight, offset)


def _cross_entropy(bench: Bench, rows: int, columns: int) -> Kernel:
    logits, target = bench.values(rows, columns), bench.whole_values(columns, (rows,))
    return _forward(bench.torch.nn.functional.cross_entropy, logits, target)


def _cross_entropy_backward(bench: Bench, rows: int, columns: int) -> Kernel:
    target = bench.whole_values(columns, (rows,))
    return _gradient(bench, bench.torch.nn.functional.cross_entropy, (bench.values(rows, columns),), (target,))


def _embedding(bench: Bench, rows: int, columns: int) -> Kernel:
    table = bench.values(int(bench.row.get("vocabulary") or VOCABULARY), columns)
    tokens = bench.whole_values(table.shape[0], (rows,))
    return _forward(bench.torch.nn.functional.embedding, tokens, table)


def _embedding_backward(bench: Bench, rows: int, columns: int) -> Kernel:
    """The dense gradient of a table of ``rows``: it sorts the tokens, which a graph cannot record."""
    functional = bench.torch.nn.functional
    tokens = bench.whole_values(rows, (max(1, int(bench.row["elements"]) // columns),))
    table = bench.values(rows, columns)
    return _gradient(bench, lambda t: functional.embedding(tokens, t), (table,), capture=False)


def _zero(bench: Bench, rows: int, columns: int) -> Kernel:
    gradients = [bench.values(max(1, rows // columns)) for _ in range(columns)]
    return Kernel(lambda: bench.torch._foreach_zero_(gradients), result=lambda: gradients)


#: Kernels by pattern, of so many rows (m) and columns (n).
_MAKERS: dict[str, Callable[[Bench, int, int], Kernel]] = {
    "copy": lambda b, m, n: copy_kernel(b.values(m, n), b.empty(m, n)),
    "exp": _into_buffer("exp", 1),
    "add": _into_buffer("add", 2),
    "mul": _into_buffer("mul", 2),
    "cat": _cat,
    "strided_unary": _strided_unary,
    "strided_binary": _strided_binary,
    "strided_silu_backward": _strided_silu_backward,
    "rmsnorm": lambda b, m, n: _forward(_rms_norm(b), b.values(m, n), b.values(n)),
    "rmsnorm_backward_both": lambda b, m, n: _gradient(b, _rms_norm(b), (b.values(m, n), b.values(n))),
    "rmsnorm_backward_input": lambda b, m, n: _gradient(b, _rms_norm(b), (b.values(m, n),), (b.values(n),)),
    "layernorm": lambda b, m, n: _forward(_layer_norm(b), b.values(m, n), b.values(n), b.values(n)),
    "layernorm_backward_both": lambda b, m, n: _gradient(b, _layer_norm(b), (b.values(m, n), b.values(n), b.values(n))),
    "softmax": lambda b, m, n: _forward(lambda x: b.torch.softmax(x, dim=-1), b.values(m, n)),
    "gelu": lambda b, m, n: _forward(b.torch.nn.functional.gelu, b.values(m, n)),
    "gelu_backward": lambda b, m, n: _gradient(b, b.torch.nn.functional.gelu, (b.values(m, n),)),
    "bias_reduce": lambda b, m, n: _forward(lambda x: x.sum(dim=0), b.values(m, n)),
    "cross_entropy": _cross_entropy,
    "cross_entropy_backward": _cross_entropy_backward,
    "embedding": _embedding,
    "embedding_backward": _embedding_backward,
    "adamw_bf16": streaming.adamw_step,
    "foreach_zero": _zero,
}
