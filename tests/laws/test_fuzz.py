"""Damaged plans, catalogues, profiles and results: each is either good, or one readable line that names the file.

A few inputs of each format run with the other tests. ``make slow`` runs 10,000 of each (``--hypothesis-profile=long``).
"""

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
from damaged_files import (
    OPERATIONS,
    Format,
    damaged,
    example,
    outcome,
    outcome_of_change,
    refused_in_one_line,
    shipped,
    table,
    unnamed,
)
from megatron_jobs import LLAMA, MUON
from paths import EXAMPLES, ROOT
from trainer_jobs import (
    AXOLOTL,
    AXOLOTL_DPO,
    COMMAND,
    FACTORY,
    FACTORY_DPO,
    NEMO,
    SFT,
    SWIFT_DPO,
    TORCHTUNE,
    TRL_DPO,
)

import joulecast as jc
from joulecast.errors import InputError
from joulecast.kernels import Gpu
from joulecast.model.architecture.hf import load_model
from joulecast.model.hardware.catalogue import load_gpu, load_network, load_node, load_site
from joulecast.plan.exact.dag_file import load_dag
from joulecast.plan.fronts.profile_front import problem_from_profile
from joulecast.plan.knobs.front_space import load_space as load_front_space
from joulecast.plan.limits.power_limits_read import read_epochs, read_job_points
from joulecast.plan.sweep.journal import VERSION, Journal
from joulecast.plan.sweep.space import load_space
from joulecast.reports.saved import number_of, read_saved
from joulecast.reports.series import front as front_series
from joulecast.reports.series import measured as measured_series
from joulecast.reports.series.ledger import ledger_of
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import load_plan
from joulecast.validate import run_suite

#: Forecasts of plans with more of these are left out: they are right, but take long.
MOST_MICROBATCHES, MOST_LAYERS = 64, 128


def read_and_forecast(path: Path) -> object:
    plan = load_plan(path)
    if plan.microbatches > MOST_MICROBATCHES or plan.workload.layers > MOST_LAYERS:
        return plan
    return unnamed(lambda: forecast(plan).to_dict())


def read_and_forecast_of_lengths(path: Path) -> object:
    plan = path.with_name("a.toml")
    plan.write_text(LIGER.replace("[300, 1200, 5000]", f'"{path.name}"'), encoding="utf-8")
    return read_and_forecast(plan)


def read_and_predict(path: Path) -> object:
    gpu = Gpu(load_gpu(path))
    return unnamed(lambda: gpu.predict(jc.Gemm(m=1024, n=1024, k=1024)))


def of_saved(kind: str, show: Callable[[dict, Path], object], path: Path) -> object:
    return show(read_saved(path, kind), path)


def show_iteration(data: dict, path: Path) -> object:
    return number_of(data, "energy_j", path), ledger_of(data, "component"), ledger_of(data, "instruction")


def convert(path: Path) -> object:
    return jc.convert(path, gpu="h100-sxm", gpus=8)


