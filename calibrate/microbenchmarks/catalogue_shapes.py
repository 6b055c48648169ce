"""Shapes, values and tiles that microbenchmarks are made of.

Shapes span what training of language models runs: small to large, thin, deep and shallow products in the layouts of
forward and gradients, heads of 64 and 128, short and long sequences, tensors in and out of L2; and work whose clock or
input values differ while all else is equal, from which power at other clocks and the cost of toggling follow.
"""

from __future__ import annotations

SQUARES = (256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
THIN = ((16, 12288, 12288), (32, 8192, 8192), (128, 4096, 16384), (256, 12288, 4096), (1024, 8192, 2048))
DEEP = ((512, 512, 32768), (1024, 1024, 65536), (2048, 2048, 28672), (256, 4096, 16384))
SHALLOW = ((8192, 8192, 64), (8192, 8192, 256), (16384, 4096, 512), (32768, 1024, 1024))
PROJECTIONS = ((8192, 22016, 4096), (8192, 4096, 11008), (16384, 5120, 13824), (4096, 6144, 5120), (8192, 896, 4864))
VOCABULARIES = ((8192, 50304, 2048), (4096, 151936, 3584))
#: Not multiples of any tile, or a little more than whole waves of tiles.
ODD = ((1000, 3000, 5000), (4104, 4104, 4104), (520, 6008, 3000), (4224, 4224, 4096), (2112, 2048, 8192))
INPUT_GRADIENTS = (
    (4096, 4096, 4096),
    (16384, 4096, 11008),
    (4096, 2048, 50304),
    (8192, 3072, 5120),
    (2048, 2048, 2048),
)
WEIGHT_GRADIENTS = (
    (4096, 4096, 4096),
    (22016, 4096, 8192),
    (50304, 2048, 4096),
    (5120, 3072, 8192),
    (1024, 1024, 8192),
)
BATCHED = ((16, 1024, 1024, 1024), (64, 512, 512, 512), (32, 2048, 2048, 128))
BIASED = ((4096, 12288, 3072), (8192, 8192, 8192))
VALUES = {
    (8192, 8192, 6144): ("zeros", "ones", "pow2", "sparse0.25", "sparse0.5", "sparse0.75", "sparse0.9"),
    (5120, 5120, 5120): ("zeros", "pow2", "sparse0.5"),
    (16384, 4096, 4096): ("zeros", "sparse0.5"),
}
#: Shapes by data type; the last of each also with zeros.
OTHER_TYPES = {
    "fp16": ((1024, 1024, 1024), (4096, 5120, 5120), (8192, 12288, 4096), (8192, 8192, 8192)),
    "tf32": ((1024, 1024, 1024), (4096, 5120, 5120), (8192, 4096, 12288), (8192, 8192, 8192)),
    "fp32": ((1024, 1024, 1024), (2048, 2048, 2048), (4096, 8192, 2048), (4096, 4096, 5120)),
    "fp8": ((1024, 1024, 1024), (4096, 5120, 5120), (8192, 14336, 4096), (8192, 8192, 512), (8192, 8192, 8192)),
}
#: Batch, heads, key-value heads, sequence, head width, causal.
ATTENTION = (
    (4, 32, 8, 4096, 128, True),
    (2, 32, 32, 2048, 128, True),
    (8, 16, 16, 1024, 128, True),
    (16, 16, 16, 512, 64, True),
    (1, 32, 8, 16384, 128, True),
    (1, 8, 1, 8192, 128, True),
    (8, 12, 12, 2048, 64, True),
    (2, 40, 40, 4096, 128, False),
)
#: Those of :data:`ATTENTION` that also run on FlashAttention-2.
FLASH = (0, 1, 3, 4, 7)
COPIES, COPIES_L2 = (128, 512, 2048, 8192), (1, 4, 8, 16, 20)
BUFFERS = (("fill", 256), ("fill", 4096), ("sum", 256), ("sum", 4096), ("exp", 256), ("exp", 2048))
BUFFERS_L2 = (("fill", 16), ("sum", 16), ("exp", 8))
MATRIX_VECTOR = ((2048, 2048), (4096, 4096), (8192, 8192), (32768, 8192))
ELEMENTWISE = {
    "add": ((16384, 4096), (4096, 5120)),
    "mul": ((8192, 11008), (4096, 8192)),
    "cat": ((8192, 22016), (4096, 8192)),
    "strided_unary": ((8192, 11008), (16384, 4096)),
    "strided_binary": ((8192, 11008), (16384, 4096)),
    "strided_silu_backward": ((8192, 11008), (16384, 4096)),
    "gelu": ((8192, 16384), (4096, 12288)),
    "gelu_backward": ((8192, 16384), (4096, 12288)),
    "bias_reduce": ((8192, 16384), (4096, 4096)),
}
NORMS = {
    "rmsnorm": ((8192, 4096), (16384, 8192), (4096, 2048)),
    "rmsnorm_backward_both": ((8192, 4096), (16384, 8192)),
    "rmsnorm_backward_input": ((8192, 4096),),
    "layernorm": ((8192, 4096), (4096, 12288)),
    "layernorm_backward_both": ((8192, 4096), (4096, 12288)),
    "softmax": ((8192, 8192), (16384, 4096)),
}
LOSSES = ((4096, 128256), (8192, 32000))
#: Tokens and width of look-ups; vocabulary, width and tokens of their gradients.
LOOKUPS = ((8192, 4096), (16384, 2048))
LOOKUP_GRADIENTS = ((128256, 4096, 8192), (50304, 2048, 16384))
#: Parameters and tensors of bf16 steps.
STEPS = ((1 << 28, 16), (1 << 30, 64))
TILES = (
    ((32, 32, 64), 4, 4),
    ((64, 64, 32), 4, 4),
    ((64, 128, 64), 4, 4),
    ((128, 128, 32), 4, 4),
    ((128, 128, 64), 8, 4),
    ((128, 256, 64), 8, 3),
    ((256, 64, 64), 8, 4),
)
#: Shapes of tiled products, and how many of :data:`TILES` each takes.
TILED_SHAPES = (((4096, 4096, 4096), 7), ((1024, 8192, 2048), 3))
NORM_TILES = ((1, 1), (1, 4), (2, 8), (4, 16), (8, 32))
MIN_TILES = ((1, 256, 4), (4, 64, 1), (4, 1024, 8), (16, 256, 4))
DUTIES = (0.2, 0.4, 0.6, 0.8)
#: Side, busy and idle time, values: long pulses meet the power limit, short ones run above it at full clock.
PULSES = (
    (4096, 1.0, 0.5, "randn"),
    (4096, 0.2, 0.1, "randn"),
    (4096, 0.05, 0.05, "randn"),
    (4096, 0.02, 0.02, "randn"),
    (4096, 0.005, 0.01, "randn"),
    (4096, 0.005, 0.005, "zeros"),
    (2048, 0.002, 0.004, "randn"),
)
INTERLEAVES = ((4, 0, 60), (8, 400, 0), (0, 200, 100), (20, 100, 200))
#: A resting card is kept awake this often [s].
AWAKE_S = 0.02
