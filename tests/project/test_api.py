"""The public functions for programs."""

import inspect
import json
import math
import re
import tomllib

import numpy as np
import pytest
from paths import EXAMPLES

import joulecast as jc
from joulecast.reports.saved import read_saved


@pytest.fixture(scope="module")
def h200():
    return jc.gpu("h200-sxm")


def test_kernel_forecast(h200):
    k = h200.predict(jc.Gemm(m=8192, n=8192, k=8192, dtype="bf16"))
    assert 1e-3 < k.time_s < 3e-3
    assert k.energy_j == pytest.approx(k.power_w * k.time_s)
    assert sum(k.energy_by_component_j.values()) == pytest.approx(k.energy_j)
    assert 1000 < k.clock_mhz < 1980
    assert k.limited_by == "compute"


def test_a_copy_is_limited_by_memory(h200):
    k = h200.predict(jc.Streaming("copy", 1e9, 1e9, name="my copy"), clock_mhz=1980)
    assert (k.limited_by, k.clock_mhz, k.name) == ("memory", 1980, "my copy")


def test_a_lower_limit_lowers_clock_and_power(h200):
    gemm = jc.Gemm(m=8192, n=8192, k=8192)
    usual, limited = h200.predict(gemm), h200.predict(gemm, power_limit_w=400)
    assert limited.clock_mhz < usual.clock_mhz
    assert limited.power_w <= 400
    assert limited.time_s > usual.time_s


@pytest.mark.parametrize("options", [{"clock_mhz": 5000}, {"clock_mhz": math.nan}, {"power_limit_w": 1}])
def test_out_of_range(h200, options):
    with pytest.raises(jc.InputError, match="out of the range of h200-sxm"):
        h200.predict(jc.Gemm(m=128, n=128, k=128), **options)


@pytest.mark.parametrize(
    "operator",
    [
        jc.Gemm(m=8192, n=8192, k=8192),
        jc.Gemm(m=8190, n=1001, k=4095, dtype="fp8", layout="nt"),
        jc.Gemm(m=4096, n=4096, k=4096, tile=jc.Tile(128, 256, 64, warps=8, stages=3)),
        jc.Attention(batch=1, heads=32, kv_heads=8, sequence=4096, head_dim=128),
        jc.Streaming("copy", 1e9, 1e9),
        jc.Collective("all_reduce", 64e6, 4),
    ],
)
def test_the_parts_of_a_kernel_make_its_time(h200, operator):
    work = h200.work(operator)
    assert work.time_s(1200) == pytest.approx(h200.predict(operator, clock_mhz=1200).time_s, rel=1e-9)
    assert (work.tile is None) == (not isinstance(operator, jc.Gemm) or operator.tile is not None)


def test_a_product_is_recomputed_from_its_tile_and_the_parameters(h200):
    """The equation of the page of kernels, from the description's own numbers."""
    m, n, k = 4096, 3072, 4096
    work, parameters = h200.work(jc.Gemm(m, n, k)), h200.description.kernel.parameters
    names = ("eta", "tile_penalty", "load_bytes_per_sm_cycle", "tile_overhead_cycles")
    eta, penalty, loads, overhead = (parameters[f"gemm.{name}"].number for name in names)
    rows, columns = work.tile
    assert work.waves == math.ceil(math.ceil(m / rows) * math.ceil(n / columns) * work.splits / 132)
    share = eta / (1 + penalty * (64 / rows + 64 / columns) ** 2)
    terms = (2 * rows * columns / (4096 * share), 2 * (rows + columns) / loads, 180 / 64)
    pace = sum(term**8 for term in terms) ** (1 / 8)
    cycles = work.waves * (k * pace + overhead * rows * columns / (128 * 256))
    assert work.core_cycles == pytest.approx(cycles)


def test_unknown_gpu():
    with pytest.raises(jc.UnknownNameError, match="h200-sxm"):
        jc.gpu("h200-smx")


def test_kernel_as_frame(h200):
    pytest.importorskip("pandas")
    frame = h200.predict(jc.Gemm(m=1024, n=1024, k=1024)).to_frame()
    assert len(frame) == 1
    assert {"time_s", "energy_j", "tensor_j", "limited_by"} <= set(frame)


