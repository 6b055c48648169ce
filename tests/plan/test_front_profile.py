"""Reading profiles: what is good is read, what is not gets one error with file and line."""

import pytest

from joulecast.errors import InputError
from joulecast.plan.exact.exact_front import exact_front
from joulecast.plan.fronts.profile import load_profile
from joulecast.plan.fronts.profile_front import HALVES, MEASURED, problem_from_profile

HEADER = "stage,instruction,frequency,time,energy"
CLOCKS = (1410, 1200, 1005)


def rows(stages=2, instructions=("forward", "backward"), clocks=CLOCKS):
    """Lines of a sound profile."""
    return [
        f"{s},{name},{f},{(1 + k) * 0.05 * 1410 / f:.6f},{(1 + k) * 20 * (f / 1410) ** 1.3:.6f}"
        for s in range(stages)
        for k, name in enumerate(instructions)
        for f in clocks
    ]


def write(tmp_path, lines, header=HEADER):
    path = tmp_path / "profile.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def refused(path, **how):
    with pytest.raises(InputError) as caught:
        load_profile(path, **how)
    assert caught.value.file == str(path)
    assert caught.value.remedy
    return caught.value


def test_a_sound_profile(tmp_path):
    profile = load_profile(write(tmp_path, rows()))
    assert profile.stages == (0, 1)
    assert profile.gpus_per_stage == 1
    option = profile.of(1, "backward")[2]
    assert (option.clock_mhz, option.time_s) == (1005.0, pytest.approx(0.1 * 1410 / 1005, abs=1e-6))


def test_order_case_spaces_and_blank_lines_do_not_matter(tmp_path):
    header = "energy, time ,frequency,instruction,stage"
    lines = [",".join(reversed(row.split(","))).replace("forward", " Forward") for row in rows()]
    assert load_profile(write(tmp_path, [*lines, "", ""], header)).of(0, "forward")


@pytest.mark.parametrize("column", HEADER.split(","))
def test_a_missing_column(tmp_path, column):
    error = refused(write(tmp_path, rows(), HEADER.replace(column, "rank" if column == "stage" else "dp_rank")))
    assert (error.line, error.key) == (1, column)


def test_an_unknown_column(tmp_path):
    error = refused(write(tmp_path, [f"{row},3" for row in rows()], f"{HEADER},power"))
    assert (error.line, error.key) == (1, "power")


def test_a_missing_stage(tmp_path):
    path = write(tmp_path, [row for row in rows(4) if not row.startswith("2")])
    error = refused(path)
    assert "stage 2 is missing" in str(error)
    assert path.read_text().splitlines()[error.line - 1].startswith("3")  # where it should stand
    path.write_text(path.read_text().replace("\n3,", "\n999999999,"))
    assert "stage 2 is missing" in str(refused(path))
    path.write_text(path.read_text().replace("\n999999999,", "\n3,"))
    assert load_profile(path, stages=[0, 1, 3]).stages == (0, 1, 3)
    assert "stage 7 is missing" in str(refused(path, stages=[0, 7]))


def test_a_missing_clock(tmp_path):
    lines = rows()
    del lines[4]
    error = refused(write(tmp_path, lines))
    assert "backward of stage 0 is missing at 1200 MHz" in str(error)
    assert error.line == 6  # the last of that stage


def test_a_missing_instruction(tmp_path):
    error = refused(write(tmp_path, [row for row in rows() if not row.startswith("1,backward")]))
    assert "backward of stage 1 is missing" in str(error)


def test_clocks_of_stages_that_are_not_used_may_differ(tmp_path):
    path = write(tmp_path, rows(3)[:-2])
    assert "stage 2" in str(refused(path))
    assert load_profile(path, stages=[0, 1])