@cache
def saved_iteration() -> str:
    return json.dumps(jc.predict(EXAMPLES / "llama-3.1-8b-4xh200.toml").to_dict(), indent=1)


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
PAIRS = """[workload]
model = "llama-3.2-1b"
layers = 4
sequence_length = 1024
objective = "dpo"
reference = "copy"
completion_tokens = 300
micro_batch_size = 1
global_batch_size = 4
[cluster]
gpu = "h100-sxm"
gpus = 2
[implementation]
modules = "transformers"
log_probabilities = "chunked"
training_loop = "trainer"
optimizer = "adamw-8bit"
"""
LIGER = """[workload]
model = "mistral-7b"
layers = 2
sequence_length = 8192
document_tokens = [300, 1200, 5000]
document_packing = "whole"
global_batch_size = 4
lora = {rank = 8, target_modules = ["q_proj", "down_proj"], dropout = 0.05}
[cluster]
gpu = "h100-sxm"
gpus = 2
[implementation]
modules = "transformers"
liger_kernel = ["rms_norm", "rope", "swiglu", "fused_linear_cross_entropy"]
optimizer = "sgd-momentum"
"""
EXPERTS = """[workload]
model = "deepseek-v3"
layers = 4
mtp_num_layers = 2
mtp_use_repeated_layer = true
sequence_length = 1024
global_batch_size = 16
[cluster]
gpu = "h100-sxm"
gpus = 16
[parallelism]
tensor_model_parallel_size = 2
sequence_parallel = true
expert_model_parallel_size = 8
distributed_optimizer = true
[implementation]
framework = "megatron"
optimizer = "muon"
muon_num_ns_steps = 4
muon_nesterov = true
muon_tp_mode = "duplicated"
muon_split_qkv = false
muon_fp32_matmul_prec = "high"
moe_token_dispatcher_type = "flex"
moe_flex_dispatcher_backend = "hybridep"
moe_flex_dispatcher_num_sms = 24
moe_router_dtype = "fp32"
moe_router_fusion = false
"""
JOURNAL = (
    f'{{"joulecast_sweep": {VERSION}}}',
    '{"combinations": [0, 4], "illegal": 1, "plans": [3]}',
    '{"plan": 3, "source": "closed form", "time_s": 1.0, "energy_j": 2.0}',
)
FORMATS = {
    "plan": Format(
        read_and_forecast,
        (lambda: PLAN, example("llama-3.1-8b-4xh200.toml"), example("deepseek-v3-1024xh100.toml")),
        "a.toml",
    ),
    "plan of training on pairs": Format(read_and_forecast, (lambda: PAIRS,), "a.toml"),
    "plan of Liger's kernels": Format(read_and_forecast, (lambda: LIGER,), "a.toml"),
    "plan of Muon and experts": Format(read_and_forecast, (lambda: EXPERTS,), "a.toml"),
    "lengths of documents": Format(
        read_and_forecast_of_lengths, (table("tokens,count", "300,20", "1200,5", "5000,1.5"),), "lengths.csv"
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
    "limits of Zeus": Format(
        read_job_points,
        (table("batch_size,power_limit_0,power_limit_1,time,energy", "8,300,300,1,2", "8,275,275,2,1"),),
        "a.csv",
    ),
    "limits": Format(read_job_points, (table("job,power_limit_w,time_s,energy_j", "x,300,1,2", "x,275,2,1"),), "a.csv"),
    "epochs": Format(read_epochs, (table("batch_size,epochs", "8,12.5", "16,nan"),), "a.csv"),
    "journal of a sweep": Format(lambda path: Journal(path, {}, resume=True).close(), (table(*JOURNAL),), "a.jsonl"),
    "script of a job": Format(convert, (lambda: LLAMA, lambda: COMMAND.replace("--config_file fsdp.yaml", "")), "a.sh"),
    "script of a job on pairs": Format(convert, (lambda: TRL_DPO, lambda: SWIFT_DPO), "a.sh"),
    "script of a job with Muon": Format(convert, (lambda: MUON,), "a.sh"),
    "settings of a job": Format(
        convert, (lambda: AXOLOTL, lambda: SFT, lambda: FACTORY, lambda: NEMO, lambda: TORCHTUNE), "a.yaml"
    ),
    "settings of a job on pairs": Format(convert, (lambda: FACTORY_DPO, lambda: AXOLOTL_DPO), "a.yaml"),
    "saved iteration": Format(partial(of_saved, "iteration", show_iteration), (saved_iteration,), "a.json"),
    "saved front": Format(
        partial(of_saved, "front", front_series.of_saved), (lambda: json.dumps(FRONT, indent=1),), "a.json"
    ),
    "saved validation": Format(
        partial(of_saved, "validation", lambda data, path: measured_series.measured_by_quantity(data)),
        (saved_validation,),
        "a.json",
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_refused_in_one_line(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property("damaged", dict(refused_in_one_line(FORMATS[name], tmp_path)))


#: What long runs found.
BROKE = (
    ("saved iteration", '"gpus": 4', '"gpu": 4'),
    ("plan", "h200-sxm", "[" * 900 + "h200-sxm"),
    ("derived GPU", '"Ada"', '" da"'),
    ("profile", "\n0,", "\n" + "9" * 5000 + ","),
    ("model", '"silu"', "[1]"),
    ("journal of a sweep", "[0, 4]", f"[0, {10**30}]"),
    ("script of a job", "--micro-batch-size 1", "--micro-batch-size=---2"),
    ("settings of a job", "deepspeed_configs/zero3_bf16.json", "x" * 5000),
    ("plan of Liger's kernels", "[300, 1200, 5000]", str(10**18)),
    ("lengths of documents", "300,20", "300,1e300"),
)


@pytest.mark.parametrize(("name", "good", "bad"), BROKE)
def test_what_once_broke_a_reader_is_refused(name: str, good: str, bad: str, tmp_path: Path) -> None:
    assert outcome_of_change(FORMATS[name], good, bad, tmp_path) == "refused"


def test_matrix_units_of_no_width_are_refused(tmp_path: Path) -> None:
    lines = FORMATS["derived GPU"].sources[0]().splitlines(keepends=True)
    left = [line for line in lines if not line.startswith(("bf16 = {value = 1024", "fp16 = {value = 1024"))]
    assert len(left) == len(lines) - 2
    assert outcome(FORMATS["derived GPU"], "".join(left).encode(), tmp_path) == "refused"


def test_the_damages_damage(tmp_path: Path) -> None:
    sample = table(*PROFILE)().encode()
    kinds = {operation: damaged(sample, operation, 40, 7) for operation in OPERATIONS}
    assert all(data != sample for data in kinds.values())
    with pytest.raises(AssertionError, match="does not name the file"):
        outcome(Format(lambda path: (_ for _ in ()).throw(InputError("bad")), (), "a.csv"), b"", tmp_path)


@pytest.mark.parametrize("number", ["9" * 5000, "²"])
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("script of a job", "${MODEL[@]}|${MODEL[%s]}"),
        ("script of a job", '"$KIND" == "bf16"|"%s" -gt 1'),
        ("script of a job", "--nproc_per_node $PER_NODE|--nproc_per_node %s"),
        ("script of a job with Muon", "--moe-grouped-gemm|--moe-layer-freq %s"),
    ],
)
def test_digits_that_are_no_number_of_a_job_are_no_failure(name: str, place: str, number: str, tmp_path: Path) -> None:
    good, bad = place.split("|")
    outcome_of_change(FORMATS[name], good, bad % number, tmp_path)


@pytest.mark.parametrize("number", ["9" * 5000, "²"])
def test_processes_of_ms_swift_that_are_no_number_are_missing(number: str, tmp_path: Path) -> None:
    job = SWIFT_DPO.replace("NPROC_PER_NODE=2", f"NPROC_PER_NODE={number}")
    (tmp_path / "job.sh").write_text(job, encoding="utf-8")
    assert "cluster.gpus" in jc.convert(tmp_path / "job.sh", gpu="h100-sxm").missing