def test_predict_takes_a_path_or_a_plan(examples):
    from joulecast.simulator.plan_file.plan import load_plan

    path = examples / "llama-3.1-8b-4xh200.toml"
    whole = jc.predict(path)
    assert jc.predict(load_plan(path)).to_dict() == whole.to_dict() == jc.predict(str(path)).to_dict()
    assert jc.predict(path, ["workload.global_batch_size=16"]).time_s > whole.time_s
    with pytest.raises(jc.InputError, match="overrides"):
        jc.predict(load_plan(path), ["cluster.gpus=4"])


def test_predict_takes_tables_and_one_override(examples):
    path = examples / "llama-3.1-8b-4xh200.toml"
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    more = "power.power_limit_w=500"
    assert jc.predict(tables, more).to_dict() == jc.predict(path, [more]).to_dict()
    with pytest.raises(jc.InputError, match=r"workload.*missing"):
        jc.predict({})
    with pytest.raises(jc.InputError, match="list is no plan"):
        jc.predict([path])


@pytest.mark.parametrize(("framework", "what"), [("megatron", "a module"), ("pytorch-eager", "a kernel")])
def test_a_forecast_says_what_its_host_launches(examples, framework, what):
    more = [f"implementation.framework={framework}", "implementation.host_launch_us=50", "cluster.gpus=2"]
    more.append("parallelism={tensor_model_parallel_size=2}")
    found = jc.predict(examples / "llama-3.1-8b-4xh200.toml", more)
    assert any(each.startswith(f"{what} takes the host 50 us to launch") for each in found.assumptions)


def test_one_plan_is_not_compared(examples):
    for one in (examples / "llama-3.1-8b-4xh200.toml", "plan.toml", {}):
        with pytest.raises(jc.InputError, match="two plans or more"):
            jc.compare(one)


def test_a_front_takes_a_space_as_tables(examples, tmp_path):
    path, file = examples / "llama-3.1-8b-4xh200.toml", tmp_path / "space.toml"
    file.write_text("[power]\nclock_mhz = [1200, 1980]\n", encoding="utf-8")
    asked = {"simple": "rank", "space": {"power": {"clock_mhz": [1200, 1980]}}}
    assert jc.front(path, **asked).to_dict() == jc.front(path, simple="rank", space=file).to_dict()
    with pytest.raises(jc.InputError, match="a front does not choose this"):
        jc.front(path, space={"workload": {"model": ["gpt2"]}})


def test_kernels_of_an_iteration_as_frame(examples):
    pytest.importorskip("pandas")
    timeline = jc.predict(examples / "llama-3.1-8b-4xh200.toml").timeline()
    frame = timeline.to_frame()
    assert set(frame["rank"]) == {0, 1}
    assert frame["end_s"].max() == pytest.approx(timeline.time_s)
    with pytest.raises(jc.InputError, match=r"no stage 2. There are 0 to 1"):
        timeline.part_power(2)


