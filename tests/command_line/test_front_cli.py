"""``joulecast front``: what it prints, writes and refuses."""

import json
import re
import subprocess
import sys

import command
import pytest
from row_files import csv_rows, csv_text

PIPELINE = ("--set", "cluster.gpus=8", "--set", "parallelism.pipeline_model_parallel_size=4")


def run(capsys, *arguments):
    """Exit status, standard output and standard error of ``joulecast front``."""
    return command.run(capsys, "front", *arguments)


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    """A made-up profile: time falls with the clock, power rises faster."""
    path = tmp_path_factory.mktemp("profile") / "profile.csv"
    lines = ["stage,instruction,frequency,time,energy"]
    for stage in range(4):
        for k, name in enumerate(("forward", "backward")):
            for clock in range(900, 1500, 60):
                time = (1 + k) * (0.04 + 0.004 * stage) * (0.2 + 0.8 * 1440 / clock)
                lines.append(f"{stage},{name},{clock},{time:.9f},{time * (90 + 250 * (clock / 1440) ** 2.7):.9f}")
    path.write_text("\n".join(lines) + "\n")
    return path


def of_profile(profile, *more):
    return ("--profile", profile, "--schedule", "1f1b", "--microbatches", 8, "--wait-power", 84, *more)


def test_a_limit_is_kept_that_the_remedy_names(capsys, profile):
    """It named the fastest time rounded down, which no plan keeps either."""
    for stages in ("0,1,3", "0,1", "1,2", "2,3"):
        asked = of_profile(profile, "--stages", stages, "--json")
        _, _, err = run(capsys, *asked, "--time-limit", 0.1)
        named = re.search(r"The fastest takes ([0-9.]+) s", err)[1]
        status, out, err = run(capsys, *asked, "--time-limit", named)
        assert (status, err) == (0, "")
        fastest = json.loads(out)["points"][0]["time_s"]
        assert fastest * (1 - 1e-12) <= float(named) <= fastest * 1.00001


def test_a_file_has_what_was_asked_of_slow_ones(capsys, profile, tmp_path):
    asked = of_profile(profile, "--straggler-time", 3, "--slow-rank", "1=1.2")
    _, out, _ = run(capsys, *asked, "--json")
    status, printed, _ = run(capsys, *asked, "--out", tmp_path / "front.json")
    assert (status, printed) == (0, "")
    assert json.loads((tmp_path / "front.json").read_text()) == json.loads(out)
    assert {"stragglers", "slow_rank"} < json.loads(out).keys()
    _, printed, _ = run(capsys, *asked, "--out", tmp_path / "front.csv")
    assert "straggler" in printed and "its replicas" in printed, "a table of instructions has no place for them"
    _, printed, _ = run(capsys, *of_profile(profile), "--out", tmp_path / "alone.csv")
    assert printed == ""


