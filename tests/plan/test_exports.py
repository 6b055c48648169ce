"""Fronts in the formats that schedulers read, read back by us and by the programs that they are for."""

import ast
import json
import os
import subprocess
from pathlib import Path

import pytest
from paths import ROOT, TESTS
from row_files import csv_rows

from joulecast.errors import InputError
from joulecast.files import write_folder, write_text
from joulecast.plan.exact.dag import dag_of_schedule
from joulecast.plan.exact.exact_front import exact_front
from joulecast.plan.exact.exports import export_front, instruction_rows, schema, zeus_files, zeus_profile, zeus_solution
from joulecast.plan.exact.problem import make_problem
from joulecast.plan.fronts.profile import load_profile
from joulecast.plan.knobs.options import Option
from joulecast.plan.limits.power_limits import JobPoint, zeus_power_limits
from joulecast.plan.limits.rank_limits import SCHEMA as RANK_LIMITS_SCHEMA
from joulecast.plan.limits.rank_limits import RankLimitFront, RankLimits
from joulecast.simulator.schedules import build_schedule

CLOCKS = (1410, 1305, 1200, 1095, 1005)


def options(work, *, knobs=((),), clocks=CLOCKS):
    found = []
    for clock in clocks:
        voltage = 0.75 + 0.25 * max(clock - 1000, 0) / 410
        for knob in knobs:
            time = work * (0.3 + 0.7 * 1410 / clock) * (1.02 if knob else 1.0)
            found.append(Option(time, work * 250 * voltage**2 + 80 * time - (0.1 if knob else 0.0), clock, knob))
    return found


def front_of(knobs=((),), clocks=CLOCKS, name="1f1b", chunks=1):
    schedule = build_schedule(name, 3, 6, virtual_stages_per_rank=chunks, tail=())
    dag = dag_of_schedule(schedule)
    kinds, ways, kind = {}, [], []
    for rank, instruction in schedule.flat():
        key = (rank, instruction.chunk, instruction.kind)
        if key not in kinds:
            kinds[key] = len(ways)
            work = (0.02 + 0.004 * rank + 0.001 * instruction.chunk) * (1 if instruction.kind == "forward" else 2.1)
            ways.append(options(work, knobs=knobs, clocks=clocks))
        kind.append(kinds[key])
    return exact_front(make_problem(dag, ways, kind, 75.0))


@pytest.fixture(scope="module")
def front():
    return front_of()


def test_a_solution_reads_back_as_the_plan(front):
    for point in (front.points[0], front.points[-1]):
        read = ast.literal_eval(zeus_solution(front, point))
        assert [[clock for _, clock in rank] for rank in read] == front.clocks_mhz(point)
        assert [[name for name, _ in rank] for rank in read] == front.instructions()


def test_every_rank_of_a_stage_has_the_stages_list(front):
    read = ast.literal_eval(zeus_solution(front, front.points[1], copies=2))
    assert len(read) == 6
    assert read[::2] == read[1::2]


def test_a_folder_for_zeus_is_whole(front, tmp_path):
    export_front(front, tmp_path / "out", "zeus-pfo")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == sorted(zeus_files(front))
    assert names[0] == "freqs_pipeline_00000.py"
    assert len(names) == len(front.points) + 2
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with pytest.raises(InputError, match="not empty"):
        export_front(front, tmp_path / "out", "zeus-pfo")


def test_the_profile_is_that_of_the_front(front, tmp_path):
    path = tmp_path / "profile.csv"
    path.write_text(zeus_profile(front, gpus_per_rank=2))
    profile = load_profile(path)
    assert profile.stages == (0, 1, 2)
    for stage in profile.stages:
        first = front.problem.dag.ranks[stage][0]
        assert first.kind == "forward"
        kind = int(front.problem.kind[front.problem.dag.rank_of == stage][0])
        wanted = sorted(front.problem.sets[kind].options, key=lambda o: -o.clock_mhz)
        read = sorted(profile.of(stage, "forward"), key=lambda o: -o.clock_mhz)
        assert [o.clock_mhz for o in read] == list(CLOCKS)
        assert [o.time_s for o in read] == [o.time_s for o in wanted]
        assert [o.energy_j for o in read] == [o.energy_j / 2 for o in wanted]


