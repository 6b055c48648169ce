"""What PyTorch's deterministic algorithms add to a Megatron layer: tensors are filled before a kernel writes them.

With ``torch.use_deterministic_algorithms(True)`` PyTorch fills every tensor that ``torch.empty`` or ``at::empty`` makes
with NaN, unless ``torch.utils.deterministic.fill_uninitialized_memory`` is false (``fill_empty_deterministic_`` in
``aten/src/ATen/native/TensorFactories.h``). Transformer Engine makes the results of its products, norms and rotations
so (``NoneQuantizer::create_tensor``, ``rmsnorm_bwd``), FlashAttention's package its own, and ``contiguous()`` its
copies. PyTorch's own products and additions and what ``torch.compile`` fused (residual additions, SwiGLU) make theirs
without filling; products that add into the gradients' buffer make none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from joulecast.model.framework.launches import Launch, streaming
from joulecast.model.kernels.operators import DTYPE_BYTES, Attention, Gemm, Operator, Streaming

#: Access patterns of kernels whose result is filled before.
FILLED_PATTERNS = ("rmsnorm", "layernorm", "norm_backward", "rope", "copy")


def with_fills(launches: Iterable[Launch]) -> Iterator[Launch]:
    """Launches of a layer, each behind the filling of what it writes.

    A fill is a launch of its own on the compute stream; a product that communication was to run beside stays behind it.
    """
    for launch in launches:
        values = filled_values(launch.operator)
        if values and launch.stream == "compute":
            yield streaming("fill", f"{launch.operator.name}.empty", values, reads=0, dtype="bf16")
        yield launch


def filled_values(kernel: Operator) -> float:
    """Two-byte values that are filled before a kernel writes its result; 0 for one that fills nothing."""
    if isinstance(kernel, Gemm):
        return 0.0 if kernel.accumulate else float(kernel.batch * kernel.m * kernel.n)
    if isinstance(kernel, Streaming):
        made = kernel.pattern in FILLED_PATTERNS and not kernel.name.endswith(".into")
        return kernel.bytes_written / 2.0 if made else 0.0
    return _attention_values(kernel) if isinstance(kernel, Attention) else 0.0


def _attention_values(kernel: Attention) -> float:
    """Result, or gradients of queries, keys and values; those of shared keys are first one for each query's head."""
    queries = float(kernel.batch * kernel.sequence * kernel.heads * kernel.head_dim)
    if kernel.direction == "forward":
        return queries
    keys = 2.0 * kernel.batch * kernel.keys * kernel.head_dim
    expanded = keys * kernel.heads if kernel.kv_heads != kernel.heads else 0.0
    summed = queries * DTYPE_BYTES["fp32"] / DTYPE_BYTES["bf16"]  # a buffer of each thread block's stride, at least one
    return queries + keys * kernel.kv_heads + expanded + summed
