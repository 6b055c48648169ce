"""Every file format against damaged files: what is read is either good, or one readable line that names the file.

A few inputs of each format run with the other tests. ``make slow`` runs 10,000 (``--hypothesis-profile=long``).
"""

import json
import re
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import joulecast as jc
from joulecast.calibrate.a100_overlap_rows import read_layers
from joulecast.calibrate.clock_sweeps.forms import read_sweeps
from joulecast.calibrate.devices.simulated_file import read_card_file
from joulecast.calibrate.measure.recording import read_recording
from joulecast.calibrate.network_rows import read_network_rows
from joulecast.calibrate.published_rows import read_published
from joulecast.calibrate.row_operators import operator_of
from joulecast.calibrate.rows import RecordingWarning, read_rows
from joulecast.cli import one_line
from joulecast.errors import InputError, JoulecastError
from joulecast.kernels import Gpu
from joulecast.model.catalogue import load_gpu, load_network, load_node, load_site
from joulecast.model.hf import load_model
from joulecast.plan.dag_file import load_dag
from joulecast.plan.exports_read import read_zeus_solution
from joulecast.plan.front_space import load_space as load_front_space
from joulecast.plan.power_limits_read import read_epochs, read_job_points
from joulecast.plan.profile_front import problem_from_profile
from joulecast.plan.sweep.journal import Journal
from joulecast.plan.sweep.space import load_space
from joulecast.reports import front_series, ledger_series, measured_series
from joulecast.reports.saved import number_of, read_saved
from joulecast.simulator.forecast import forecast
from joulecast.simulator.plan import load_plan
from joulecast.validate import run_suite
from joulecast.validate.node_power_files import read_node_power
from joulecast.validate.perseus_files import read_plans

ROOT = Path(__file__).resolve().parents[1]
#: Inputs of each format among the other tests.
SHORT = 8
#: Forecasts of plans with more of these are left out: they are right, but take long.
MOST_MICROBATCHES, MOST_LAYERS = 64, 128


@dataclass(frozen=True)
class Format:
    """A kind of file: valid contents by file name, of which one is damaged, and who reads it."""

    read: Callable[[Path], object]
    sources: tuple[Callable[[], str], ...]
    name: str
    #: Other files that the reader needs beside it.
    beside: Callable[[], dict[str, str]] = dict
    #: The reader takes the folder.
    folder: bool = False


def shipped(*parts: str) -> Callable[[], str]:
    return lambda: files("joulecast.model").joinpath("catalogue_data", *parts).read_text(encoding="utf-8")


def example(name: str) -> Callable[[], str]:
    return lambda: (ROOT / "examples" / name).read_text(encoding="utf-8")


def head(package: str, lines: int, *parts: str) -> Callable[[], str]:
    def read() -> str:
        text = files(package).joinpath("recorded", *parts).read_text(encoding="utf-8")
        return "".join(text.splitlines(keepends=True)[:lines])

    return read


def table(*rows: str) -> Callable[[], str]:
    return lambda: "\n".join(rows) + "\n"


def read_and_forecast(path: Path) -> object:
    plan = load_plan(path)
    if plan.microbatches > MOST_MICROBATCHES or plan.workload.layers > MOST_LAYERS:
        return plan
    return unnamed(lambda: forecast(plan).to_dict())


def read_and_predict(path: Path) -> object:
    gpu = Gpu(load_gpu(path))
    return unnamed(lambda: gpu.predict(jc.Gemm(m=1024, n=1024, k=1024)))


class Refused(Exception):
    """A readable refusal of what was read well, which need not name the file."""


def unnamed(work: Callable[[], object]) -> object:
    try:
        return work()
    except JoulecastError as error:
        assert isinstance(error, InputError), error
        raise Refused(str(error)) from error


def read_and_operate(path: Path) -> object:
    return [operator_of(row.configuration) for row in read_rows(path)]


def of_saved(kind: str, show: Callable[[dict, Path], object], path: Path) -> object:
    return show(read_saved(path, kind), path)