def test_stages_of_an_interleaved_pipeline_count_along_the_model(tmp_path):
    path = tmp_path / "profile.csv"
    path.write_text(zeus_profile(front_of(name="interleaved-1f1b", chunks=2)))
    profile = load_profile(path)
    assert profile.stages == tuple(range(6))
    times = [max(o.time_s for o in profile.of(stage, "forward")) for stage in profile.stages]
    assert times[3] > times[0]
    assert times[2] > times[5] - 0.002


def test_the_profile_has_one_line_a_clock_whatever_else_is_chosen(tmp_path):
    both = front_of(knobs=((), (("comm_ctas", 8),)))
    path = tmp_path / "profile.csv"
    path.write_text(zeus_profile(both))
    assert len(load_profile(path).of(0, "forward")) == len(CLOCKS)


def test_json_is_the_front(front, tmp_path):
    export_front(front, tmp_path / "front.json", "json")
    read = json.loads((tmp_path / "front.json").read_text())
    assert read == front.to_dict()
    assert read["points"][0]["plan"] == front.clocks_mhz(front.points[0])
    required = schema()["properties"]["points"]["items"]["required"]
    assert set(required) <= set(read["points"][0])
    assert set(schema()["required"]) == set(read)


def test_tables_have_a_line_for_every_instruction(tmp_path):
    front = front_of(knobs=((), (("comm_ctas", 8),)))
    export_front(front, tmp_path / "front.csv", "csv")
    table = csv_rows(tmp_path / "front.csv")
    assert len(table) == len(front.points) * front.problem.dag.instructions
    first = [row for row in table if row["plan"] == "0"]
    wait = front.problem.total_wait_power_w * front.points[0].time_s
    energy = sum(float(r["energy_j"]) - 75.0 * float(r["time_s"]) for r in first)
    assert energy + wait == pytest.approx(front.points[0].energy_j)
    assert {row["comm_ctas"] for row in table} <= {"", "8"}
    assert "8" in {row["comm_ctas"] for row in table}


