"""The catalogue of microbenchmarks: every row is one that the fit understands, with the work that its shape has."""

import math
from collections import Counter

import pytest
from row_files import json_rows

from joulecast.calibrate.devices.protocol import CardFacts
from joulecast.calibrate.microbenchmarks import row_forms as forms
from joulecast.calibrate.microbenchmarks.catalogue import MEMORY_SHARE, footprint_bytes, multi_gpu, single_gpu
from joulecast.calibrate.microbenchmarks.shrink import shrink
from joulecast.calibrate.rows.measured import is_measured, recorded_rows
from joulecast.calibrate.rows.operators import operator_of
from joulecast.errors import InputError
from joulecast.model.kernels.operators import DTYPE_BYTES, Attention, Gemm, Streaming

GIB = 1 << 30


def facts(memory_bytes, vendor="NVIDIA"):
    return CardFacts("x:0", "card", vendor, "1", 700.0, 700.0, None, 1980.0, None, memory_bytes=memory_bytes)


ALL = single_gpu(facts(141 * GIB))
GROUPS = {gpus: multi_gpu(gpus) for gpus in (2, 4, 8)}
OVERLAPS = ("overlap", "gemm_allgather")


@pytest.mark.parametrize("one", ALL, ids=lambda b: b.name)
def test_the_fit_understands_every_row(one):
    work = operator_of(one.row)
    assert work.reason == ""
    assert work.operators or one.row["op"] == "idle"
    assert one.row["name"] == one.name
    assert not any(is_measured(key) for key in one.row)


def test_names_and_rows_are_unique():
    names = [b.name for b in (*ALL, *GROUPS[2], *GROUPS[4])]
    assert len(set(names)) == len(names)
    rows = [repr(sorted((k, repr(v)) for k, v in b.row.items() if k != "name")) for b in ALL]
    assert len(set(rows)) == len(rows)


def test_the_catalogue_spans_what_training_needs():
    assert 150 <= len(ALL) <= 280
    products = [b.row for b in ALL if b.row["op"] == "gemm"]
    assert {row["dtype"] for row in products} == {"bf16", "fp16", "tf32", "fp32", "fp8"}
    assert {row["layout"] for row in products} == {"tn", "nn", "nt"}
    assert {"randn", "zeros", "ones", "pow2", "sparse0.5"} <= {row["data"] for row in products}
    assert any(row.get("batch", 1) > 1 for row in products)
    assert any(row.get("bias") for row in products)
    sides = [min(row["M"], row["N"], row["K"]) for row in products]
    assert min(sides) <= 64
    assert max(sides) == 16384
    assert max(row["K"] / row["M"] for row in products) >= 64
    assert min(row["K"] / row["M"] for row in products) <= 1 / 64
    assert any(row["M"] % 128 and row["N"] % 128 for row in products)
    attention = {(r["backend"], r["direction"], r["D"], r["causal"]) for b in ALL if (r := b.row)["op"] == "flash_attn"}
    for backend in ("CUDNN_ATTENTION", "FLASH_ATTENTION"):
        for direction in ("fwd", "bwd"):
            assert {(backend, direction, 128, True), (backend, direction, 64, True)} <= attention
    copies = [b.row["mb"] for b in ALL if b.row["op"] == "copy"]
    assert min(copies) * 2 < 50 < max(copies)
    assert {b.row["companion"] for b in ALL if "companion" in b.row} == {"randn", "zeros", "none"}


def test_every_stratum_has_a_choice():
    counts = Counter(b.stratum for b in ALL)
    assert min(counts.values()) >= 2
    assert all(stratum and " " not in stratum for stratum in counts)


def test_fields_are_those_of_the_recorded_rows():
    """A row of a kind that was recorded before has the same fields, so that both can be fitted together."""
    recorded = {}
    for row in recorded_rows():
        kind = (row.op, row.configuration.get("pattern"))
        recorded.setdefault(kind, set()).update(row.configuration)
    ours = {"vocabulary", "awake_every_s", "batch", "data", "flops", "layout", "companion"}
    for benchmark in (*ALL, *GROUPS[2]):
        kind = (benchmark.row["op"], benchmark.row.get("pattern"))
        if kind in recorded:
            assert set(benchmark.row) - ours <= recorded[kind], benchmark.name


