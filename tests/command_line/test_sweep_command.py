"""The command ``joulecast sweep``."""

import json
import re

import command
import pytest
from command import status_of
from row_files import csv_rows, csv_text

import joulecast as jc


def run(capsys, *arguments):
    """Exit status, standard output and standard error of ``joulecast sweep``."""
    return command.run(capsys, "sweep", *arguments)


@pytest.fixture
def file(tmp_path):
    """A small SPACE.toml."""
    path = tmp_path / "space.toml"
    path.write_text(
        '[workload]\nmodel = "llama-3.2-1b"\nsequence_length = 2048\nglobal_batch_size = 16\n'
        'micro_batch_size = [1, 2]\n[cluster]\ngpu = "h200-sxm"\ngpus = 8\n[parallelism]\n'
        "tensor_model_parallel_size = [1, 2, 3]\n[objective]\ntop = 1\n"
    )
    return path


def test_the_command(file, tmp_path, capsys):
    code, out, err = run(capsys, file, "--out", tmp_path / "rows.csv")
    assert code == 0
    assert "6 offered, 4 legal, 4 fit memory, 4 keep to constraints, 1 simulated" in out
    assert "a heuristic chose which plans were simulated" in out
    assert "wrote" in err
    plan = tmp_path / "best.toml"
    code, out, _ = run(capsys, file, "--json", "--set", "objective.minimise=energy", "--plan", plan)
    found = json.loads(out)
    assert found["minimise"] == ["energy"]
    assert found["counts"]["legal"] == 4
    assert found["best"][0]["source"] == "simulated"
    assert jc.predict(plan).energy_j == found["best"][0]["energy_j"]
    code, out, _ = run(capsys, file, "--csv", "--set", "objective.top=0")
    assert len(csv_text(out)) == 4


def test_why_combinations_are_left_out_is_told(file, capsys):
    """Others of them are legal, so the sweep goes on."""
    code, out, _ = run(capsys, file, "--json", "--set", "overlap.comm_ctas=[8, 200]")
    found = json.loads(out)
    assert code == 0 and found["counts"]["legal"] == 4
    assert "has overlap.comm_ctas = 200: 200 thread blocks" in found["notes"][-1]
    assert "nearest is 132" in found["notes"][-1]
    _, out, _ = run(capsys, file, "--json")
    assert "left out, such as" not in json.loads(out)["notes"][-1]


def test_every_value_that_no_plan_has_is_told_with_its_reason(file, capsys):
    """Of several reasons one was told, so that a precision was missing without a word."""
    settings = ["workload.precision=['bf16', 'fp8', 'tf32']", "schedule.recompute=['none', 'selective']"]
    settings += [
        "implementation.framework=pytorch-eager",
        "implementation.modules=torchtitan",
        "implementation.compile=true",
    ]
    settings += ["parallelism.tensor_model_parallel_size=[1, 2]"]
    _, out, _ = run(capsys, file, "--json", *(word for one in settings for word in ("--set", one)))
    missing = [note for note in json.loads(out)["notes"] if note.startswith("no plan")]
    assert len(missing) == 1 and missing[0].startswith('no plan has workload.precision = "tf32": attention in fp32')
    assert sum("left out, such as parallelism.sequence_parallel" in note for note in json.loads(out)["notes"]) == 1
    large = "workload.model=llama-3.1-70b", "workload.micro_batch_size=1", "parallelism.tensor_model_parallel_size=8"
    large += ("workload.sequence_length=[2048, 524288]", "parallelism.distributed_optimizer=true")
    _, out, _ = run(capsys, file, "--json", *(word for one in large for word in ("--set", one)))
    assert "no plan with workload.sequence_length = 524288 fits memory" in json.loads(out)["notes"]
    large += (*settings[2:5], "workload.precision=['bf16', 'tf32']")  # the one does not fit, the other is none
    _, out, _ = run(capsys, file, "--json", *(word for one in large for word in ("--set", one)))
    assert "no plan with workload.sequence_length = 524288 fits memory" in json.loads(out)["notes"]