def test_parquet(front, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    export_front(front, tmp_path / "front.parquet", "parquet")
    assert parquet.read_table(tmp_path / "front.parquet").to_pylist() == instruction_rows(front)


def test_parquet_without_pyarrow_says_so(front, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(InputError, match="pyarrow"):
        export_front(front, tmp_path / "front.parquet", "parquet")
    assert list(tmp_path.iterdir()) == []


def test_formats_that_do_not_exist(front, tmp_path):
    with pytest.raises(InputError, match="zeus-pfo"):
        export_front(front, tmp_path / "x", "zeus")


@pytest.mark.parametrize(("name", "form"), [("a.csv", "csv"), ("a.JSON", "json"), ("a", "json")])
def test_by_default_a_files_ending_says_its_format(front, tmp_path, name, form):
    front.write(tmp_path / name)
    export_front(front, tmp_path / "named", form)
    assert (tmp_path / name).read_bytes() == (tmp_path / "named").read_bytes()


@pytest.mark.parametrize("name", ["front.xlsx", "front.jsonl", "front.json.gz"])
def test_an_ending_that_no_format_has_is_refused(front, tmp_path, name):
    with pytest.raises(InputError, match=r"no format ends in \.\w+\. End it in \.json, \.csv or \.parquet"):
        front.write(tmp_path / name)
    front.write(tmp_path / name, "json")
    assert json.loads((tmp_path / name).read_text()) == front.to_dict()


def test_zeus_sets_whole_clocks_only(tmp_path):
    odd = front_of(clocks=(1410.5, 1200.0))
    with pytest.raises(InputError, match="whole MHz"):
        export_front(odd, tmp_path / "out", "zeus-pfo")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_in_part(tmp_path, monkeypatch):
    target = tmp_path / "front.json"
    write_text(target, "before")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space"):
        write_text(target, "after")
    with pytest.raises(InputError, match="No space"):
        write_folder(tmp_path / "folder", {"a": "1", "b": "2"})
    assert target.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["front.json"]


RANK_LIMITS = RankLimitFront(
    (
        RankLimits(
            *((700.0, 500.0), 1.0, 900.0, (600.0, 450.0), (1800.0, 1500.0), (("comm_ctas", 8),)),
            *((0.9, 1.1), (0.8, 1.2), (0.95, 1.05)),
        ),
    ),
    (JobPoint(700.0, 1.0, 950.0, 16),),
    gpus_per_rank=2,
    budget_w=None,
    simulated=3,
    notes=("simulated",),
)


def test_the_schema_of_rank_limits_names_what_they_have():
    plain, wanted = RANK_LIMITS.to_dict(), schema(RANK_LIMITS_SCHEMA)
    assert set(wanted["required"]) == set(plain)
    assert set(wanted["properties"]["points"]["items"]["properties"]) == set(plain["points"][0])


@pytest.fixture(scope="module")
def zeus():
    """Python of an environment with zeus, lowtime, aiofiles and jsonschema (``make zeus-environment``)."""
    python = Path(os.environ.get("JOULECAST_ZEUS_PYTHON", ROOT / ".venv-zeus" / "bin" / "python"))
    if not python.is_file():
        pytest.skip(f"no environment with Zeus and lowtime: {python} (make zeus-environment)")
    return python


@pytest.fixture(scope="module")
def read_back(front, zeus, tmp_path_factory):
    """What Zeus, lowtime and jsonschema read of the exports."""
    folder = tmp_path_factory.mktemp("exports")
    export_front(front, folder / "pfo", "zeus-pfo")
    export_front(front, folder / "front.json", "json")
    (folder / "front.schema.json").write_text(json.dumps(schema()))
    (folder / "rank_limits.json").write_text(json.dumps(RANK_LIMITS.to_dict()))
    (folder / "rank_limits.schema.json").write_text(json.dumps(schema(RANK_LIMITS_SCHEMA)))
    points = [JobPoint(300, 10.0, 2600.0), JobPoint(250, 10.5, 2300.0), JobPoint(150, 14.0, 2000.0)]
    (folder / "limits.json").write_text(zeus_power_limits(points))
    run = subprocess.run(
        [str(zeus), "-I", str(TESTS / "support" / "read_back_zeus.py"), str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.slow
def test_zeus_reads_the_solutions(front, read_back):
    for number, point in enumerate(front.points):
        name = f"freqs_pipeline_{number:05d}.py"
        plan = [
            [list(pair) for pair in zip(names, clocks, strict=True)]
            for names, clocks in zip(front.instructions(), front.clocks_mhz(point), strict=True)
        ]
        assert read_back["solutions"][f"{name} PointSolution"] == plan
        assert read_back["solutions"][f"{name} PointSolution3D"] == [rank for rank in plan for _ in range(2)]


@pytest.mark.slow
def test_lowtime_reads_the_profile(front, read_back):
    assert sorted(read_back["profile"]) == sorted(f"{s} {i}" for s in range(3) for i in ("forward", "backward"))
    kind = int(front.problem.kind[0])
    by_clock = {o.clock_mhz: [o.time_s, o.energy_j] for o in front.problem.sets[kind].options}
    kept = read_back["profile"]["0 forward"]
    assert len(kept) >= 3
    assert all(by_clock[clock] == pytest.approx([time, energy]) for clock, time, energy in kept)


@pytest.mark.slow
def test_zeus_chooses_as_we_do_among_power_limits(read_back):
    from joulecast.plan.limits.power_limits import choose, max_power_w

    rows = read_back["limits"]["measurements"]
    points = [JobPoint(row["power_limit"], row["time"], row["energy"]) for row in rows]
    chosen = read_back["limits"]["chosen"]
    assert (chosen["time"], chosen["energy"]) == (300, 150)
    for eta in (0.0, 0.25, 0.5, 0.75, 1.0):
        assert chosen[f"cost {eta:g}"] == choose(points, eta, max_power_w(points)).power_limit_w


@pytest.mark.slow
def test_the_json_keeps_its_schema(read_back):
    for name in ("front", "rank_limits"):
        errors, of_nothing = read_back[f"schema errors of {name}"]
        assert errors == []
        assert of_nothing > 0


@pytest.mark.slow
def test_we_read_what_zeus_writes(read_back):
    profile = load_profile(read_back["profile by zeus"])
    assert profile.gpus_per_stage == 2
    fastest = min(profile.of(1, "forward"), key=lambda o: o.time_s)
    assert fastest.time_s == pytest.approx(33.0 / 1410)
    assert fastest.energy_j == pytest.approx(2 * (5 + 1.41))