def test_answers_are_shown_in_a_line(examples, tmp_path):
    path = examples / "llama-3.1-8b-4xh200.toml"
    front = jc.front(path, simple="rank")
    fastest, best = front.points[0], front.points[-1]
    assert f"{len(front.points)} plans: {fastest.time_s:.4g} s" in repr(front)
    assert f"{best.energy_j:.4g} J" in repr(front)
    assert len(repr(jc.predict(path))) < 400
    front.write(tmp_path / "front.json")
    assert json.loads((tmp_path / "front.json").read_text()) == front.to_dict()
    (tmp_path / "saved.json").write_text(json.dumps(front.to_dict()), encoding="utf-8")
    assert read_saved(tmp_path / "saved.json", "front")
    with pytest.raises(jc.InputError, match="no format 'xml'"):
        front.write(tmp_path / "front.xml", "xml")
    assert repr(jc.predict(path).timeline()).startswith("KernelTimeline(2 stages: ")


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        (jc.Gemm(128, 128, -8), "k = -8.*whole number of 1 or more"),
        (jc.Gemm(128, 128, math.nan), "k = nan"),
        (jc.Gemm(128, 128.5, 128), "n = 128.5"),
        (jc.Gemm("128", 128, 128), "m = '128'"),
        (jc.Gemm(128, 128, 128, batch=0), "batch = 0"),
        (jc.Gemm(128, 128, 128, dtype="bf17"), "unknown data type 'bf17'. Did you mean 'bf16'"),
        (jc.Gemm(128, 128, 128, out_dtype="bf17"), "unknown data type 'bf17'"),
        (jc.Gemm(128, 128, 128, layout="tt"), "unknown layout 'tt'"),
        (jc.Gemm(128, 128, 128, footprint_bytes=-1.0), "footprint_bytes = -1.0"),
        (jc.Attention(1, 32, 7, 4096, 128), "32 heads cannot share 7"),
        (jc.Attention(1, 32, 0, 4096, 128), "kv_heads = 0"),
        (jc.Attention(1, 32, 8, 4096, 128, direction="fwd"), "unknown direction 'fwd'"),
        (jc.Streaming("copy", -1e9, 1e9), r"bytes_read = -1000000000.0"),
        (jc.Streaming("copy", 1e9, math.inf), "bytes_written = inf"),
        (jc.Collective("all_reduce", 1e9, 0), "gpus = 0"),
        (jc.Collective("all_reduce", 1e9, 4, ctas=0), "ctas = 0"),
        (jc.Collective("all_reduce", math.nan, 4), "bytes = nan"),
        (jc.Tile(128, 128), "Tile is no kernel"),
        (jc.Gemm(128, 128, 128, tile=(128, 128, 64)), r"tile = \(128, 128, 64\).*a Tile, or None"),
        (jc.Collective("all_reduce", 1e9, 4, fabric="ib"), "fabric = 'ib'.*a Fabric"),
        (jc.Attention(1, 32, 8, 4096, 128, dtype="fp64"), "unknown data type of attention 'fp64'"),
        (jc.Attention(1, 32, 8, 4096, 128, backend="flash-attention"), "unknown backend.*flash-attention-2"),
        (jc.Streaming("kopy", 1e9, 1e9), "unknown access pattern 'kopy'. Did you mean 'copy'"),
        (jc.Streaming("vllm_rms_norm", 1e9, 1e9), "rows = 0.*1 or more"),
    ],
)
def test_work_that_no_kernel_has_is_refused(h200, operator, message):
    with pytest.raises(jc.InputError, match=message):
        h200.predict(operator)


def test_a_type_that_the_gpu_has_not_names_those_that_it_has():
    with pytest.raises(jc.InputError, match=r"no rate for matrix products in bf16. It has fp16, fp32"):
        jc.gpu("v100-sxm2-16gb").predict(jc.Gemm(64, 64, 64))


PLAN = EXAMPLES / "llama-3.1-8b-4xh200.toml"
JOB = EXAMPLES / "train-llama-3.1-8b.sh"
SPACE = EXAMPLES / "sweep-gpt3-175b-64.toml"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"power_limit_w": "500"}, r"^\[power_limit_w\]: '500' is no number. Give 500 without quotes.$"),
        ({"power_limit_w": "half"}, r"^\[power_limit_w\]: 'half' is no number. Give a number.$"),
        ({"clock_mhz": [1200]}, r"^\[clock_mhz\]: \[1200\] is no number"),
        ({"clock_mhz": True}, r"^\[clock_mhz\]: True is no number"),
        ({"memory_clock_mhz": "1"}, r"^\[memory_clock_mhz\]: '1' is no number"),
        ({"component_limits_w": 300}, r"^\[component_limits_w\]: 300 does not say what has which value"),
        ({"component_limits_w": {"compute": None}}, r"^\[component_limits_w.compute\]: None is no number"),
        ({"component_limits_w": {"compute": math.nan}}, r"^\[component_limits_w.compute\]: nan W is too little"),
    ],
)
def test_what_is_no_number_is_told(h200, options, message):
    with pytest.raises(jc.InputError, match=message):
        h200.predict(jc.Gemm(128, 128, 128), **options)


def test_numbers_of_numpy_are_numbers(h200):
    gemm = jc.Gemm(8192, 8192, 8192)
    usual = h200.predict(gemm, power_limit_w=500, component_limits_w={"compute": 300})
    given = {"power_limit_w": np.float32(500), "component_limits_w": {"compute": np.int64(300)}}
    assert h200.predict(gemm, **given) == usual


