"""Microbenchmarks on CPU tensors: the same code as on a GPU, with sizes that a CPU does in milliseconds."""

import gc
import math
import time
import weakref

import pytest

torch = pytest.importorskip("torch")

from joulecast.calibrate.devices.protocol import CardFacts  # noqa: E402
from joulecast.calibrate.microbenchmarks import loads  # noqa: E402
from joulecast.calibrate.microbenchmarks import row_forms as forms  # noqa: E402
from joulecast.calibrate.microbenchmarks.catalogue import single_gpu  # noqa: E402
from joulecast.calibrate.microbenchmarks.engine import Engine  # noqa: E402
from joulecast.calibrate.microbenchmarks.kernel import Bench  # noqa: E402
from joulecast.calibrate.microbenchmarks.loads import kernel_of  # noqa: E402
from joulecast.calibrate.microbenchmarks.protocol import Microbenchmark  # noqa: E402
from joulecast.calibrate.microbenchmarks.shrink import shrink  # noqa: E402
from joulecast.calibrate.microbenchmarks.torch_runner import TorchRunner  # noqa: E402
from joulecast.errors import MeasurementError  # noqa: E402

CPU = torch.device("cpu")
FACTS = CardFacts("x:0", "card", "NVIDIA", "1", None, None, None, 1980.0, None, memory_bytes=141 << 30)
ALL = single_gpu(FACTS)
#: One of every stratum and op, or of every pattern.
CHOSEN = {(b.stratum, b.row["op"], b.row.get("pattern"), b.row.get("dtype"), b.row.get("layout")): b for b in ALL}
PLAIN = [b for b in CHOSEN.values() if not b.row["op"].startswith("tile_")]


@pytest.fixture(scope="module")
def runner():
    return TorchRunner("cpu")


def built(row, name="x"):
    """A kernel of a row that ran once, and its result in double precision."""
    kernel = kernel_of(Bench(torch, CPU, row, name))
    kernel.once()
    return kernel


def drawn(row, *shapes, name="x"):
    """The buffers that a kernel of this row drew first, in order, in double precision."""
    bench = Bench(torch, CPU, row, name)
    return [bench.values(*shape).double() for shape in shapes]


@pytest.mark.parametrize("one", PLAIN, ids=lambda b: b.name)
def test_every_stratum_runs(runner, one):
    load = runner.prepare(one)
    try:
        count, seconds = load.run(0.004)
    finally:
        load.close()
    assert count >= 1
    assert 0.0 < seconds < 1.0


def test_all_strata_are_among_them():
    assert {b.stratum for b in PLAIN} == {b.stratum for b in ALL} - {"tile"}


def test_repetitions_are_launches(runner, monkeypatch):
    calls = []
    real = loads.kernel_of

    def counting(bench):
        kernel = real(bench)
        return type(kernel)(lambda: calls.append(1) or kernel.once(), kernel.capture, kernel.result)

    monkeypatch.setattr(loads, "kernel_of", counting)
    load = runner.prepare(next(b for b in ALL if b.stratum == "gemm.bf16"))
    calls.clear()
    count, _ = load.run(0.01)
    assert count == len(calls) > 0
    load.close()


def test_time_is_that_of_the_work(runner):
    one = next(b for b in ALL if b.name == "gemm_bf16_2048x2048x2048_randn")
    load = runner.prepare(one)
    count, seconds = load.run(0.05)
    load.close()
    assert 0.04 < seconds < 0.5
    assert seconds / count < 0.01


def close(found, expected, tolerance=2e-2):
    scale = expected.double().abs().max().item() or 1.0
    assert (found.double() - expected.double()).abs().max().item() <= tolerance * scale


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "tf32", "fp32"])
@pytest.mark.parametrize("layout", ["tn", "nn", "nt"])
def test_products(dtype, layout):
    row = forms.gemm_row(24, 40, 56, dtype, layout=layout)
    left, right = {
        "tn": lambda a, b: (a, b.t()),
        "nn": lambda a, b: (a, b),
        "nt": lambda a, b: (a.t(), b),
    }[layout](*drawn(row, (56, 24) if layout == "nt" else (24, 56), (40, 56) if layout == "tn" else (56, 40)))
    found = built(row).result()
    assert found.shape == (24, 40)
    close(found, left @ right, 1e-2 if dtype in ("bf16", "fp16") else 1e-5)