def shape_bytes(row):
    """Bytes of a streaming row, counted anew from its shape."""
    op = row["op"]
    if op == "stream":
        return row["bytes_read"] + row["bytes_written"]
    if op == "gemv":
        return row["M"] * row["K"] * 2
    if op == "adamw":
        return 28 * row["params"]
    if op.startswith("tile_"):
        return row["rows"] * (row.get("hidden") or row["cols"]) * {"tile_rmsnorm": 2 * 2, "tile_reduce_min": 4}[op]
    if "mb" in row:
        return row["mb"] * 2**20 * {"copy": 2, "exp": 2, "fill": 1, "sum": 1}[op]
    return math.prod(row["shape"]) * DTYPE_BYTES[row["dtype"]] * {"exp": 2, "reduce_min": 1}[op]


@pytest.mark.parametrize("one", ALL, ids=lambda b: b.name)
def test_the_work_is_that_of_the_shape(one):
    row = one.row
    work = operator_of(row)
    if row["op"] in ("gemm", "tile_gemm"):
        (gemm,) = work.operators
        assert isinstance(gemm, Gemm)
        assert gemm.flops == row["flops"] == 2 * row["M"] * row["N"] * row["K"] * row.get("batch", 1)
        assert (gemm.dtype, gemm.data) == (row["dtype"], row.get("data", "randn"))
        assert gemm.layout == row.get("layout", "tn")
    elif row["op"] == "flash_attn":
        (attention,) = work.operators
        assert isinstance(attention, Attention)
        full = 4 * row["B"] * row["Hq"] * row["S"] ** 2 * row["D"] * (0.5 if row["causal"] else 1)
        assert attention.flops == row["flops"] == full * (2.5 if row["direction"] == "bwd" else 1)
    elif row["op"] not in ("idle", "duty", "pulse", "interleave"):
        moved = sum(o.bytes_read + o.bytes_written for o in work.operators)
        assert all(isinstance(o, Streaming) for o in work.operators)
        assert row["bytes"] == shape_bytes(row)
        if row.get("pattern") not in ("cross_entropy", "cross_entropy_backward", "embedding_backward"):
            assert moved == pytest.approx(row["bytes"], rel=1e-3)


@pytest.mark.parametrize(
    ("pattern", "reads", "writes"),
    [("add", 2, 1), ("cat", 1, 1), ("gelu_backward", 2, 1), ("rmsnorm_backward_both", 4, 1), ("softmax", 1, 1)],
)
def test_bytes_of_training_kernels(pattern, reads, writes):
    row = forms.stream_row(pattern, 100, 40)
    assert (row["bytes_read"], row["bytes_written"]) == (reads * 8000, writes * 8000)
    assert row["elements"] == 4000


def test_training_kernels_count_as_the_recorded_ones_did():
    """The same shape gives the same bytes and elements as in rows that were recorded before."""
    seen = set()
    for row in recorded_rows():
        known = row.configuration
        if row.op != "stream":
            continue
        rows, columns = known["shape"]
        tokens = int(known["elements"]) // columns if known["pattern"] == "embedding_backward" else 0
        made = forms.stream_row(known["pattern"], rows, columns, tokens=tokens)
        assert made == {key: known[key] for key in made}, row.name
        seen.add(known["pattern"])
    assert {b.row["pattern"] for b in ALL if b.row["op"] == "stream"} <= seen


def test_bytes_of_odd_training_kernels():
    assert forms.stream_row("bias_reduce", 100, 40)["bytes_written"] == 80
    step = forms.stream_row("adamw_bf16", 1000, 4)
    assert (step["bytes_read"], step["bytes_written"], step["elements"]) == (8000, 6000, 1000)
    lookup = forms.stream_row("embedding_backward", 500, 40, tokens=30)
    assert (lookup["bytes_read"], lookup["bytes_written"], lookup["elements"]) == (2400, 40000, 1200)


def test_small_cards_get_what_fits():
    small = single_gpu(facts(8 * GIB))
    assert 150 < len(small) < len(ALL)
    assert all(footprint_bytes(b.row) <= MEMORY_SHARE * 8 * GIB for b in small)
    assert {b.stratum for b in small} == {b.stratum for b in ALL}


