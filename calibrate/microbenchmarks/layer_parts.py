"""Halves of a transformer layer as sharded by tensor parallelism, as separate PyTorch kernels, forward only.

Root-mean-square norm, projection, attention by PyTorch's default backend and output projection; norm, projection to
gate and up, SiLU, product and projection down. There is no rotary embedding.
"""

from __future__ import annotations

from typing import Any

from joulecast.calibrate.microbenchmarks.kernel import Bench

#: Spread of the weights.
WEIGHT_SPREAD = 0.02


class LayerParts:
    """One rank's share of a layer.

    Parameters
    ----------
    bench
        Its row names ``hidden heads kv_heads ffn tp``.
    """

    def __init__(self, bench: Bench) -> None:
        self._torch, self._bench = bench.torch, bench
        ranks, hidden = bench.whole("tp"), bench.whole("hidden")
        heads, shared = bench.whole("heads"), bench.whole("kv_heads")
        self._width = hidden // heads
        self._heads, self._shared = heads // ranks, max(1, shared // ranks)
        inner, ffn = self._heads * self._width, bench.whole("ffn") // ranks
        self._to_qkv = self._weight((self._heads + 2 * self._shared) * self._width, hidden)
        self._from_heads = self._weight(hidden, inner)
        self._to_ffn, self._from_ffn = self._weight(2 * ffn, hidden), self._weight(hidden, ffn)
        self._gain = self._torch.ones(hidden, device=bench.device, dtype=bench.dtype())

    def _weight(self, out: int, inside: int) -> Any:
        return self._bench.values(out, inside).mul_(WEIGHT_SPREAD)

    def _norm(self, x: Any) -> Any:
        return self._torch.nn.functional.rms_norm(x, (x.shape[-1],), self._gain)

    def project(self, x: Any) -> Any:
        """Norm and projection to queries, keys and values."""
        return self._torch.nn.functional.linear(self._norm(x), self._to_qkv)

    def attend(self, projected: Any) -> Any:
        """Attention and output projection."""
        functional = self._torch.nn.functional
        batch, length, _ = projected.shape
        sizes = [self._heads * self._width, self._shared * self._width, self._shared * self._width]
        query, key, value = (
            part.view(batch, length, -1, self._width).transpose(1, 2) for part in projected.split(sizes, -1)
        )
        grouped = self._heads != self._shared
        out = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
        return functional.linear(out.transpose(1, 2).reshape(batch, length, -1), self._from_heads)

    def attention(self, x: Any) -> Any:
        """The attention half."""
        return self.attend(self.project(x))

    def mlp(self, x: Any) -> Any:
        """The half of the gated MLP."""
        functional = self._torch.nn.functional
        gate, up = functional.linear(self._norm(x), self._to_ffn).chunk(2, -1)
        return functional.linear(functional.silu(gate) * up, self._from_ffn)