def test_batched_and_biased_products():
    row = forms.gemm_row(8, 24, 16, batch=3)
    left, right = drawn(row, (3, 8, 16), (3, 24, 16))
    close(built(row).result(), torch.einsum("bmk,bnk->bmn", left, right))
    row = forms.gemm_row(8, 24, 16, bias=True)
    left, right, bias = drawn(row, (8, 16), (24, 16), (24,))
    close(built(row).result(), left @ right.t() + bias)


def test_products_of_eight_bits():
    row = forms.gemm_row(32, 48, 64, "fp8")
    left, right = drawn(row, (32, 64), (48, 64))
    close(built(row).result(), left @ right.t())
    with pytest.raises(MeasurementError, match="layout tn only"):
        built(forms.gemm_row(32, 48, 64, "fp8", layout="nn"))


def test_the_precision_of_others_is_left_alone():
    before = torch.get_float32_matmul_precision()
    seen = []
    row = forms.gemm_row(8, 8, 8, "tf32")
    kernel = kernel_of(Bench(torch, CPU, row, "x"))
    real = torch.mm
    try:
        torch.mm = lambda *a, **k: seen.append(torch.get_float32_matmul_precision()) or real(*a, **k)
        kernel.once()
        kernel_of(Bench(torch, CPU, {**row, "dtype": "fp32"}, "x")).once()
    finally:
        torch.mm = real
    assert seen == ["high", "highest"]
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize(
    ("data", "zero", "one"),
    [("randn", 0.0, 0.0), ("zeros", 1.0, 0.0), ("ones", 0.0, 1.0), ("pow2", 0.0, 1.0), ("sparse0.75", 0.75, 0.0)],
)
def test_input_values(data, zero, one):
    values = Bench(torch, CPU, {"dtype": "fp32", "data": data}, "x").values(100, 200).double()
    assert (values == 0).double().mean().item() == pytest.approx(zero, abs=0.02)
    assert (values.abs() == 1).double().mean().item() == pytest.approx(one, abs=0.02)
    if data in ("randn", "pow2"):
        assert values.mean().item() == pytest.approx(0.0, abs=0.03)
        assert values.std().item() == pytest.approx(1.0, abs=0.03)
    if data == "randn":
        assert values.unique().numel() > 15000


def test_input_values_repeat_and_differ():
    row = {"dtype": "bf16"}
    first, again = (Bench(torch, CPU, row, "a").values(50) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, Bench(torch, CPU, row, "b").values(50))
    bench = Bench(torch, CPU, row, "a")
    assert not torch.equal(bench.values(50), bench.values(50))


@pytest.mark.parametrize("data", ["sparse2", "sparsely", "noise"])
def test_unknown_input_values(data):
    with pytest.raises(MeasurementError, match="unknown input values"):
        Bench(torch, CPU, {"dtype": "bf16", "data": data}, "x").values(4)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