def test_json(capsys, profile):
    status, out, err = run(capsys, *of_profile(profile, "--stages", "0,1,3", "--json"))
    assert (status, err) == (0, "")
    front = json.loads(out)
    bound, points = front["lower_bound"], front["points"]
    assert all(set(entry) == {"time_s", "energy_j"} for entry in bound)
    assert all(set(point) == {"time_s", "energy_j", "power_w", "lower_bound_j", "plan"} for point in points)
    rows = {(int(r["stage"]), r["instruction"], int(r["frequency"])): r for r in csv_rows(profile)}
    for point in points[:: len(points) // 10]:
        assert [len(order) for order in point["plan"]] == [16, 16, 16]
        time, energy, busy = 0.0, 0.0, 0.0
        ends = {}
        waiting = [
            list(zip(names, clocks, strict=True))
            for names, clocks in zip(front["instructions"], point["plan"], strict=True)
        ]
        clock_of = [0.0] * 3
        counts = [{"forward": 0, "backward": 0} for _ in range(3)]
        while any(waiting):
            for rank, stage in enumerate((0, 1, 3)):
                if not waiting[rank]:
                    continue
                name, clock = waiting[rank][0]
                k = counts[rank][name]
                other = rank - 1 if name == "forward" else rank + 1
                needed = (name, other, k)
                if 0 <= other < 3 and needed not in ends:
                    continue
                row = rows[stage, name, clock]
                begin = max(clock_of[rank], ends.get(needed, 0.0))
                clock_of[rank] = ends[name, rank, k] = begin + float(row["time"])
                energy += float(row["energy"])
                busy += float(row["time"])
                counts[rank][name] += 1
                waiting[rank].pop(0)
        time = max(clock_of)
        assert point["time_s"] == pytest.approx(time, rel=1e-9)
        assert point["energy_j"] == pytest.approx(energy + 84.0 * (3 * time - busy), rel=1e-9)
        assert point["lower_bound_j"] <= point["energy_j"]


def test_csv_and_table(capsys, profile):
    status, out, _ = run(capsys, *of_profile(profile, "--csv"))
    rows = csv_text(out)
    assert (status, list(rows[0])) == (0, ["time_s", "energy_j", "power_w", "lower_bound_j", "gap"])
    status, out, _ = run(capsys, *of_profile(profile))
    assert "above the lower bound on average" in out
    assert f"{len(rows)} plans of 64 instructions" in out
    assert len(out.splitlines()) < 30
    head, *lines = out.splitlines()[out.splitlines().index("") + 1 :]
    assert re.split(r"  +", head.strip())[3:5] == ["slower [%]", "energy saved [%]"]
    shown = [tuple(map(float, line.split())) for line in lines if re.fullmatch(r"[\d. -]+", line)]
    assert len(shown) > 10 and shown[0][0] == pytest.approx(float(rows[0]["time_s"]), rel=1e-3)
    for time_s, energy_j, _, slower, saved, _ in shown:  # of numbers with four digits
        assert slower == pytest.approx(100.0 * (time_s / shown[0][0] - 1.0), abs=0.2)
        assert saved == pytest.approx(100.0 * (1.0 - energy_j / shown[0][1]), abs=0.2)
    assert shown[-1][3] > 10.0 < shown[-1][4]


def test_time_limit_and_simple(capsys, profile):
    _, out, _ = run(capsys, *of_profile(profile, "--csv"))
    rows = csv_text(out)
    limit = float(rows[len(rows) // 2]["time_s"])
    _, out, _ = run(capsys, *of_profile(profile, "--csv", "--time-limit", limit))
    assert max(float(r["time_s"]) for r in csv_text(out)) <= limit
    _, out, _ = run(capsys, *of_profile(profile, "--json", "--simple", "rank"))
    assert all(len(set(order)) == 1 for point in json.loads(out)["points"] for order in point["plan"])
    status, _, err = run(capsys, *of_profile(profile, "--time-limit", 0.5))
    assert status == 2
    assert "no plan takes 0.5 s or less" in err


def test_slow_switching_of_a_profile(capsys, profile):
    _, out, _ = run(capsys, *of_profile(profile, "--json", "--switch-time", 0.05))
    front = json.loads(out)
    assert "one clock" in front["notes"][-1]
    assert all(len(set(order)) == 1 for point in front["points"] for order in point["plan"])


def test_a_users_graph(capsys, profile, tmp_path):
    graph = {
        "instructions": [
            {"id": f"{k}{s}", "stage": s, "instruction": k} for k in ("forward", "backward") for s in range(4)
        ],
        "dependencies": [{"from": f"forward{s}", "to": f"forward{s + 1}"} for s in range(3)]
        + [{"from": f"backward{s + 1}", "to": f"backward{s}"} for s in range(3)],
    }
    path = tmp_path / "dag.json"
    path.write_text(json.dumps(graph))
    by_graph = run(capsys, "--profile", profile, "--dag", path, "--wait-power", 84, "--csv")
    by_name = run(capsys, "--profile", profile, "--microbatches", 1, "--wait-power", 84, "--csv")
    assert by_graph == by_name
    graph["dependencies"].append({"from": "backward0", "to": "forward0"})
    path.write_text(json.dumps(graph, indent=1))
    status, out, err = run(capsys, "--profile", profile, "--dag", path, "--wait-power", 84, "--json")
    assert (status, out) == (2, "")
    assert f"{path}:" in err
    assert "in a circle" in err


def test_files(capsys, profile, tmp_path):
    out = tmp_path / "front.json"
    status, text, err = run(capsys, *of_profile(profile, "--out", out))
    assert (status, text, err) == (0, "", f"wrote {out}\n")
    assert len(json.loads(out.read_text())["points"]) > 20
    folder = tmp_path / "zeus"
    run(capsys, *of_profile(profile, "--format", "zeus-pfo", "--out", folder))
    assert (folder / "freqs_pipeline_00000.py").is_file()
    status, _, err = run(capsys, *of_profile(profile, "--out", tmp_path / "none" / "front.json"))
    assert status == 2
    assert "none [--out]: no such folder" in err
    status, _, err = run(capsys, *of_profile(profile, "--out", tmp_path / "front.xlsx"))
    assert (status, (tmp_path / "front.xlsx").exists()) == (2, False)
    assert "no format ends in .xlsx. End it in .json, .csv or .parquet, or name the format." in err
    assert not list(tmp_path.glob("**/*.part"))


def test_forecast(capsys, examples):
    plan = examples / "llama-3.1-8b-4xh200.toml"
    status, out, err = run(capsys, plan, *PIPELINE, "--json", "--switch-time", 0)
    assert (status, err) == (0, "")
    front = json.loads(out)
    assert [len(order) for order in front["points"][0]["plan"]] == [17] * 4
    assert front["points"][0]["knobs"]
    assert front["notes"]


def test_what_zeus_reads_needs_nothing_that_zeus_does_not_set(capsys, examples, tmp_path):
    """The front of the profile beside the solutions is theirs: both have the plan's thread blocks."""
    plan, folder, wait_w = examples / "llama-3.1-8b-4xh200.toml", tmp_path / "zeus", 200
    assert run(capsys, plan, "--format", "zeus-pfo", "--out", folder)[0] == 0
    assert not (folder / "instructions.csv").exists()
    solutions = csv_rows(folder / "front.csv")
    times = ("--schedule", "1f1b", "--microbatches", 8, "--wait-power", wait_w)
    _, out, _ = run(capsys, "--profile", folder / "profile.csv", *times, "--csv")
    fastest = float(csv_text(out)[0]["time_s"])
    assert fastest < float(solutions[0]["time_s"]) < 1.08 * fastest  # a profile has no optimizer and no transfers
    space = tmp_path / "space.toml"
    space.write_text("[overlap]\ncomm_ctas = [8, 16]\n")
    status, _, err = run(capsys, plan, "--format", "zeus-pfo", "--out", tmp_path / "x", "--space", space)
    assert status == 2 and "space.toml:2 [overlap.comm_ctas]: Zeus sets clocks alone" in err
    assert not (tmp_path / "x").exists()


def test_the_table_says_how_sure_a_forecast_is_and_nothing_of_a_profile(capsys, examples, profile):
    _, out, _ = run(capsys, examples / "llama-3.1-8b-4xh200.toml", "--simple", "rank")
    assert "5-95 % of a plan on any card: time -" in out
    assert "slower, 5-95 %" in out and "saved, 5-95 %" in out
    _, out, _ = run(capsys, *of_profile(profile))
    assert "5-95 %" not in out
    assert "- times and energies are as measured: nothing is forecast, and plans have no intervals" in out


def test_power_limits(capsys, examples):
    status, out, _ = run(capsys, examples / "llama-3.1-8b-4xh200.toml", "--format", "zeus-power-limit")
    assert status == 0
    assert set(json.loads(out)["measurements"][0]) == {"power_limit", "energy", "time"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "give either a plan or --profile"),
        (("--dag", "dag.json"), "give either a plan or --profile"),
        (("plan.toml", "--profile", "x.csv"), "give either a plan or --profile"),
        (("--profile", "x.csv", "--microbatches", 3), "[--wait-power]"),
        (("--profile", "x.csv", "--wait-power", 80), "[--microbatches]"),
        (("--profile", "x.csv", "--microbatches", 3, "--wait-power", 80), "x.csv: no such file"),
        (("--profile", "x.csv", "--microbatches", 3, "--wait-power", 80, "--set", "a.b=1"), "[--set]"),
        (("--profile", "x.csv", "--microbatches", 3, "--wait-power", 80, "--stages", "0-3"), "[--stages]"),
        (("PROFILE", "--straggler-time", 0.01), "[--straggler-time]: no plan takes 0.01 s or less"),
        (("PROFILE", "--straggler-time", "inf"), "[--straggler-time]: a straggler must end"),
        (("PROFILE", "--transfer-time", "inf"), "[--transfer-time]: a transfer of inf s"),
        (("--profile", "PATH", "--wait-power", 80, "--microbatches", 10**8), "[--microbatches]"),
        (("PROFILE", "--time-limit", 0.01), "[--time-limit]: no plan takes 0.01 s or less"),
        (
            ("PROFILE", "--wait-power", 84e3),
            "[--wait-power]: 84000 W, which no GPU draws. Give it in watts for one GPU.",
        ),
        (("PROFILE", "--slow-rank", "9=2"), "[--slow-rank]: there is no rank 9"),
        (("PROFILE", "--schedule", "1f1c"), "[--schedule]: unknown schedule '1f1c'"),
        (("PROFILE", "--virtual-stages", 3), "[--virtual-stages]: 4 stages do not divide into 3"),
        (("PROFILE", "--virtual-stages", 2), "[--virtual-stages]: 2 virtual stages per rank"),
        (("PROFILE", "--virtual-stages", 2, "--schedule", "interleaved-1f1b", "--microbatches", 5), "[--microbatches]"),
        (("PROFILE", "--simple", "stages"), "[--simple]: unknown kind of simple plan 'stages'"),
        (("PROFILE", "--format", "zeus-pfo"), "[--out]"),
        (("plan.toml", "--format", "yaml"), "[--format]: unknown format 'yaml'"),
        (("plan.toml", "--format", "zeus-pfo"), "[--out]"),
        (("plan.toml", "--simple", "stages"), "Did you mean 'stage'"),
        (("--profile", "x.csv", "--format", "zeus-power-limit"), "a plan is missing"),
        (("plan.toml",), "plan.toml: no such file"),
    ],
)
def test_what_is_refused(capsys, tmp_path, monkeypatch, profile, arguments, says):
    monkeypatch.chdir(tmp_path)
    known = {"PROFILE": of_profile(profile), "PATH": (profile,)}
    status, out, err = run(capsys, *(part for a in arguments for part in known.get(a, (a,))))
    assert (status, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--power-limits", "9,700"), "[--power-limits]: 9 W"),
        (("--per-rank", "--power-budget", 10), "[--power-budget]: 10 W for 4 GPUs"),
        (("--time-limit", 0.001), "[--time-limit]: no plan takes 0.001 s"),
    ],
)
def test_what_is_refused_of_a_plan_names_the_option(capsys, examples, arguments, says):
    status, out, err = run(capsys, examples / "llama-3.1-8b-4xh200.toml", *arguments)
    assert (status, out) == (2, "")
    assert says in err


