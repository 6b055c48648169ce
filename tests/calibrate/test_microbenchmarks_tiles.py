"""Kernels with explicit tiles: their numbers in Triton's interpreter, and that they compile for a GPU without one."""

import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest

from joulecast.calibrate.microbenchmarks import tiles
from joulecast.errors import MeasurementError

pytestmark = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("triton") is None, reason="PyTorch or Triton is not installed"
)
INTERPRETED = textwrap.dedent("""
    import torch
    from joulecast.calibrate.microbenchmarks import row_forms as forms, tiles
    from joulecast.calibrate.microbenchmarks.kernel import Bench

    def run(row, *shapes):
        bench = Bench(torch, torch.device("cpu"), row, "x")
        inputs = [bench.values(*shape).double() for shape in shapes]
        kernel = tiles.build(Bench(torch, torch.device("cpu"), row, "x"))
        kernel.once()
        return kernel.result().double(), *inputs

    def close(a, b):
        assert a.shape == b.shape and (a - b).abs().max() <= 0.02 * b.abs().max(), (a - b).abs().max()

    found, x, weight = run(forms.tile_whole_rows_row("tile_rmsnorm", 12, 64, 4, 2), (12, 64), (64,))
    close(found, x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight)
    found, x, weight, shift = run(forms.tile_whole_rows_row("tile_layernorm", 12, 64, 4, 2), (12, 64), (64,), (64,))
    apart = x - x.mean(-1, keepdim=True)
    close(found, apart / (apart.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight + shift)
    found, x = run(forms.tile_whole_rows_row("tile_softmax", 12, 64, 4, 2), (12, 64))
    close(found, x.softmax(-1))
    found, x = run(forms.tile_exp_row(3, 64, 32, 1), (3, 64))
    close(found, x.exp())
    found, x = run(forms.tile_reduce_min_row(12, 64, 4, 16, 1), (12, 64))
    assert torch.equal(found, x.min(-1).values)
    PRODUCT
    print("fine")
""")
ATTENTION = textwrap.dedent("""
    import itertools, torch
    from joulecast.calibrate.microbenchmarks import row_forms as forms, tiles
    from joulecast.calibrate.microbenchmarks.kernel import Bench

    def close(a, b):
        assert a.shape == b.shape and (a - b).abs().max() <= 1e-5 * b.abs().max(), (a - b).abs().max()

    for causal, tile in itertools.product((True, False), ((16, 32), (32, 16), (64, 64))):
        made = {}
        for backward in (False, True):
            # The interpreter multiplies the bit patterns of bf16 as whole numbers.
            row = forms.tile_attention_row(1, 2, 64, 16, tile, 4, 2, causal=causal, backward=backward)
            made[backward] = tiles.build(Bench(torch, torch.device("cpu"), {**row, "dtype": "fp32"}, "x"))
            made[backward].once()
        bench = Bench(torch, torch.device("cpu"), {**row, "dtype": "fp32"}, "x")
        inputs = [bench.values(2, 64, 16).requires_grad_(True) for _ in range(3)]
        out = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=causal)
        close(made[False].result(), out)
        *found, incoming = made[True].result()
        for gradient, expected in zip(found, torch.autograd.grad(out, inputs, incoming), strict=True):
            close(gradient, expected)
    print("fine")
""")
PRODUCT = textwrap.dedent("""
    for shape, tile in (((40, 72, 64), (32, 32, 32)), ((330, 50, 32), (16, 16, 16)), ((16, 16, 16), (16, 16, 16))):
        m, n, k = shape
        # The interpreter multiplies the bit patterns of bf16 as whole numbers.
        row = {**forms.tile_gemm_row(*shape, tile, 4, 2), "dtype": "fp32"}
        found, left, right = run(row, (m, k), (k, n))
        close(found, left @ right)
""").strip()
COMPILED = textwrap.dedent("""
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from joulecast.calibrate.microbenchmarks import tile_attention_kernels, tile_kernels as kernels
    from joulecast.calibrate.microbenchmarks.triton_kernels import compiled

    def target(kernel, types, constants, **options):
        types = {**types, **dict.fromkeys(constants, "constexpr")}
        real = [place for place, kind in enumerate(types.values()) if kind != "constexpr"]
        aligned = {(place,): [["tt.divisibility", 16]] for place in real}
        source = ASTSource(fn=compiled(kernel), signature=types, constexprs=constants, attrs=aligned)
        return compile(source, target=GPUTarget("cuda", 90, 32), options=options)

    names = tile_attention_kernels.backward.__code__.co_varnames[:13]
    kinds = dict.fromkeys(names, "*bf16") | dict.fromkeys(("log_sum", "products", "to_query"), "*fp32")
    kinds |= {"scale": "fp32", "softmax_scale": "fp32", "length": "i32"}
    constants = {"causal": True, "width": 128, "tile_m": 32, "tile_n": 128}
    backward = target(tile_attention_kernels.backward, kinds, constants, num_warps=8, num_stages=2)
    assert "wgmma" in backward.asm["ptx"] and "add.v4.f32" in backward.asm["ptx"]
    product = target(
        kernels.matmul,
        {"left": "*bf16", "right": "*bf16", "out": "*bf16", "m": "i32", "n": "i32", "k": "i32"},
        {"tile_m": 128, "tile_n": 128, "tile_k": 64, "group": 8},
        num_warps=8, num_stages=4,
    )
    assert "wgmma" in product.asm["ptx"], "no tensor cores"
    assert product.metadata.shared == 4 * 2 * 128 * 64 * 2, "stages are not buffered"
    norm = {"source": "*bf16", "weight": "*bf16", "out": "*bf16"}
    target(kernels.rmsnorm, norm, {"columns": 4096, "tile_rows": 2, "epsilon": 1e-6}, num_warps=8)
    shifted = dict.fromkeys(("source", "weight", "shift", "out"), "*bf16")
    target(kernels.layernorm, shifted, {"columns": 4096, "tile_rows": 2, "epsilon": 1e-6}, num_warps=8)
    rows = {"source": "*bf16", "out": "*bf16"}
    target(kernels.softmax, rows, {"columns": 4096, "tile_rows": 2}, num_warps=8)
    least = {"source": "*fp32", "out": "*fp32"}
    target(kernels.exponential, least, {"tile_columns": 1024}, num_warps=4)
    target(kernels.reduce_min, least, {"columns": 1024, "tile_rows": 4, "tile_columns": 64}, num_warps=1)
    print("fine")
""")