def show_iteration(data: dict, path: Path) -> object:
    return number_of(data, "energy_j", path), ledger_series.by_component(data), ledger_series.by_instruction(data)


@cache
def saved_iteration() -> str:
    return json.dumps(jc.predict(ROOT / "examples" / "llama-3.1-8b-4xh200.toml").to_dict(), indent=1)


@cache
def saved_validation() -> str:
    found = run_suite("blocks", ROOT / "validate" / "recorded" / "h200_sxm" / "blocks.jsonl")
    whole = found.to_dict()
    return json.dumps({**whole, "rows": whole["rows"][:2]}, indent=1)


PROFILE = (
    "stage,instruction,frequency,time,energy",
    *(
        f"{s},{i},{f},{t * 1400 / f:.4f},{t * (100 + f / 10):.3f}"
        for s in (0, 1)
        for i, t in (("forward", 0.05), ("backward", 0.1))
        for f in (1000, 1200, 1400)
    ),
)


FRONT = {
    "form": "joulecast-front-1",
    "instructions": [["forward", "backward"], ["forward", "backward"]],
    "points": [
        {"time_s": t, "energy_j": e, "lower_bound_j": e - 1.0, "plan": [[f, f], [f, 1410]]}
        for t, e, f in ((1.0, 90.0, 1410), (1.1, 80.0, 1200))
    ],
    "lower_bound": [{"time_s": 1.0, "energy_j": 89.0}, {"time_s": 1.1, "energy_j": 79.0}],
}


DAG = {
    "instructions": [
        {"id": f"{k}{s}", "stage": s, "instruction": n}
        for s in (0, 1)
        for k, n in (("f", "forward"), ("b", "backward"))
    ],
    "dependencies": [{"from": "f0", "to": "f1", "latency_s": 1e-4}, {"from": "b1", "to": "b0"}],
}
SPACE = """[power]
clock_mhz = {min = 1200, max = 1980, step = 60}
[overlap]
comm_ctas = [4, 8]
window = [["qkv", "output"], "all"]
launch = ["asap", "window"]
"""
PLAN = """[workload]
model = "llama-3.2-1b"
sequence_length = 2048
micro_batch_size = 1
global_batch_size = 4
[cluster]
gpu = "h200-sxm"
gpus = 4
[parallelism]
tensor_model_parallel_size = 2
distributed_optimizer = true
[schedule]
name = "1f1b"
recompute = "selective"
[overlap]
grad_reduce = "overlapped"
[implementation]
framework = "megatron"
[network]
nic_gbit_per_s = 400.0
[power]
power_limit_w = 600
[site]
pue = 1.2
electricity_price_per_kwh = 0.08
"""
JOURNAL = (
    '{"joulecast_sweep": 1}',
    '{"plan": 3, "source": "closed form", "time_s": 1.0, "energy_j": 2.0}',
    '{"batch": 0, "illegal": 1, "unfit": 2, "least_bytes": 3.0}',
)
LAYERS = (
    "overlap_start,overlap_end,comm_sm_number,comm_block_size,0:time (s),0:total energy (J)",
    "-1,-1,4,512,0.01,5.0",
    "0,3,8,256,0.009,4.9",
)
PERSEUS = {
    "measured_iterations.csv": table(
        "gpu,model,partition,parallelism,micro_batch,microbatches,plan,iterations,iteration_time_s,"
        "iteration_energy_j,energy_rank0_j,energy_rank1_j",
        'A100,toy,"custom:0,2,4",dp1+pp2+tp1,1,2,0,28,0.4,80.0,40.0,40.0',
    ),
    "measured_instructions.csv": table("gpu,model,plan,rank,instruction,mean_s", "A100,toy,0,0,forward,0.05"),
    "frequency_plans.jsonl": table(
        '{"gpu": "A100", "model": "toy", "plan": 0, "forward_backward_clock_mhz_per_stage": '
        '[[["F", 1410, 2], ["B", 1410, 2]], [["F", 1410, 1], ["B", 1410, 1], ["F", 1410, 1], ["B", 1410, 1]]]}'
    ),
}
PUBLISHED = {
    "id": "gpt-22b", "source": "a paper", "model": "GPT 22B", "num_layers": 48, "hidden": 6144, "heads": 64,
    "kv_heads": 64, "head_dim": 96, "ffn_hidden": 24576, "gated_mlp": "false", "vocab": 51200, "seq_len": 2048,
    "gpu": "a100-sxm-80gb", "num_gpus": 8, "gpus_per_node": 8, "tp": 8, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "dp": 1,
    "sequence_parallel": "false", "micro_batch": 4, "global_batch": 4, "dtype": "fp16", "recompute": "full",
    "tp_comm_overlap": "false", "distributed_optimizer": "false", "measured_step_time_s": 1.4,
    "measured_tflops_per_gpu": 135.0, "notes": "",
}  # fmt: skip
A100 = {"sm_count": 108.0, "min_clock_mhz": 210.0, "max_clock_mhz": 1410.0}