def test_an_unknown_schedule(capsys, profile):
    arguments = ("--profile", profile, "--microbatches", 4, "--wait-power", 84)
    status, _, err = run(capsys, *arguments, "--schedule", "1f1c")
    assert status == 2
    assert "unknown schedule '1f1c'" in err
    status, out, _ = run(capsys, *arguments, "--schedule", "Schedule1F1B", "--csv")
    assert status == 0
    assert out


def test_without_numba_the_same_bound_and_a_word_about_it(capsys, profile):
    arguments = ("--profile", str(profile), "--stages", "0,3", "--microbatches", "4", "--wait-power", "84", "--json")
    code = f"import sys\nsys.modules['numba'] = None\nfrom joulecast.cli import main\nmain(['front', *{arguments!r}])"
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    _, out, err = run(capsys, *arguments)
    assert "numba is not installed" in plain.stderr
    assert err == ""
    ours, theirs = json.loads(plain.stdout), json.loads(out)
    assert ours["lower_bound"] == theirs["lower_bound"]
    assert ours["points"][0]["time_s"] == theirs["points"][0]["time_s"]
    assert 5 < len(ours["points"]) < len(theirs["points"])
    assert max(p["energy_j"] / p["lower_bound_j"] for p in ours["points"]) < 1.02


def test_every_power_limit_is_printed_with_where_it_is_best(capsys, examples):
    """200 W takes more energy and longer than 300 W: it is shown, and said to be best nowhere."""
    asked = ("--power-limits", "200,300,700", "--eta", 0.5)
    status, out, _ = run(capsys, examples / "llama-3.1-8b-4xh200.toml", *asked)
    lines = out.splitlines()
    assert status == 0
    assert lines[2].split("  ")[0] == "limit [W]" and lines[2].endswith("best at η")
    assert [line.split()[0] for line in lines[3:6]] == ["700", "300", "200"]
    assert "never" in lines[5] and "0 to " in lines[3]
    assert "energy [J]  slower [%]  energy saved [%]  power" in lines[2]
    (slower, saved), fastest = (map(float, lines[4].split()[3:5])), lines[3].split()
    assert fastest[3:5] == ["0", "0"]
    assert slower == pytest.approx(100.0 * (float(lines[4].split()[1]) / float(fastest[1]) - 1.0), abs=0.1)
    assert saved == pytest.approx(100.0 * (1.0 - float(lines[4].split()[2]) / float(fastest[2])), abs=0.1)
    assert lines[-1].startswith("Best at η = 0.5: 700 W, 1.0")


def test_a_limit_that_stands_twice_is_one(capsys, examples):
    status, out, _ = run(capsys, examples / "llama-3.1-8b-4xh200.toml", "--power-limits", "400,400,600", "--csv")
    assert status == 0
    assert [line.split(",")[1] for line in out.splitlines()[1:]] == ["400.0", "600.0"]


def test_one_plan_is_no_plans(capsys, examples):
    locked = ("--set", "power.clock_mhz=1200", "--set", "overlap.comm_ctas=16")
    status, out, _ = run(capsys, examples / "llama-3.1-8b-4xh200.toml", *locked)
    assert status == 0 and out.startswith("1 plan of ")


def test_overriding_a_plan_that_is_not_there_is_refused_as_that(capsys):
    assert command.status_of("front", "--profile", "p.csv", "--wait-power", "83", "--set", "cluster.gpus=8") == 2
    assert "[--set]: belongs to a plan or power limits" in capsys.readouterr().err
