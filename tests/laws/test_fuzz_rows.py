"""Damaged measurements: what is read is either good, or one readable line that names the file."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from damaged_files import (
    Format,
    head,
    outcome,
    outcome_of_change,
    refused_in_one_line,
    table,
)
from metered_rows import PLAN, metered

from joulecast.calibrate.clock_sweeps.forms import read_sweeps
from joulecast.calibrate.devices.simulated_file import read_card_file
from joulecast.calibrate.measure.recording import read_recording
from joulecast.calibrate.published.rows import read_published
from joulecast.calibrate.rows.measured import read_rows
from joulecast.calibrate.rows.operators import operator_of
from joulecast.calibrate.studies.a100_overlap_rows import read_layers
from joulecast.calibrate.studies.network_rows import read_network_rows
from joulecast.errors import InputError
from joulecast.validate import run_suite
from joulecast.validate.published.node_power_files import read_node_power
from joulecast.validate.published.perseus_files import read_plans


def read_and_operate(path: Path) -> object:
    return [operator_of(row.configuration) for row in read_rows(path)]


CLOCKS = (
    "stage,instruction,frequency,time,energy",
    *(
        f"0,{i},{f},{70 * t / f:.4f},{t * (5 + f / 200):.3f}"
        for i, t in (("forward", 1), ("backward", 2))
        for f in (1000, 1400)
    ),
)
LAYERS = (
    "overlap_start,overlap_end,comm_sm_number,comm_block_size,0:time (s),0:total energy (J)",
    "-1,-1,4,512,0.01,5.0",
    "0,3,8,256,0.009,4.9",
)
ON_TWO = {"workload": {**PLAN["workload"], "global_batch_size": 8}, "cluster": {"gpu": "h200-sxm", "gpus": 2}}
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
    "workload.model": "mixtral-8x7b",
    "parallelism.expert_tensor_parallel_size": 1,
}  # fmt: skip
A100 = {"sm_count": 108.0, "min_clock_mhz": 210.0, "max_clock_mhz": 1410.0}


def perseus(name: str) -> Format:
    others = {other: text for other, text in PERSEUS.items() if other != name}
    return Format(read_plans, (PERSEUS[name],), name, lambda: {n: t() for n, t in others.items()}, folder=True)


FORMATS = {
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
    "metered rows": Format(
        partial(run_suite, "plans"),
        (
            table(json.dumps(metered(measured_energy_sd=0.001, peak_mem_bytes=2e10))),
            table(*(json.dumps(metered(ON_TWO, rank=rank, world_size=2, gpu_temp_c=50.0)) for rank in (0, 1))),
        ),
        "a.jsonl",
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
            table(*CLOCKS),
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
    **{f"Perseus, {name}": perseus(name) for name in PERSEUS},
}


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_refused_in_one_line(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property("damaged", dict(refused_in_one_line(FORMATS[name], tmp_path)))


#: What long runs found.
BROKE = (
    ("Perseus, measured_iterations.csv", "energy_rank0_j", "energy_rank\x00_j"),
    ("Perseus, frequency_plans.jsonl", '["F", 1410, 2]', f'["F", 1410, {10**20}]'),
    ("Perseus, frequency_plans.jsonl", '["F", 1410, 2]', '["F", 1410, 1000000000]'),
    ("Perseus, frequency_plans.jsonl", '["F", 1410, 2]', "[" * 100_000),
    ("Perseus, measured_instructions.csv", "toy,0,0,", "toy,0," + "9" * 5000 + ","),
)


@pytest.mark.parametrize(("name", "good", "bad"), BROKE)
def test_what_once_broke_a_reader_is_refused(name: str, good: str, bad: str, tmp_path: Path) -> None:
    assert outcome_of_change(FORMATS[name], good, bad, tmp_path) == "refused"


@pytest.mark.parametrize(("key", "value"), [("dp", 10**17), ("micro_batch", 1e300), ("hidden", 1e300)])
def test_a_row_with_a_number_beyond_all_is_left_out_with_its_key(key: str, value: float, tmp_path: Path) -> None:
    first, second = FORMATS["training rows"].sources[0]().splitlines()
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(json.loads(first) | {key: value}) + "\n" + second + "\n", encoding="utf-8")
    found = run_suite("train", path).to_dict()
    assert len(found["rows"]) == 1 and len(found["skipped"]) == 1
    assert f"'{key}'" in str(found["skipped"])


@pytest.mark.parametrize("gpus", [0, 0.5, -1, "2"])
def test_a_row_of_no_number_of_gpus_is_refused(gpus: object, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(json.loads(FORMATS["training rows"].sources[0]().splitlines()[0]) | {"gpus": gpus}))
    with pytest.raises(InputError, match=r"a\.jsonl:1 \[gpus\]"):
        run_suite("train", path)


@pytest.mark.parametrize("key", ["B", "S", "hidden"])
def test_overlapped_work_beyond_all_numbers_is_left_out_with_its_key(key: str, tmp_path: Path) -> None:
    first, second = FORMATS["overlap rows"].sources[0]().splitlines()[:2]
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(json.loads(first) | {key: 10**15}) + "\n" + second + "\n", encoding="utf-8")
    assert key in str(run_suite("overlap", path).to_dict()["skipped"])


@pytest.mark.parametrize(("key", "size"), [("hidden", 1), ("tp", 5), ("ffn", 7)])
def test_overlapped_layers_that_cannot_be_split_are_left_out_with_their_key(
    key: str, size: int, tmp_path: Path
) -> None:
    first, second = FORMATS["overlap rows"].sources[0]().splitlines()[:2]
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(json.loads(first) | {key: size}) + "\n" + second + "\n", encoding="utf-8")
    assert "cannot be split over" in str(run_suite("overlap", path).to_dict()["skipped"])


def test_a_list_in_place_of_a_name_is_no_problem_of_choices(tmp_path: Path) -> None:
    form = FORMATS["overlap rows"]
    text = form.sources[0]()
    assert outcome(form, text.replace('"model": "llama8b"', '"model": []', 1).encode(), tmp_path) == "good"