@pytest.mark.parametrize("function", [jc.predict, jc.front, jc.choose, jc.meter])
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (3, r"^\[overrides\]: 3 is no list of texts. Give it as \[\"table.key=value\"\].$"),
        ({"power.power_limit_w": 500}, r"^\[overrides\]: .*is no list of texts"),
        ([None], r"^\[overrides\]: None is no text"),
    ],
)
def test_overrides_that_are_none_are_told(function, overrides, message):
    with pytest.raises(jc.InputError, match=message):
        function(PLAN, overrides)


def test_overrides_may_be_left_open():
    assert jc.predict(PLAN, None).to_dict() == jc.predict(PLAN).to_dict()
    assert jc.compare([PLAN, PLAN], None).to_dict() == jc.compare([PLAN, PLAN]).to_dict()
    assert jc.convert(JOB, gpu="h100-sxm", overrides=None, pass_over=None) == jc.convert(JOB, gpu="h100-sxm")


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: jc.compare(3), "two plans or more"),
        (lambda: jc.compare([PLAN, None]), "NoneType is no plan"),
        (lambda: jc.compare([PLAN, PLAN], 3), r"\[overrides\]: 3 is no list"),
        (lambda: jc.front(PLAN, space=3), "int is no space. Give the path of a SPACE.toml"),
        (lambda: jc.front(PLAN, simple=3), r"\[simple\]: 3 is no text"),
        (lambda: jc.front(PLAN, time_limit_s="2"), r"\[time_limit_s\]: '2' is no number. Give 2 without quotes"),
        (lambda: jc.front(PLAN, switch_s=math.nan), r"\[switch_s\]: nan is out of range. Give 0 or more"),
        (lambda: jc.choose(PLAN, stage=None), r"\[stage\]: None is no number"),
        (lambda: jc.choose(PLAN, space=3), "int is no space"),
        (lambda: jc.predict(PLAN.read_text(encoding="utf-8")), "^a text of several lines is no path of a TOML file"),
        (lambda: jc.sweep(None), "NoneType is no space"),
        (lambda: jc.sweep(SPACE, overrides=3), r"\[overrides\]: 3 is no list"),
        (lambda: jc.sweep(SPACE, 3), r"\[out\]: 3 is no path"),
        (lambda: jc.sweep(SPACE, workers="2"), r"\[workers\]: '2' is no number"),
        (lambda: jc.sweep(SPACE, workers=0), r"\[workers\]: 0 is out of range"),
        (lambda: jc.sweep(SPACE, dask=3), r"\[dask\]: 3 is no text"),
        (lambda: jc.convert(None), "NoneType is no job"),
        (lambda: jc.convert(JOB, gpus="8"), r"\[gpus\]: '8' is no number"),
        (lambda: jc.convert(JOB, gpus=0), r"\[gpus\]: 0 is out of range"),
        (lambda: jc.convert(JOB, power_limit_w="500"), r"\[power_limit_w\]: '500' is no number"),
        (lambda: jc.convert(JOB, environment="A=1"), r"\[environment\]: 'A=1' does not say"),
        (lambda: jc.convert(JOB, pass_over=3), r"\[pass_over\]: 3 is no list of texts"),
        (lambda: jc.predict("a\0b.toml"), "is no path: embedded null byte"),
    ],
)
def test_arguments_of_a_wrong_kind_are_told(ask, message):
    with pytest.raises(jc.InputError, match=message):
        ask()


def test_plans_may_come_one_by_one():
    assert jc.compare(plan for plan in (PLAN, PLAN)).to_dict() == jc.compare([PLAN, PLAN]).to_dict()


def test_tables_may_hold_what_programs_compute_with():
    """NumPy's numbers, tuples and paths mean what they would mean in a file."""
    tables = tomllib.loads(PLAN.read_text(encoding="utf-8"))
    usual, given = (
        {**tables, "workload": {**tables["workload"], "global_batch_size": size}, "power": {"power_limit_w": limits}}
        for size, limits in ((16, [700, 550]), (np.int64(16), (np.float64(700), 550)))
    )
    given["cluster"] = {**tables["cluster"], "gpus": np.arange(5)[4]}
    assert jc.predict(given).to_dict() == jc.predict(usual).to_dict()
    clocks = np.array([1200.0, 1980.0])
    asked = [jc.choose(PLAN, space={"power": {"clock_mhz": list_of}}) for list_of in (clocks, [1200, 1980])]
    assert asked[0].to_dict() == asked[1].to_dict()


