"""``joulecast convert`` from end to end."""

import io
import json
import subprocess
import sys
import tomllib

import pytest
from command import run
from paths import EXAMPLES

JOB = str(EXAMPLES / "train-llama-3.1-8b.sh")


def test_a_job_becomes_a_plan_that_is_forecast(capsys, tmp_path):
    plan = tmp_path / "plan.toml"
    status, out, err = run(capsys, "convert", JOB, "--gpu", "h100-sxm", "--power-limit", "500", "--out", str(plan))
    assert (status, out) == (0, "")
    assert "passed over: --max-position-embeddings, " in err and f"wrote {plan}" in err
    assert tomllib.loads(plan.read_text(encoding="utf-8"))["power"] == {"power_limit_w": 500.0}
    status, out, _ = run(capsys, "predict", str(plan), "--json")
    assert status == 0 and json.loads(out)["gpus"] == 16


def test_without_a_file_the_plan_is_all_that_is_printed(capsys):
    status, out, err = run(capsys, "convert", JOB, "--env", "NODES=4")
    assert status == 0 and tomllib.loads(out)["cluster"] == {"gpus": 32}
    assert "missing: cluster.gpu: " in err


def test_json_has_everything(capsys):
    status, out, _ = run(capsys, "convert", JOB, "--gpu", "h100-sxm", "--json")
    found = json.loads(out)
    assert status == 0 and set(found) == {"plan", "sources", "warnings", "passed_over", "missing"}
    assert found["sources"]["workload.sequence_length"] == "--seq-length (line 9)"


def test_a_command_behind_dashes_and_on_standard_input(capsys, monkeypatch):
    command = "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 256 --num-attention-heads 4 --seq-length 128"
    command += " --max-position-embeddings 128 --micro-batch-size 1 --bf16 --vocab-size 1000"
    status, behind, _ = run(capsys, "convert", "--gpu", "h100-sxm", "--", *command.split())
    monkeypatch.setattr("sys.stdin", io.StringIO(command))
    other, given, _ = run(capsys, "convert", "-", "--gpu", "h100-sxm")
    assert (status, other) == (0, 0) and tomllib.loads(behind) == tomllib.loads(given)


COMMAND = "torchrun --nproc-per-node 8 sft.py --model_name_or_path meta-llama/Llama-3.1-8B --bf16 --max_length 4096"


def test_a_command_in_a_loop_is_read_at_its_first_turn(capsys, tmp_path):
    script = tmp_path / "sweep.sh"
    body = f"  {COMMAND} \\\n    --per_device_train_batch_size $b --num_train_epochs 1\n"
    script.write_text(f"for b in 2 4\ndo\n{body}done\n", encoding="utf-8")
    status, out, err = run(capsys, "convert", str(script), "--gpu", "h100-sxm")
    assert status == 0 and tomllib.loads(out)["workload"]["micro_batch_size"] == 2
    assert "the command on line 3 is started 2 times: the plan is of the first" in err


def test_a_loop_that_only_a_run_knows_says_what_of_the_job_it_hides(capsys, tmp_path):
    script = tmp_path / "sweep.sh"
    script.write_text(f"while read b; do {COMMAND} --per_device_train_batch_size $b; done < sizes\n", encoding="utf-8")
    status, _, err = run(capsys, "convert", str(script), "--gpu", "h100-sxm")
    assert status == 2 and "per_device_train_batch_size" in err and "$b" in err


def test_variables_of_a_file_without_any_are_told(capsys, tmp_path):
    job = tmp_path / "ds.json"
    job.write_text('{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}}', encoding="utf-8")
    status, _, err = run(capsys, "convert", str(job), "--gpus", "8", "--env", "WORLD_SIZE=8")
    assert status == 0 and "warning: --env WORLD_SIZE: a JSON has no variables; " in err


def test_errors_are_one_line(capsys, tmp_path):
    for arguments in (
        ["absent.sh"],
        [str(tmp_path)],
        [JOB, "--env", "X"],
        [JOB, "--gpu", "h100-smx"],
        [JOB, "--out", JOB],
    ):
        status, out, err = run(capsys, "convert", *arguments)
        assert (status, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1


def test_converting_loads_nothing_heavy():
    code = f"import sys, joulecast as jc; jc.convert({JOB!r}, gpu='h100-sxm'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "pandas", "numba", "scipy.optimize", "tomlkit", "rich", "yaml"}
    assert not set(done.stdout.split()) & heavy


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "command: nothing is given."),
        ("  \n", "command: nothing is given."),
        ("a b\0c", "command: this is no text."),
    ],
)
def test_what_is_piped_and_no_job_is_told(capsys, monkeypatch, given, said):
    monkeypatch.setattr("sys.stdin", io.StringIO(given))
    status, out, err = run(capsys, "convert", "-")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_a_piped_script_may_be_longer_than_any_path(capsys, monkeypatch):
    script = (EXAMPLES / "train-llama-3.1-8b.sh").read_text()
    whole = run(capsys, "convert", EXAMPLES / "train-llama-3.1-8b.sh", "--gpu", "h100-sxm")
    monkeypatch.setattr("sys.stdin", io.StringIO(script + "# a remark\n" * 1000))
    status, out, _ = run(capsys, "convert", "-", "--gpu", "h100-sxm")
    assert status == 0 and out.splitlines()[1:] == whole[1].splitlines()[1:]