def perseus(name: str) -> Format:
    others = {other: text for other, text in PERSEUS.items() if other != name}
    return Format(read_plans, (PERSEUS[name],), name, lambda: {n: t() for n, t in others.items()}, folder=True)


FORMATS = {
    "plan": Format(
        read_and_forecast,
        (lambda: PLAN, example("llama-3.1-8b-4xh200.toml"), example("deepseek-v3-1024xh100.toml")),
        "a.toml",
    ),
    "sweep": Format(
        load_space, (example("sweep-llama-8b-power.toml"), example("sweep-mixtral-8x7b-64.toml")), "a.toml"
    ),
    "front's space": Format(load_front_space, (lambda: SPACE,), "a.toml"),
    "derived GPU": Format(read_and_predict, (shipped("gpus", "l40s.toml"), shipped("gpus", "b200.toml")), "a.toml"),
    "fitted GPU": Format(read_and_predict, (shipped("gpus", "h200-sxm.toml"),), "a.toml"),
    "node": Format(load_node, (shipped("nodes", "dgx-h100.toml"),), "a.toml"),
    "network": Format(load_network, (shipped("networks", "infiniband-ndr.toml"),), "a.toml"),
    "site": Format(load_site, (shipped("sites", "default.toml"),), "a.toml"),
    "model": Format(
        load_model,
        tuple(shipped("models", f"{m}.json") for m in ("llama-3.1-8b", "deepseek-v3", "gpt3-175b")),
        "a.json",
    ),
    "profile": Format(partial(problem_from_profile, microbatches=2, wait_power_w=80.0), (table(*PROFILE),), "a.csv"),
    "graph": Format(load_dag, (lambda: json.dumps(DAG, indent=1),), "a.json"),
    "Zeus solution": Format(read_zeus_solution, (lambda: "[[('forward', 1410), ('backward', 1200)], []]",), "a.py"),
    "limits of Zeus": Format(
        read_job_points,
        (table("batch_size,power_limit_0,power_limit_1,time,energy", "8,300,300,1,2", "8,275,275,2,1"),),
        "a.csv",
    ),
    "limits": Format(read_job_points, (table("job,power_limit_w,time_s,energy_j", "x,300,1,2", "x,275,2,1"),), "a.csv"),
    "epochs": Format(read_epochs, (table("batch_size,epochs", "8,12.5", "16,nan"),), "a.csv"),
    "rows": Format(
        read_and_operate,
        (
            head("joulecast.calibrate", 4, "h200_sxm", "kernels.jsonl"),
            head("joulecast.calibrate", 4, "h200_sxm", "collectives.jsonl"),
            head("joulecast.validate", 3, "h200_sxm", "tiles.jsonl"),
        ),
        "a.jsonl",
    ),
    "training rows": Format(
        partial(run_suite, "train"), (head("joulecast.validate", 2, "h200_sxm", "train_iterations.jsonl"),), "a.jsonl"
    ),
    "overlap rows": Format(
        partial(run_suite, "overlap"), (head("joulecast.validate", 2, "h200_sxm", "overlap.jsonl"),), "a.jsonl"
    ),
    "public times": Format(
        read_and_operate,
        (
            table("gpu,M,N,K,time_s", "a100,64,12288,12288,0.00019"),
            table(
                "gpu,model,tp,tokens,operator,M,N,K,hidden,ffn_per_rank,dtype,median_time_s,std_s",
                "a100,CodeLlama-34b,1,4096,attn_pre_proj,4096,10240,8192,8192,22016,fp16,0.002842,0.0001",
            ),
            table(
                "system,operator,shape,efficiency_of_peak",
                'a100_pcie,accelerator/op/matmul,"b=1, m=4096, k=5120, n=1536, layout=TN, accumulate=False, '
                'out_dtype=bf16",0.78',
            ),
        ),
        "a.csv",
    ),
    "recording": Format(
        read_recording,
        (head("joulecast.calibrate", 5, "h200_sxm_live", "card-0", "recording.jsonl"),),
        "recording.jsonl",
    ),
    "journal of a sweep": Format(lambda path: Journal(path, {}, resume=True).close(), (table(*JOURNAL),), "a.jsonl"),
    "collectives of nodes": Format(
        read_network_rows,
        (
            table(
                "system,collective,num_gpus,bytes,median_time_s,n,gpus_per_node_used",
                "a100_dgx,all_reduce,2,2048,4e-5,1,1",
            ),
        ),
        "a.csv",
    ),
    "clock sweep": Format(
        lambda path: read_sweeps(path, "clock"),
        (
            table(*PROFILE),
            table("gpu,locked_sm_clock_mhz,power_w,fp64_dgemm_tflops,note", "h200-sxm,345,161.3,11.44,"),
        ),
        "a.csv",
    ),
    "limit sweep": Format(
        lambda path: read_sweeps(path, "limit"),
        (
            table(
                "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power",
                "cifar100,shufflenetv2,1024,adadelta,100,27.13,106.9",
            ),
        ),
        "a.csv",
    ),
    "layers beside an all-reduce": Format(
        lambda path: read_layers(path, A100), (table(*LAYERS),), "attention_overlap_default_clock.csv", folder=True
    ),
    "published iterations": Format(
        read_published, (table(",".join(PUBLISHED), ",".join(map(str, PUBLISHED.values()))),), "a.csv"
    ),
    "node power": Format(
        read_node_power,
        (
            table(
                "system,gpus,workload,node_power_w,source,run_id,nodes,power_side,train_only_node_power_w,step_time_s",
                "a node,8,llama2_70b_lora,6957.6,mlcommons,1,1,DC,6966.7,",
            ),
        ),
        "a.csv",
    ),
    "simulated card": Format(
        read_card_file,
        (
            lambda: json.dumps(
                {"gpu": "h200-sxm", "truth": {"a": 1.0}, "seed": 1, "locked_clock_mhz": [210, 900], "sensors": {}}
            ),
        ),
        "a.json",
    ),
    "saved iteration": Format(partial(of_saved, "iteration", show_iteration), (saved_iteration,), "a.json"),
    "saved front": Format(
        partial(of_saved, "front", front_series.of_saved), (lambda: json.dumps(FRONT, indent=1),), "a.json"
    ),
    "saved validation": Format(
        partial(of_saved, "validation", lambda data, path: measured_series.measured_by_quantity(data)),
        (saved_validation,),
        "a.json",
    ),
    **{f"Perseus, {name}": perseus(name) for name in PERSEUS},
}