def test_attention(causal, heads):
    row = forms.attention_row(2, *heads, 12, 16, causal=causal)
    query, key, value = drawn(row, (2, heads[0], 12, 16), *[(2, heads[1], 12, 16)] * 2)
    key, value = (t.repeat_interleave(heads[0] // heads[1], dim=1) for t in (key, value))
    scores = query @ key.transpose(2, 3) / math.sqrt(16)
    if causal:
        scores = scores.masked_fill(torch.ones(12, 12).triu(1).bool(), -math.inf)
    close(built(row).result(), scores.softmax(-1) @ value)


def test_attention_backward():
    row = forms.attention_row(1, 2, 2, 10, 8, backward=True)
    query, key, value, incoming = drawn(row, *[(1, 2, 10, 8)] * 4)
    for tensor in (query, key, value):
        tensor.requires_grad_(True)
    scores = (query @ key.transpose(2, 3) / math.sqrt(8)).masked_fill(torch.ones(10, 10).triu(1).bool(), -math.inf)
    expected = torch.autograd.grad(scores.softmax(-1) @ value, (query, key, value), incoming)
    for found, gradient in zip(built(row).result(), expected, strict=True):
        close(found, gradient)


def rms(x, weight, epsilon=1e-6):
    return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * weight


def gradients(function, active, incoming):
    leaves = [tensor.clone().requires_grad_(True) for tensor in active]
    return torch.autograd.grad(function(*leaves), leaves, incoming)


def silu(x):
    return x / (1 + (-x).exp())


def test_norms():
    row = forms.stream_row("rmsnorm", 6, 32)
    x, weight = drawn(row, (6, 32), (32,))
    close(built(row).result(), rms(x, weight))
    row = forms.stream_row("layernorm", 6, 32)
    x, weight, offset = drawn(row, (6, 32), (32,), (32,))
    normal = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    close(built(row).result(), normal * weight + offset)


def test_norms_backward():
    row = forms.stream_row("rmsnorm_backward_both", 6, 32)
    x, weight, incoming = drawn(row, (6, 32), (32,), (6, 32))
    for found, expected in zip(built(row).result(), gradients(rms, (x, weight), incoming), strict=True):
        close(found, expected)
    row = forms.stream_row("rmsnorm_backward_input", 6, 32)
    x, weight, incoming = drawn(row, (6, 32), (32,), (6, 32))
    (found,) = built(row).result()
    close(found, gradients(lambda t: rms(t, weight), (x,), incoming)[0])
    assert len(built(forms.stream_row("layernorm_backward_both", 6, 32)).result()) == 3


@pytest.mark.parametrize(
    ("pattern", "function", "inputs"),
    [
        ("copy", lambda x: x, 1),
        ("exp", torch.exp, 1),
        ("add", lambda x, y: x + y, 2),
        ("mul", lambda x, y: x * y, 2),
        ("softmax", lambda x: x.softmax(-1), 1),
        ("gelu", lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))), 1),
        ("bias_reduce", lambda x: x.sum(0), 1),
    ],
)
def test_element_wise_kernels(pattern, function, inputs):
    row = forms.stream_row(pattern, 6, 32)
    close(built(row).result(), function(*drawn(row, *[(6, 32)] * inputs)))


def test_kernels_of_a_gated_mlp():
    """Gate and up are halves of every row of one tensor, so that the kernels are strided."""
    row = forms.stream_row("strided_unary", 6, 32)
    (both,) = drawn(row, (6, 64))
    close(built(row).result(), silu(both[:, :32]))
    row = forms.stream_row("strided_binary", 6, 32)
    both, other = drawn(row, (6, 64), (6, 32))
    close(built(row).result(), both[:, 32:] * other)
    row = forms.stream_row("strided_silu_backward", 6, 32)
    both, incoming = drawn(row, (6, 64), (6, 32))
    close(built(row).result()[0], gradients(silu, (both[:, :32],), incoming)[0])
    row = forms.stream_row("cat", 6, 32)
    left, right = drawn(row, (6, 16), (6, 16))
    close(built(row).result(), torch.cat((left, right), -1))


