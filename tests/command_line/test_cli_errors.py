"""What bad input gets: one readable line on standard error, exit status 2, no traceback, nothing written."""

import errno
import re
from pathlib import Path

import pytest
from command import run
from typer.main import get_command

import joulecast
from joulecast.cli import build_app

PLAN = """
[workload]
model = "llama-3.1-8b"
sequence_length = 4096
micro_batch_size = 1
global_batch_size = 8
[cluster]
gpu = "h200-sxm"
gpus = 4
[parallelism]
tensor_model_parallel_size = 2
pipeline_model_parallel_size = 2
"""


def refused(capsys, *arguments):
    """The one line that a refused command prints."""
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert out == ""
    assert "Traceback" not in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("wrong", "right", "named"),
    [
        ("tensor_model_parallel_sise = 2", "tensor_model_parallel_size = 2", "tensor_model_parallel_size"),
        ('gpu = "h20-sxm"', 'gpu = "h200-sxm"', "h200-sxm"),
        ('model = "lama-3.1-8b"', 'model = "llama-3.1-8b"', "llama-3.1-8b"),
        ("gpus = 5", "gpus = 4", "gpus"),
        ('sequence_length = "long"', "sequence_length = 4096", "sequence_length"),
        ("[cluster", "[cluster]", "plan.toml"),
    ],
)
def test_wrong_plan(capsys, tmp_path, wrong, right, named):
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.replace(right, wrong, 1), encoding="utf-8")
    line = refused(capsys, "predict", plan, "--trace", tmp_path / "trace.json")
    assert named in line
    assert "plan.toml" in line
    assert list(tmp_path.iterdir()) == [plan]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["gpus", "h100-sxm"], "`joulecast gpus show h100-sxm` shows an entry of that name"),
        (["models", "llama-3.1-8b"], "`joulecast models show llama-3.1-8b`"),
        (["nodes", "dgx-h100"], "`joulecast nodes show dgx-h100`"),
        (["gpus", "shw", "h200-sxm"], "no such command 'shw'. Did you mean 'show'?"),
        (["plot", "nothing"], "no such command 'nothing'. `joulecast plot --help` lists what it takes."),
        (["predictt"], "no such command 'predictt'. Did you mean 'predict'?"),
        (["sweep", "space.toml", "--workers", "0"], "invalid value for '--workers': "),
        (["predict"], "missing argument 'PLAN.toml'. `joulecast predict --help` lists what it takes."),
        (["predict", "plan.toml", "--jsom"], "no such option: --jsom"),
        (["--jsom"], "no such option: --jsom"),
    ],
)
def test_what_no_command_takes_is_told_in_one_line(capsys, arguments, says):
    assert says in refused(capsys, *arguments)


def test_nothing_gets_the_help(capsys):
    status, out, err = run(capsys)
    assert status == 2 and (out + err).startswith("Usage: joulecast [OPTIONS] COMMAND")


def test_a_group_alone_lists_its_commands(capsys):
    _, out, err = run(capsys, "plot")
    assert (out + err).startswith("Usage: joulecast plot") and "timeline" in out + err


def test_a_plan_is_no_job_and_a_word_no_range(capsys, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN, encoding="utf-8")
    assert "this is a plan already, not a job. `joulecast predict`" in refused(capsys, "convert", plan)
    plan.write_text(PLAN.replace("gpus = 4", "gpus = {from = 4, to = 8}"), encoding="utf-8")
    assert "{from = 4, to = 8} is no range. Write {min" in refused(capsys, "sweep", plan)
    job = tmp_path / "job.yaml"
    job.write_text("model_name_or_path: mine\nbf16: true\nper_device_train_batch_size: 2\n", encoding="utf-8")
    assert "unknown model 'llama-3.1-9b'" in refused(capsys, "convert", job, "--model", "llama-3.1-9b")
    command = "convert -- trl sft --model_name_or_path Qwen/Qwen3-8B --optim adamw_8bits"
    assert "Did you mean 'adamw_8bit'?" in refused(capsys, *command.split())