def test_sizes_may_be_numbers_of_numpy_and_whole_floats(h200):
    usual = h200.predict(jc.Gemm(256, 256, 256))
    assert h200.predict(jc.Gemm(np.int64(256), 256.0, np.float64(256))) == usual


def test_iteration_as_frame(examples):
    pytest.importorskip("pandas")
    assert len(jc.predict(examples / "llama-3.1-8b-4xh200.toml").to_frame())


@pytest.mark.parametrize(
    ("call", "key", "words"),
    [
        (lambda plan, space, out: jc.front(plan, simple="x"), "simple", "unknown kind"),
        (lambda plan, space, out: jc.front(plan, time_limit_s=1e-6), "time_limit_s", "no plan takes"),
        (lambda plan, space, out: jc.front(plan).at(1e-6), "time_s", "no plan takes"),
        (lambda plan, space, out: jc.front(plan).bound_j(1e-6), "time_s", "no plan takes"),
        (lambda plan, space, out: jc.front(plan).write(out, "x"), "form", "no format"),
        (lambda plan, space, out: jc.choose(plan, direction="up"), "direction", "unknown direction"),
        (lambda plan, space, out: jc.choose(plan, stage=9), "stage", "no stage 9"),
        (lambda plan, space, out: jc.sweep(space, workers=2, dask="tcp://x:1"), "dask", "workers and dask exclude"),
        (lambda plan, space, out: jc.sweep(space, out), "out", "no known form"),
        (lambda plan, space, out: jc.sweep(space, resume=True), "resume", "no file to resume"),
        (lambda plan, space, out: jc.predict(plan).write_trace(out, "x"), "form", "unknown form"),
        (lambda plan, space, out: jc.predict(plan, ["cluster.gpuz=1"]), "cluster.gpuz", "overrides"),
        (lambda plan, space, out: jc.compare([plan, plan], ["cluster.gpuz=1"]), "cluster.gpuz", "overrides"),
        (lambda plan, space, out: jc.front(plan, ["site.power_limit_w=900"]), "site.power_limit_w", "alone .space"),
        (lambda plan, space, out: jc.convert(JOB, gpu="h100-sxm", gpus=3), "gpus, in a plan cluster.gpus", "split"),
        (lambda plan, space, out: jc.convert(JOB, gpu=3), "gpu", "is no name"),
        (lambda plan, space, out: jc.convert(JOB, gpu="h100-sxm", model=3), "model", "is no name"),
        (lambda plan, space, out: jc.gpu(None), "name_or_path", "is no name"),
    ],
)
def test_errors_name_arguments_and_no_options(examples, tmp_path, call, key, words):
    plan, space = examples / "llama-3.1-8b-4xh200.toml", examples / "sweep-llama-8b-power.toml"
    with pytest.raises(jc.InputError, match=words) as raised:
        call(plan, space, tmp_path / "x.foo")
    assert raised.value.key == key
    assert f"[{key}]" in str(raised.value)
    assert "--" not in str(raised.value)


def test_a_plan_that_does_not_fit_is_answered_without_options(examples):
    with pytest.raises(jc.DoesNotFitError, match=r"fits has in its file: workload\.micro_batch_size=1 ") as raised:
        jc.predict(
            examples / "llama-3.1-8b-4xh200.toml", ["workload.micro_batch_size=64", "workload.global_batch_size=512"]
        )
    assert "--" not in str(raised.value)


@pytest.mark.parametrize("name", [n for n in jc.__all__ if callable(getattr(jc, n)) and not n.endswith("Error")])
def test_every_argument_is_explained(name):
    """Attention and gpu said nothing of theirs."""
    function = getattr(jc, name)
    text = inspect.getdoc(function)
    assert text is not None
    parameters = text.partition("\n----------\n")[2].partition("\nRaises")[0]
    unsaid = [one for one in inspect.signature(function).parameters if not re.search(rf"\b{one}\b", parameters)]
    assert set(unsaid) <= {"name"}  # of a kernel: what it is called