@pytest.mark.parametrize(
    ("column", "text", "says"),
    [
        (3, "0", "the time is 0"),
        (3, "-0.05", "the time is -0.05"),
        (4, "0.0", "the energy is 0.0"),
        (4, "-3", "the energy is -3"),
        (2, "0", "the frequency is 0"),
        (3, "nan", "'nan' is not a number"),
        (3, "inf", "'inf' is not a number"),
        (3, "50ms", "'50ms' is not a number"),
        (4, "", "'' is not a number"),
        (2, "1410000", "not the clock of a GPU"),
        (2, "1.41", "not the clock of a GPU"),
        (0, "one", "'one' is not a stage"),
        (0, "-1", "'-1' is not a stage"),
        (1, "", "no instruction"),
    ],
)
def test_impossible_values(tmp_path, column, text, says):
    lines = rows()
    cells = lines[3].split(",")
    cells[column] = text
    lines[3] = ",".join(cells)
    error = refused(write(tmp_path, lines))
    assert says in str(error)
    assert error.line == 5


@pytest.mark.parametrize(("column", "factor"), [(3, 1e3), (3, 1e-3), (4, 1e3), (4, 1e-3), (3, 1e6)])
def test_mixed_units(tmp_path, column, factor):
    lines = rows()
    cells = lines[7].split(",")
    cells[column] = str(float(cells[column]) * factor)
    lines[7] = ",".join(cells)
    error = refused(write(tmp_path, lines))
    assert "units are mixed" in str(error)
    assert error.line == 9


def test_milliseconds_everywhere(tmp_path):
    lines = [",".join([*row.split(",")[:3], str(float(row.split(",")[3]) * 1e3), row.split(",")[4]]) for row in rows()]
    assert "which no GPU draws" in str(refused(write(tmp_path, lines)))


def test_a_line_twice(tmp_path):
    lines = rows()
    error = refused(write(tmp_path, [*lines, lines[2].replace("0,forward", "0,FORWARD")]))
    assert "forward of stage 0 at 1005 MHz stands twice, first in line 4" in str(error)
    assert error.line == 14


def test_too_few_values_and_no_lines(tmp_path):
    assert refused(write(tmp_path, [*rows(), "0,forward,1410"])).line == 14
    assert "no measurement" in str(refused(write(tmp_path, [])))
    assert refused(tmp_path / "none.csv").message == "no such file"


def by_rank(times, energies, extra=()):
    """A profile of one stage and clock measured on several GPUs."""
    return [
        *(
            f"{k},0,0,{k},0,{name},1410,{t},{e}"
            for name in ("forward", "backward")
            for k, (t, e) in enumerate(zip(times, energies, strict=True))
        ),
        *extra,
    ]


RANKS = "rank,dp_rank,pp_rank,tp_rank,stage,instruction,frequency,time,energy"


def test_gpus_of_a_stage_share_a_choice(tmp_path):
    path = write(tmp_path, by_rank([0.05, 0.06], [20.0, 21.0]), RANKS)
    profile = load_profile(path)
    assert profile.gpus_per_stage == 2
    option = profile.of(0, "forward")[0]
    assert (option.time_s, option.energy_j) == (0.06, 41.0)
    problem = problem_from_profile(path, microbatches=3, wait_power_w=80.0)
    assert problem.wait_power_w.tolist() == [160.0]
    point = exact_front(problem).points[0]
    assert (point.time_s, point.energy_j) == pytest.approx((6 * 0.06, 6 * 41.0))


def test_a_gpu_that_was_not_measured(tmp_path):
    missing = by_rank([0.05, 0.06], [20.0, 21.0])[:-1]
    assert "is missing" in str(refused(write(tmp_path, missing, RANKS)))
    lone = by_rank([0.05, 0.06], [20.0, 21.0], [f"2,0,1,0,1,{n},1410,0.05,20" for n in ("forward", "backward")])
    assert "stage 1 has 1 GPUs, stage 0 has 2" in str(refused(write(tmp_path, lone, RANKS)))