def test_sizes_that_divide_nothing_are_told_in_one_line_for_each_key(file, capsys):
    """Those that are left out before a plan is built were missing without a word."""
    sizes = ["parallelism.tensor_model_parallel_size={min = 1, max = 16}", "workload.micro_batch_size=[1, 5]"]
    sizes += [f"parallelism.{name}_model_parallel_size=[1, 2]" for name in ("pipeline", "virtual_pipeline")]
    _, out, _ = run(capsys, file, "--json", *(word for one in sizes for word in ("--set", one)))
    missing = [note for note in json.loads(out)["notes"] if note.startswith("no plan")]
    assert len(missing) == 3
    told = (
        "tensor_model_parallel_size = 3 or 5 or 6 or 7 or 9 or 10 or 11 or 12 or others: cluster.gpus: 8 GPUs cannot",
        "micro_batch_size = 5: workload.global_batch_size: a global batch of 16 cannot",
        "virtual_pipeline_model_parallel_size = 2: schedule '1f1b' has one stage per rank",
    )
    assert all(any(words in note for note in missing) for words in told)


def test_a_bound_on_an_iteration_that_may_be_meant_for_the_run_is_told(file, capsys):
    bound = ("--set", "constraints.max_money=600000")
    said = "max_money bounds one iteration, and leaves out no plan; max_run_money bounds the whole run"
    _, out, _ = run(capsys, file, "--json", *bound, "--set", "workload.training_tokens=1e9")
    assert said in json.loads(out)["notes"]
    _, out, _ = run(capsys, file, "--json", *bound)
    assert said not in json.loads(out)["notes"]


def test_what_a_lower_limit_saves_is_told_to_be_no_measured_fact(file, capsys):
    """As ``predict`` says it of the plan that is best."""
    said = "what limits below h200-sxm's default of 700 W save is no measured fact"
    for limits, told in (("[700, 500]", True), ("700", False)):
        settings = ("--set", f"power.power_limit_w={limits}", "--set", "objective.minimise=energy")
        _, out, _ = run(capsys, file, "--json", *settings)
        assert any(note.startswith(said) for note in json.loads(out)["notes"]) is told


def test_schedules_networks_and_sites_have_columns_of_their_own(file, capsys):
    """The last words of their keys are the same."""
    names = ["schedule.name=['1f1b', 'zb-h1']", "network.name=['infiniband-ndr', 'roce-400g']"]
    code, out, _ = run(capsys, file, *(part for name in names for part in ("--set", name)), "--set", "objective.top=2")
    head, first = (re.split(r"\s{2,}", line.strip()) for line in out.partition("Best by time\n")[2].splitlines()[:2])
    told = dict(zip(head, first, strict=True))
    assert code == 0 and told["schedule"] in ("1f1b", "zb-h1") and told["network"] in ("infiniband-ndr", "roce-400g")


def test_how_many_plans_each_constraint_leaves_out_is_told(file, tmp_path, capsys):
    """Two of the four plans have the margin; of these and the others two are fast enough."""
    rows = tmp_path / "rows.csv"
    run(capsys, file, "--out", rows)
    found = [(float(r["memory_margin"]), float(r["time_s"])) for r in csv_rows(rows)]
    margin, time = sorted(m for m, _ in found)[2], sorted(t for _, t in found)[2]
    settings = ["--set", f"constraints.min_memory_margin={margin}", "--set", f"constraints.max_time_s={1.001 * time}"]
    _, out, _ = run(capsys, file, *settings)
    assert "\nLeft out by: max_time_s 1, min_memory_margin 2\n" in out
    _, out, _ = run(capsys, file, *settings, "--json")
    assert json.loads(out)["beyond"] == {"max_time_s": 1, "min_memory_margin": 2}


def test_a_space_without_plans_leaves_no_file(file, tmp_path, capsys):
    """One whose constraints nobody keeps to does: a sweep with others goes on from it."""
    out = tmp_path / "rows.csv"
    assert run(capsys, file, "--out", out, "--set", "parallelism.tensor_model_parallel_size=[3]")[0] == 2
    assert list(tmp_path.iterdir()) == [file]
    code, _, err = run(capsys, file, "--out", out, "--set", "constraints.max_time_s=1e-6")
    assert code == 2 and "Loosen it and go on with --resume" in err
    code, _, err = run(capsys, file, "--out", out, "--resume")
    assert code == 0 and "rows.csv.partial holds 4 plans in closed form" in err
    assert set(tmp_path.iterdir()) == {file, out}
    code, _, err = run(capsys, file, "--out", out, "--resume")
    assert code == 0 and "rows.csv.partial is not there: the sweep begins anew" in err