def test_footprints():
    assert footprint_bytes(forms.gemm_row(100, 200, 300)) == 2 * (100 * 300 + 200 * 300 + 100 * 200)
    assert footprint_bytes(forms.buffer_row("copy", 64)) == 2 * 64 * 2**20
    forward = footprint_bytes(forms.attention_row(2, 8, 2, 128, 64))
    assert forward == 2 * 2 * 128 * 64 * (2 * 8 + 2 * 2)
    assert footprint_bytes(forms.attention_row(2, 8, 2, 128, 64, backward=True)) > 2 * forward
    table = footprint_bytes(forms.stream_row("embedding", 16, 64, tokens=1000))
    assert table == 2 * 1000 * 64 + 2 * 2 * 16 * 64


def test_cards_without_cudnn_get_no_attention_of_it():
    other = single_gpu(facts(141 * GIB, "AMD"))
    assert not any("cudnn-attention" in b.needs for b in other)
    assert any("flash-attention" in b.needs for b in other)
    assert any("cudnn-attention" in b.needs for b in single_gpu(facts(141 * GIB, "NVIDIA")))


def test_needs():
    for benchmark in ALL:
        row = benchmark.row
        assert ("triton" in benchmark.needs) == row["op"].startswith("tile_")
        assert ("fp8" in benchmark.needs) == (row.get("dtype") == "fp8")
        assert ("cudnn-attention" in benchmark.needs) == (row.get("backend") == "CUDNN_ATTENTION")


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_collectives(gpus):
    found = GROUPS[gpus]
    assert {b.gpus for b in found} == {b.row["gpus"] for b in found} == {gpus}
    kinds = {b.row["op"] for b in found if b.row["op"] not in OVERLAPS}
    assert kinds == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"} | ({"p2p"} if gpus == 2 else set())
    for benchmark in found:
        if benchmark.row["op"] in OVERLAPS:
            continue
        (collective,) = operator_of(benchmark.row).operators
        assert (collective.bytes, collective.gpus) == (benchmark.row["bytes"], gpus)
        assert collective.ctas == benchmark.row.get("ctas")
    held = {b.row["ctas"] for b in found if b.row["op"] == "all_reduce"}
    assert {None, 1, 8, 32} <= held
    sizes = {b.row["bytes"] for b in found if b.row["op"] == "all_reduce"}
    assert min(sizes) <= 65536
    assert max(sizes) >= 2**30


def test_overlap_probes_come_with_what_they_are_compared_with():
    probes = [b.row for b in GROUPS[2] if b.row["op"] == "overlap"]
    for part in ("attn", "mlp"):
        modes = {row["mode"] for row in probes if row["part"] == part}
        assert modes == {"compute", "sequential", "overlap"}
    assert {row["mode"] for row in probes if row["part"] == "layer"} == {"sequential", "nanobatch"}
    assert {row["scope"] for row in probes if "scope" in row} == {"all", "after_qkv"}


def test_overlap_probes_have_the_fields_of_measured_ones(data):

    measured = json_rows(data / "h200_sxm" / "overlap.jsonl")
    for op in OVERLAPS:
        fields = {key for row in measured if row["op"] == op for key in row if not is_measured(key)}
        for benchmark in GROUPS[2]:
            if benchmark.row["op"] == op:
                assert set(benchmark.row) <= fields, benchmark.name
                words = {
                    key: {row[key] for row in measured if key in row} for key in ("mode", "part", "scope", "model")
                }
                assert all(benchmark.row[key] in seen for key, seen in words.items() if key in benchmark.row)


def test_one_gpu_has_no_collectives():
    with pytest.raises(InputError, match="at least two GPUs"):
        multi_gpu(1)


@pytest.mark.parametrize("one", ALL, ids=lambda b: b.name)
def test_small_rows_are_of_the_same_kind(one):
    small = shrink(one.row)
    for key in ("op", "dtype", "data", "layout", "pattern", "companion", "direction", "backend", "causal", "duty"):
        assert small.get(key) == one.row.get(key, small.get(key)), key
    before, after = operator_of(one.row), operator_of(small)
    assert after.reason == ""
    assert [type(o) for o in after.operators] == [type(o) for o in before.operators]
    assert footprint_bytes(small) <= 2e6
    if one.row["op"] == "flash_attn":
        assert small["Hq"] % small["Hkv"] == 0
        assert (small["Hq"] > small["Hkv"]) == (one.row["Hq"] > one.row["Hkv"])