TOKEN = re.compile(r'"[^"\n]*"|[\w.+-]+|[^\w\s]')
HOSTILE = (
    "", "0", "-1", "-0.0", "0.5", "1e-300", "1e308", "1e999", "nan", "inf", "9" * 30, "9" * 5000, "true", "null",
    "[]", "{}",
    '""', '"x"', "'", '"', "\\", "\x00", "é", "\ufeff", "\u2028", "\r", "\n", ",", "=", "[" * 3000, "{" * 300, "[[1]]",
    '{"a": 1}', "1_000", "0x10", "１", "2020-01-01", '"a\\u0000"', '"\\ud800"', "h200-sxm", "../../x", "%s",
)  # fmt: skip
OPERATIONS = ("token", "token", "token", "drop line", "double line", "cut", "insert", "swap", "drop token", "byte")


def damaged(data: bytes, operation: str, where: int, what: int) -> bytes:
    """A valid file's content with one thing wrong."""
    text = data.decode("utf-8", errors="surrogateescape")
    lines, tokens = text.splitlines(keepends=True), list(TOKEN.finditer(text))
    value = HOSTILE[what % len(HOSTILE)]
    if operation in ("token", "drop token", "swap") and tokens:
        token = tokens[where % len(tokens)]
        new = {"token": value, "drop token": "", "swap": tokens[what % len(tokens)][0]}[operation]
        text = text[: token.start()] + new + text[token.end() :]
    elif operation == "drop line" and lines:
        del lines[where % len(lines)]
        text = "".join(lines)
    elif operation == "double line" and lines:
        lines.insert(what % len(lines), lines[where % len(lines)])
        text = "".join(lines)
    elif operation == "cut":
        text = text[: where % (len(text) + 1)]
    elif operation == "insert":
        place = where % (len(text) + 1)
        text = text[:place] + value + text[place:]
    raw = text.encode("utf-8", errors="surrogateescape")
    if operation == "byte" and raw:
        place = where % len(raw)
        raw = raw[:place] + bytes([what % 256]) + raw[place + 1 :]
    return raw