def test_a_rank_that_contradicts_the_stage(tmp_path):
    error = refused(write(tmp_path, ["0,0,1,0,0,forward,1410,0.05,20"], RANKS))
    assert (error.line, error.key) == (2, "pp_rank")


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_schedules_without_virtual_stages(tmp_path, schedule):
    problem = problem_from_profile(write(tmp_path, rows(3)), schedule=schedule, microbatches=4, wait_power_w=80.0)
    front = exact_front(problem)
    assert len(front.clocks_mhz(front.points[0])) == 3
    assert (HALVES in problem.notes) == (schedule == "zb-h1")


@pytest.mark.parametrize(
    ("schedule", "parts"), [("1f1b", set()), ("zb-h1", {(0.05, 20.0)}), ("dualpipe", {(0.05, 20.0), (0.15, 60.0)})]
)
def test_what_was_not_measured_is_half_a_backward_or_a_sum(tmp_path, schedule, parts):
    """A forward of 0.05 s and 20 J, a backward of twice that: whole, in halves, and both in one instruction."""
    path = write(tmp_path, rows())
    problem = problem_from_profile(path, schedule=schedule, microbatches=4, wait_power_w=0.0)
    fastest = {(round(s.options[0].time_s, 9), round(s.options[0].energy_j, 9)) for s in problem.sets}
    assert fastest >= {(0.05, 20.0), *parts}
    assert fastest <= {(0.05, 20.0), (0.1, 40.0), *parts}
    with pytest.raises(InputError, match="the graph has 2 stages, the profile 1"):
        problem_from_profile(path, problem.dag, stages=[0], wait_power_w=0.0)
    assert problem_from_profile(path, problem.dag, wait_power_w=0.0).kind.tolist() == problem.kind.tolist()


def test_measured_halves_of_the_backward_are_used(tmp_path):
    path = write(tmp_path, rows(2, ("forward", "backward_input", "backward_weight")))
    problem = problem_from_profile(path, schedule="zb-h1", microbatches=2, wait_power_w=80.0)
    assert problem.notes == (MEASURED,)
    assert {s.options[0].time_s for s in problem.sets} == {0.05, 0.1, 0.15}
    with pytest.raises(InputError, match="instruction 'backward' of stage 0 is missing"):
        problem_from_profile(path, schedule="1f1b", microbatches=2, wait_power_w=80.0)


def test_interleaved_stages_go_round_the_ranks(tmp_path):
    lines = [row.replace(",0.05", f",0.0{5 + int(row[0])}") for row in rows(4)]
    problem = problem_from_profile(
        write(tmp_path, lines),
        schedule="interleaved-1f1b",
        microbatches=4,
        wait_power_w=80.0,
        virtual_stages_per_rank=2,
    )
    assert len(problem.dag.ranks) == 2
    flat = [(r, i) for r, order in enumerate(problem.dag.ranks) for i in order]
    for (rank, instruction), kind in zip(flat, problem.kind.tolist(), strict=True):
        assert problem.sets[kind].name == f"{instruction.kind} of stage {2 * instruction.chunk + rank}"
    with pytest.raises(InputError, match="do not divide"):
        problem_from_profile(
            write(tmp_path, rows(3)),
            schedule="interleaved-1f1b",
            microbatches=4,
            wait_power_w=80.0,
            virtual_stages_per_rank=2,
        )


def test_stages_may_repeat_and_transfers_take_time(tmp_path):
    path = write(tmp_path, rows(2))
    alike = problem_from_profile(path, microbatches=1, wait_power_w=0.0, stages=[0, 1, 1])
    slow = problem_from_profile(path, microbatches=1, wait_power_w=0.0, stages=[0, 1, 1], transfer_s=0.01)
    assert exact_front(slow).points[0].time_s - exact_front(alike).points[0].time_s == pytest.approx(0.04)


def test_a_negative_waiting_power_is_refused(tmp_path):
    with pytest.raises(InputError, match="waiting power"):
        problem_from_profile(write(tmp_path, rows()), microbatches=1, wait_power_w=-1.0)