def test_a_space_given_as_a_plan_is_told_apart(file, capsys):
    status_of("predict", file)
    assert "[objective]: this file is a space, not a plan. joulecast sweep goes through it." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resume"], "there is no file to resume"),
        (["--out", "rows.txt"], "names no known form"),
        (["--set", "constraints.max_time_s=1e-6"], "the tightest is max_time_s"),
        (["--set", "parallelism.tensor_model_parallel_size=[3]"], "is a legal plan"),
        (["--set", "constraints.max_time_s=-1"], "Use a value above 0"),
    ],
)
def test_what_the_command_refuses(file, capsys, arguments, message):
    code, out, err = run(capsys, file, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_run_has_days_energy_and_money(file, capsys):
    code, out, _ = run(capsys, file, "--set", "workload.training_tokens=1e9")
    (head,) = [line for line in out.splitlines() if line.startswith("plan ")]
    assert code == 0
    assert "run [days]  run [MWh]  run [USD]" in head


def test_the_table_has_intervals_and_each_cluster_its_best_plan(file, tmp_path, capsys):
    """Of one objective the best plans may all be of one GPU; whether others are worse shows beside their intervals."""
    settings = ["--set", 'cluster.gpu=["h200-sxm", "b200"]', "--set", "parallelism.sequence_parallel=[true, false]"]
    code, out, _ = run(capsys, file, *settings, "--report", tmp_path / "report.html")
    best, each = out.split("\n\n")[1:3]
    assert code == 0
    assert each.startswith("Best by time of each GPU and number of them\n")
    assert [line.split()[2] for line in each.splitlines()[2:]] == ["h200-sxm", "b200"]
    for table in (best, each):
        head, first = table.splitlines()[1:3]
        assert re.search(
            r"time \[s\]  5-95 % of time +energy \[J\]  5-95 % of energy +power \[W\]  5-95 % of power", head
        )
        assert len(re.findall(r"[\d.]+ to [\d.]+", first)) == 3
        assert " true " in first or " false " in first  # as a plan's file has it
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.count("Best by time of each GPU and number of them".replace("Best", "The best")) == 1


def test_every_plan_of_the_tables_is_written_and_is_what_they_show(file, tmp_path, capsys, monkeypatch):
    """Files that the space names are found from the folder of the plans, and from any current one."""
    config = {
        "model_type": "qwen2",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "vocab_size": 32000,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    file.write_text(file.read_text().replace("llama-3.2-1b", "config.json").replace("gpus = 8", "gpus = [4, 8]"))
    folder, best = tmp_path / "plans", tmp_path / "elsewhere" / "best.toml"
    best.parent.mkdir()
    code, out, _ = run(capsys, file, "--json", "--plans", folder, "--plan", best)
    assert code == 0
    found = json.loads(out)
    rows = {row["plan"]: row for row in (*found["best"], *found["best_of_each_cluster"])}
    assert len(rows) >= 2
    monkeypatch.chdir("/")
    assert {int(path.stem) for path in folder.iterdir()} == set(rows)
    for number, row in rows.items():
        assert jc.predict(folder / f"{number}.toml").time_s == row["time_s"]
    assert jc.predict(best).time_s == found["best"][0]["time_s"]
    code, _, err = run(capsys, file, "--plans", folder)
    assert code == 2
    assert "plans [--plans]: is not empty" in err
    code, _, err = run(capsys, file, "--plans", best)
    assert code == 2
    assert f"{best} [--plans]: is a file. Choose a folder" in err


@pytest.mark.parametrize(("framework", "said"), [("megatron", True), ("pytorch-eager", False)])
def test_a_sweep_says_that_a_framework_is_not_named(file, capsys, framework, said):
    named = ("--set", f"implementation.framework={framework}")
    assert ("may be any framework" in run(capsys, file, *named)[1]) == said
    if said:
        generation = ("--set", "implementation.generation=nemo-2024")
        assert "may be any framework" not in run(capsys, file, *named, *generation)[1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(("--out", "rows.csv"), "the same command with --resume goes on"), ((), "without --out nothing is kept")],
)
def test_an_interruption_says_how_to_go_on(file, tmp_path, capsys, monkeypatch, arguments, told):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("joulecast.plan.sweep.search._Sweep.simulate", interrupted)
    code, out, err = run(capsys, file, *arguments)
    assert (code, out) == (130, "")
    assert f"interrupted: {told}" in err
    monkeypatch.undo()
    if arguments:
        monkeypatch.chdir(tmp_path)
        code, _, err = run(capsys, file, *arguments, "--resume")
        assert code == 0 and "holds 4 plans in closed form" in err