def test_many_known_names_are_not_all_listed(capsys):
    told = refused(capsys, "models", "show", "###")
    assert "more." in told and "…" not in told


def test_missing_plan(capsys, tmp_path):
    assert "nothing.toml" in refused(capsys, "predict", tmp_path / "nothing.toml")


def test_unknown_override(capsys, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN, encoding="utf-8")
    assert "cluster.gpuss" in refused(capsys, "predict", plan, "--set", "cluster.gpuss=4")


def test_unknown_gpu(capsys):
    assert "h200-sxm" in refused(capsys, "gpus", "show", "h200-smx")
    assert "Did you mean 'h200-nvl' or 'h200-sxm'" in refused(capsys, "gpus", "show", "h2000")


def test_unknown_model(capsys):
    assert "mistral-7b" in refused(capsys, "models", "show", "mistal-7b")


def test_broken_data_line(capsys, tmp_path):
    rows = tmp_path / "kernels.jsonl"
    rows.write_text('{"name": "a", "op": "idle"}\n{"name": \n', encoding="utf-8")
    line = refused(capsys, "validate", "kernels", "--data", rows)
    assert "kernels.jsonl:2" in line
    assert list(tmp_path.iterdir()) == [rows]


def test_unknown_suite(capsys, tmp_path):
    assert "kernels" in refused(capsys, "validate", "kernls", "--data", tmp_path)


def test_broken_line_when_fitting(capsys, tmp_path):
    rows = tmp_path / "kernels.jsonl"
    rows.write_text("{\n", encoding="utf-8")
    line = refused_after_progress(capsys, "calibrate", "--rows", rows, "--out", tmp_path / "gpu.toml")
    assert "kernels.jsonl:1" in line
    assert list(tmp_path.iterdir()) == [rows]


def refused_after_progress(capsys, *arguments):
    """The last line of a command that says what it does before it is refused."""
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert "Traceback" not in err
    return err.splitlines()[-1]


@pytest.mark.parametrize("option", [("--active",), ("--yes",), ("--gpus", "2"), ("--record", "x")])
def test_measuring_options_without_a_card(capsys, tmp_path, option):
    line = refused(capsys, "calibrate", *option, "--out", tmp_path / "gpu.toml")
    assert option[0] in line
    assert not list(tmp_path.iterdir())


def test_calibration_without_a_file_to_write(capsys):
    assert "--out" in refused(capsys, "calibrate")


def test_calibration_into_a_missing_folder(capsys, tmp_path):
    rows = tmp_path / "kernels.jsonl"
    rows.write_text("{}\n", encoding="utf-8")
    assert "--out" in refused(capsys, "calibrate", "--rows", rows, "--out", tmp_path / "missing" / "gpu.toml")


def options_of(command):
    """Long options of a command and of those below it."""
    below = getattr(command, "commands", {}).values()
    own = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
    return own.union(*(options_of(one) for one in below))


def test_no_error_names_an_option_without_its_dashes():
    """Keys of files have underscores, so that a word with a dash can only be an option."""
    options = {name.removeprefix("--") for name in options_of(get_command(build_app())) if "-" in name[2:]}
    assert {"time-limit", "power-budget", "slow-rank"} <= options
    package = Path(joulecast.__file__).parent
    rooms = [package, *(package / name for name in ("model", "simulator", "plan", "calibrate", "validate"))]
    sources = {file for room in rooms for file in room.resolve().rglob("*.py")}
    assert len(sources) > 300
    pattern = re.compile(rf"key(?:: str)? ?= ?\"({'|'.join(options)})\"")
    assert not [file.name for file in sources if pattern.search(file.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("choose", "PLAN", "--direction", "sideways"), "[--direction]: unknown direction 'sideways'"),
        (("choose", "PLAN", "--stage", "9"), "[--stage]: the plan has no stage 9"),
        (("calibrate", "--device", "cuda:0"), "[--device]: unknown kind of card 'cuda:0'"),
        (("calibrate", "--device", "0", "--budget", "soon"), "[--budget]: 'soon' is no duration"),
    ],
)
def test_an_error_names_the_option_with_its_dashes(capsys, examples, arguments, says):
    plan = examples / "llama-3.1-8b-4xh200.toml"
    assert says in refused(capsys, *(plan if a == "PLAN" else a for a in arguments))