def run(code, folder, **more):
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": str(folder), **more},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.strip() == "fine"


def interpreter_loops():
    """Whether Triton's interpreter can loop to a bound that is not constant; with some versions of NumPy it cannot."""
    import numpy as np

    try:
        int(np.array([1]))
    except (TypeError, DeprecationWarning):
        return False
    return True


def test_numbers(tmp_path):
    run(INTERPRETED.replace("PRODUCT", ""), tmp_path, TRITON_INTERPRET="1")


def test_numbers_of_products(tmp_path):
    if not interpreter_loops():
        pytest.skip("Triton's interpreter does not work with this version of NumPy")
    run(INTERPRETED.replace("PRODUCT", PRODUCT), tmp_path, TRITON_INTERPRET="1")


def test_numbers_of_attention_and_its_gradients(tmp_path):
    if not interpreter_loops():
        pytest.skip("Triton's interpreter does not work with this version of NumPy")
    run(ATTENTION, tmp_path, TRITON_INTERPRET="1")


@pytest.mark.slow
def test_kernels_compile_without_a_gpu(tmp_path):
    run(COMPILED, tmp_path)


def test_tiles_must_divide(monkeypatch):
    import torch

    from joulecast.calibrate.microbenchmarks import row_forms as forms
    from joulecast.calibrate.microbenchmarks.kernel import Bench

    monkeypatch.setattr(tiles, "compiled", lambda _: dict.fromkeys([(1,), (2,)]))
    cases = {
        "K": forms.tile_gemm_row(32, 32, 40, (16, 16, 16), 4, 2),
        "rows": forms.tile_whole_rows_row("tile_rmsnorm", 10, 64, 4, 1),
        "cols": forms.tile_reduce_min_row(8, 60, 4, 16, 1),
    }
    more = {"rows": forms.tile_whole_rows_row("tile_softmax", 10, 64, 4, 1), "cols": forms.tile_exp_row(2, 60, 16, 1)}
    for key, row in (*cases.items(), *more.items()):
        with pytest.raises(MeasurementError, match=f"{key} = .* is not a multiple"):
            tiles.build(Bench(torch, torch.device("cpu"), row, "x"))


def test_attention_that_the_tiles_cannot_do():
    import torch

    from joulecast.calibrate.microbenchmarks import row_forms as forms
    from joulecast.calibrate.microbenchmarks.kernel import Bench

    row = forms.tile_attention_row(1, 2, 96, 16, (32, 64), 4, 2)
    cases = {
        "S = 96 is not a multiple of tile_n = 64": row,
        "as many key-value heads as heads, 2": {**row, "Hkv": 1},
        "unknown direction 'up'": {**row, "S": 128, "direction": "up"},
    }
    for message, wrong in cases.items():
        with pytest.raises(MeasurementError, match=message):
            tiles.build(Bench(torch, torch.device("cpu"), wrong, "x"))