def test_losses_and_look_ups():
    row = forms.stream_row("cross_entropy", 6, 32)
    bench = Bench(torch, CPU, row, "x")
    logits, target = bench.values(6, 32).double(), bench.whole_values(32, (6,))
    expected = (logits.logsumexp(-1) - logits[torch.arange(6), target]).mean()
    close(built(row).result(), expected)
    (gradient,) = built(forms.stream_row("cross_entropy_backward", 6, 32)).result()
    assert gradient.shape == (6, 32)
    close(gradient.double().sum(-1), torch.zeros(6), 1e-2)
    row = forms.stream_row("embedding", 6, 32, tokens=11)
    bench = Bench(torch, CPU, row, "x")
    table, tokens = bench.values(11, 32), bench.whole_values(11, (6,))
    assert torch.equal(built(row).result(), table[tokens])
    row = forms.stream_row("embedding_backward", 11, 32, tokens=6)
    bench = Bench(torch, CPU, row, "x")
    tokens, _, incoming = bench.whole_values(11, (6,)), bench.values(11, 32), bench.values(6, 32).double()
    (gradient,) = built(row).result()
    close(gradient, torch.zeros(11, 32).double().index_add_(0, tokens, incoming))


def test_optimizer_steps():
    row = forms.adamw_row(64)
    parameter, gradient = drawn(row, (64,), (64,))
    (found,) = built(row).result()
    # The first step of AdamW goes by the learning rate in the gradient's direction, after a decay of 1 %.
    close(found.detach(), parameter * (1 - 1e-5 * 1e-2) - 1e-5 * gradient.sign(), 1e-6)
    assert len(built(forms.stream_row("adamw_bf16", 64, 4)).result()) == 4
    zeroed = built(forms.stream_row("foreach_zero", 64, 4)).result()
    assert sum(t.numel() for t in zeroed) == 64
    assert not any(t.any() for t in zeroed)


def test_buffers():
    row = {**forms.buffer_row("copy", 1), "mb": 1 / 1024}
    (source,) = drawn(row, (512,))
    close(built(row).result(), source)
    assert built({**row, "op": "fill"}).result().double().eq(1).all()
    close(built({**row, "op": "sum"}).result(), source.sum(), 5e-2)
    close(built({**row, "op": "exp"}).result(), source.exp())
    row = forms.shaped_row("reduce_min", 8, 16)
    close(built(row).result(), drawn(row, (8, 16))[0].min(-1).values)
    row = forms.gemv_row(8, 16)
    matrix, vector = drawn(row, (8, 16), (16,))
    close(built(row).result(), matrix @ vector)


def test_large_copies_are_launched_one_by_one(monkeypatch):
    """In a graph the copy engine would do them, more slowly than the SMs that programs use."""
    small = {**forms.buffer_row("copy", 1), "mb": 1 / 1024}
    rows = [small, {**forms.stream_row("copy", 32, 16)}]
    assert all(built(row).capture for row in rows)
    monkeypatch.setattr("joulecast.calibrate.microbenchmarks.kernel.GRAPH_COPY_BYTES", 1023)
    assert not any(built(row).capture for row in rows)


def result_bytes(row):
    """Bytes of what a kernel of this row gives."""
    result = built(row).result()
    return sum(t.numel() * t.element_size() for t in (result if isinstance(result, tuple | list) else [result]))


@pytest.mark.parametrize("one", [b for b in PLAIN if b.row["op"] in ("stream", "copy")], ids=lambda b: b.name)
def test_written_bytes_are_those_of_the_results(one):
    row = shrink(one.row)
    written = row.get("bytes_written", row["bytes"] / 2)
    small = {"cross_entropy": 2, "foreach_zero": written, "adamw_bf16": written / 3}
    weights = {"rmsnorm_backward_both": 1, "layernorm_backward_both": 2}.get(row.get("pattern"), 0)
    extra = weights * 2 * row["shape"][-1] if weights else 0
    assert result_bytes(row) == small.get(row.get("pattern"), written) + extra


def test_composites_at_small_size(runner):
    """A duty cycle's seconds are the busy ones; a pulse rests as long as it should."""
    for name, share in (("duty_0.4", 0.4), ("pulse_4096_0.02s_0.02s_randn", 0.5)):
        load = runner.prepare(next(b for b in ALL if b.name == name))
        begin = time.perf_counter()
        _, busy = load.run(0.05)
        assert busy / (time.perf_counter() - begin) < share * 1.1
        load.close()