@pytest.mark.parametrize("ending", ["pdf", "png", "SVG", "txt", "json"])
def test_a_report_is_not_called_as_another_kind_of_file(capsys, tmp_path, ending):
    plan, report = tmp_path / "plan.toml", tmp_path / f"report.{ending}"
    plan.write_text(PLAN, encoding="utf-8")
    line = refused(capsys, "predict", plan, "--report", report)
    assert f"report.{ending} [--report]: a report is an HTML page. Call it report.html" in line
    assert not report.exists()


@pytest.mark.parametrize(
    ("option", "arguments"),
    [
        ("--gpu", ["convert", "train.sh", "--gpu", "h200"]),
        ("--base", ["calibrate", "--base", "h200"]),
        ("--gpu", ["validate", "kernels", "--data", "rows.jsonl", "--gpu", "h200"]),
        ("--gpu", ["plot", "measured", "kernels", "--data", "rows.jsonl", "--out", "a.png", "--gpu", "h200"]),
    ],
)
def test_an_unknown_gpu_is_told_with_its_option(capsys, option, arguments):
    assert f"error: [{option}]: unknown GPU 'h200'. Did you mean 'h200-nvl'" in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("card", "said"),
    [
        ('{"gpu": "h200"}', "card.json [gpu]: unknown GPU 'h200'. Did you mean"),
        ('{"gpu": "h200-sxm", "truth": {"power.sm_ww": 3}}', "card.json [truth]: unknown parameter 'power.sm_ww'"),
    ],
)
def test_a_simulated_card_that_cannot_be_names_its_file(capsys, tmp_path, card, said):
    (tmp_path / "card.json").write_text(card, encoding="utf-8")
    assert said in refused(capsys, "calibrate", "--device", f"sim:{tmp_path / 'card.json'}")


def outputs_and_inputs(place, plan):
    return [
        ["predict", plan, "--report", f"{place}/r.html"],
        ["predict", plan, "--trace", f"{place}/t.json"],
        ["front", plan, "--format", "zeus-pfo", "--out", f"{place}/z"],
        ["sweep", plan, "--out", f"{place}/s.csv"],
        ["sweep", plan, "--plans", f"{place}/plans"],
        ["calibrate", "--device", f"sim:{place}/card.json"],
        ["calibrate", "--replay", f"{place}/recording"],
        ["validate", "kernels", "--data", f"{place}/rows.jsonl"],
    ]


@pytest.mark.parametrize("index", range(8))
def test_a_path_that_is_too_long_is_told(capsys, tmp_path, index):
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN, encoding="utf-8")
    line = refused(capsys, *outputs_and_inputs("x" * 5000, plan)[index])
    assert "cannot be used: File name too long. Correct the path." in line and len(line) < 700


@pytest.mark.parametrize("index", range(8))
def test_a_folder_that_may_not_be_entered_is_told(capsys, tmp_path, monkeypatch, index):
    """On machines that are shared; root enters everything, so that the refusal is played."""
    plan, locked = tmp_path / "plan.toml", tmp_path / "locked"
    plan.write_text(PLAN, encoding="utf-8")
    locked.mkdir()
    ask = Path.stat

    def refuse(path, **given):
        if locked in path.parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return ask(path, **given)

    monkeypatch.setattr(Path, "stat", refuse)
    line = refused(capsys, *outputs_and_inputs(locked, plan)[index])
    assert re.search("locked.*: cannot be (used|read): Permission denied.", line)