damages = st.lists(
    st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=3
)
outcomes: Counter[str] = Counter()
numbers = count()


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_refused_in_one_line(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    tmp = tmp_path_factory.mktemp("fuzz")
    form = FORMATS[name]
    contents = [source().encode() for source in form.sources]
    for content in contents:
        assert outcome(form, content, tmp) == "good", "what is damaged must be good before"
    long = settings.get_current_profile_name() == "long"

    @settings(
        max_examples=settings().max_examples if long else SHORT,
        derandomize=not long,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, len(contents) - 1), damages)
    def check(source: int, wrong: list[tuple[str, int, int]]) -> None:
        data = contents[source]
        for operation, where, what in wrong:
            data = damaged(data, operation, where, what)
        outcomes[outcome(form, data, tmp)] += 1

    check()
    if long:
        print(f"{name}: {sum(outcomes.values())} inputs so far, {dict(outcomes)}")


def outcome(form: Format, data: bytes, tmp: Path) -> str:
    """Whether a file is good or refused; anything else is an error here."""
    folder = tmp / str(next(numbers))
    folder.mkdir()
    for other, text in form.beside().items():
        (folder / other).write_text(text, encoding="utf-8")
    path = folder / form.name
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecordingWarning)
        try:
            form.read(folder if form.folder else path)
        except Refused:
            return "refused as a whole"
        except JoulecastError as error:
            assert isinstance(error, InputError), f"not an error of the input: {error}"
            assert folder.name in str(error) or form.name in str(error), f"does not name the file: {error}"
            assert len(one_line(str(error))) < 2000, "too long for one line"
            return "refused"
    return "good"


def test_the_damages_damage(tmp_path: Path) -> None:
    sample = table(*PROFILE)().encode()
    kinds = {operation: damaged(sample, operation, 40, 7) for operation in OPERATIONS}
    assert all(data != sample for data in kinds.values())
    with pytest.raises(AssertionError, match="does not name the file"):
        outcome(Format(lambda path: (_ for _ in ()).throw(InputError("bad")), (), "a.csv"), b"", tmp_path)