def test_what_is_missing_is_named(runner, monkeypatch):
    tile = next(b for b in ALL if b.row["op"] == "tile_gemm")
    monkeypatch.setattr("joulecast.calibrate.microbenchmarks.torch_backend._triton_on_cpu", lambda: False)
    assert runner.missing(tile) == ("triton",)
    with pytest.raises(MeasurementError, match="triton is missing here"):
        runner.prepare(tile)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"op": "polka"}, "no streaming kernel 'polka'"),
        ({"op": "stream", "pattern": "polka", "shape": [4, 4]}, "no training kernel 'polka'"),
        ({"op": "gemm", "M": 4, "N": 4}, "K = None"),
        ({"op": "gemm", "M": 4, "N": 4, "K": 2.5}, "K = 2.5"),
        ({"op": "gemm", "M": 4, "N": 4, "K": 4, "dtype": "fp1"}, "data type 'fp1' is missing"),
        ({"op": "gemm", "M": 4, "N": 4, "K": 4, "layout": "mm"}, "unknown layout"),
        ({"op": "copy"}, "neither shape nor mb"),
        ({**forms.attention_row(1, 3, 2, 4, 8)}, "do not divide"),
        ({**forms.attention_row(1, 2, 2, 4, 8), "direction": "up"}, "unknown direction"),
        ({**forms.gemm_row(4, 4, 4), "companion": "wind"}, "unknown companion"),
        ({"op": "interleave", "n8": 0}, "all zero"),
    ],
)
def test_rows_that_cannot_run(row, message):
    with pytest.raises(MeasurementError, match=message):
        loads.build(Bench(torch, CPU, row, "x"), Engine())


def failing(monkeypatch, error):
    """A kernel that allocates and then fails; a weak reference to what it allocated."""
    seen = []

    def build(bench):
        buffer = torch.ones(1000)
        seen.append(weakref.ref(buffer))
        raise error

    monkeypatch.setattr(loads, "kernel_of", build)
    return seen


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB\nmore"), "out of GPU memory"),
        (RuntimeError("No available kernel. Aborting execution.\nC++ trace"), "No available kernel"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_failures_are_words_and_free_memory(runner, monkeypatch, error, message):
    seen = failing(monkeypatch, error)
    with pytest.raises(MeasurementError, match=message) as caught:
        runner.prepare(ALL[0])
    assert ALL[0].name in str(caught.value)
    assert "C++" not in str(caught.value)
    assert seen[0]() is None  # although the error is still held


def test_closing_frees_memory(runner, monkeypatch):
    seen = []
    real = loads.kernel_of

    def build(bench):
        kernel = real(bench)
        seen.append(weakref.ref(kernel.result()))
        return kernel

    monkeypatch.setattr(loads, "kernel_of", build)
    load = runner.prepare(next(b for b in ALL if b.stratum == "gemm.bf16"))
    assert seen[0]() is not None
    load.close()
    gc.collect()
    assert seen[0]() is None
    load.close()
    with pytest.raises(MeasurementError, match="closed"):
        load.run(0.1)


def test_work_that_fails_under_way(runner, monkeypatch):
    load = runner.prepare(ALL[0])

    def fail(duration_s):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(load, "_runs", type("Broken", (), {"run": staticmethod(fail)})())
    with pytest.raises(MeasurementError, match="illegal memory access"):
        load.run(0.1)


@pytest.mark.parametrize("duration", [0.0, -1.0, math.nan, math.inf])
def test_durations(runner, duration):
    load = runner.prepare(ALL[0])
    with pytest.raises(MeasurementError, match="is not positive"):
        load.run(duration)
    load.close()


def test_devices():
    with pytest.raises(MeasurementError, match="unknown device"):
        TorchRunner("abacus")
    with pytest.raises(MeasurementError, match="does not see cuda:99"):
        TorchRunner("cuda:99")


def test_several_gpus_are_for_another_runner(runner):
    with pytest.raises(MeasurementError, match="takes 2 GPUs"):
        runner.prepare(Microbenchmark("x", {"op": "all_reduce"}, "collective", gpus=2))
