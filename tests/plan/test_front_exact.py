"""The exact continuous front against a linear programme solved by HiGHS."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from row_files import csv_rows
from scipy.optimize import linprog
from scipy.sparse import coo_array

from joulecast.plan.exact.dag import dag_of_schedule, make_dag
from joulecast.plan.exact.exact_front import exact_front
from joulecast.plan.exact.parametric_flow import time_cost_curve
from joulecast.plan.exact.problem import make_problem
from joulecast.plan.exact.rounding import deadlines_s, spans_s
from joulecast.plan.knobs.options import TIME_QUANTUM_S, Option, quanta
from joulecast.simulator.schedules import Instruction, build_schedule


def least_cost_j(problem, time_quanta):
    """Least Σ (energy - P_wait · time) within a time, over all mixtures of options; times rounded up to a quantum.

    Variables: start of each instruction, and the share of each of its options; independent of hulls and slopes.
    """
    dag, n = problem.dag, problem.dag.instructions
    sets = [problem.sets[k] for k in problem.kind]
    first = np.cumsum([0, *(len(s.options) for s in sets)])
    shares = np.arange(first[-1])
    owner = np.repeat(np.arange(n), np.diff(first))
    time = np.concatenate([np.ceil(np.round(s.time_s * 1e6, 6)) for s in sets])
    cost = np.concatenate([s.cost_j for s in sets])
    rows, columns, values, limit = [], [], [], []
    latency = quanta(dag.latency_s)
    ends = [(u, v, -float(w)) for u, v, w in zip(dag.source, dag.target, latency, strict=True)]
    ends += [(u, None, float(time_quanta)) for u in range(n)]
    for row, (u, v, bound) in enumerate(ends):
        mine = shares[first[u] : first[u + 1]]
        rows += [row] * (len(mine) + 1)
        columns += [u, *(n + mine)]
        values += [1.0, *time[mine]]
        if v is not None:
            rows.append(row)
            columns.append(v)
            values.append(-1.0)
        limit.append(bound)
    scale = 1e-3
    upper = coo_array((np.array(values) * scale, (rows, columns)), shape=(len(ends), n + len(shares))).tocsr()
    one = coo_array((np.ones(len(shares)), (owner, n + shares)), shape=(n, n + len(shares))).tocsr()
    found = linprog(
        np.concatenate([np.zeros(n), cost]), upper, np.array(limit) * scale, one, np.ones(n), (0, None), "highs"
    )
    assert found.status == 0, found.message
    return found.fun


def compare(problem, times, curve):
    """Largest distance of the curve's energies from the linear programme's, relative."""
    wait = problem.total_wait_power_w
    worst = 0.0
    for time in times:
        mine = float(np.interp(time, curve.time[::-1], curve.cost_j[::-1]))
        energy = least_cost_j(problem, time) + wait * time * 1e-6
        worst = max(worst, abs(mine + wait * time * 1e-6 - energy) / abs(energy))
    return worst


def curve_of(problem):
    return time_cost_curve(problem.dag, problem.sets, problem.kind)


@st.composite
def problems(draw):
    """Random graphs on a few ranks with random options, also such that rise, repeat or lie on one line."""
    ranks = draw(st.integers(1, 4))
    lengths = draw(st.lists(st.integers(1, 5), min_size=ranks, max_size=ranks))
    n = sum(lengths)
    kinds = draw(st.integers(1, 4))
    pairs = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=12))
    rank_of = np.repeat(np.arange(ranks), lengths)
    place = np.concatenate([np.arange(length) for length in lengths])
    key = list(zip(place.tolist(), rank_of.tolist(), strict=True))
    edges = [(u, v) for u, v in pairs if key[u] < key[v]]  # by place, then by rank: never a circle
    latency = draw(st.lists(st.integers(0, 3000), min_size=len(edges), max_size=len(edges)))
    option = st.tuples(st.integers(1, 40), st.integers(1, 60))
    table = [draw(st.lists(option, min_size=1, max_size=7)) for _ in range(kinds)]
    scale = draw(st.sampled_from([1e-3, 1.2345678e-3]))
    options = [[Option(t * scale, e * 0.37, float(i)) for i, (t, e) in enumerate(row)] for row in table]
    dag = make_dag(
        [[Instruction("forward")] * length for length in lengths],
        [u for u, _ in edges],
        [v for _, v in edges],
        [x * 1e-6 for x in latency],
    )
    kind = draw(st.lists(st.integers(0, kinds - 1), min_size=n, max_size=n))
    return make_problem(dag, options, kind, draw(st.sampled_from([0.0, 5.0, 40.0])))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(problems(), st.floats(0.0, 1.0))
def test_random_graphs_equal_the_linear_programme(problem, share):
    curve = curve_of(problem)
    slow, fast = int(curve.time[0]), int(curve.time[-1])
    breakpoints = curve.time[:: max(1, len(curve.time) // 4)].tolist()
    assert compare(problem, {fast, slow, round(fast + share * (slow - fast)), *breakpoints}, curve) < 1e-9
    assert (np.diff(curve.time) < 0).all()
    assert (np.diff(curve.slope_w, prepend=0.0) > 0).all(), "slopes rise strictly: the front is convex"


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(problems())
def test_nothing_is_faster_than_the_curve_says(problem):
    curve = curve_of(problem)
    end = [0] * problem.dag.instructions
    needs = [[] for _ in end]
    latency = quanta(problem.dag.latency_s).tolist()
    for u, v, w in zip(problem.dag.source.tolist(), problem.dag.target.tolist(), latency, strict=True):
        needs[v].append((u, w))
    for v in problem.dag.order.tolist():
        end[v] = max([end[u] + w for u, w in needs[v]], default=0) + int(problem.sets[problem.kind[v]].quanta[0])
    assert curve.time[-1] == max(end)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(problems())
def test_spans_are_feasible_and_cost_what_the_curve_says(problem):
    curve = curve_of(problem)
    dag = problem.dag
    assert (curve.start >= 0).all()
    assert (curve.end <= curve.time[:, None]).all()
    latency = quanta(dag.latency_s)
    assert (curve.start[:, dag.target] >= curve.end[:, dag.source] + latency).all()
    total = np.zeros(len(curve.time))
    for v, k in enumerate(problem.kind.tolist()):
        hull = problem.sets[k].hull
        time, cost = problem.sets[k].quanta[hull], problem.sets[k].cost_j[hull]
        span = curve.end[:, v] - curve.start[:, v]
        assert (span >= time[0]).all()
        total += np.interp(span, time, cost)
    assert total == pytest.approx(curve.cost_j, rel=1e-9, abs=1e-9)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(problems(), st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5))
def test_spans_between_breakpoints_are_feasible_too(problem, shares):
    """Plans are rounded from them: a wrong mean makes worse plans, which nothing else would tell."""
    curve, dag = curve_of(problem), problem.dag
    times = curve.time[-1] + np.array(shares) * (curve.time[0] - curve.time[-1])
    place = np.argsort(dag.order)
    end, span = (of(problem, curve, times)[:, place] / TIME_QUANTUM_S for of in (deadlines_s, spans_s))
    begin = end - span
    assert (begin >= -1e-6).all()
    assert (end <= times[:, None] + 1e-6).all()
    assert (span >= [problem.sets[k].quanta[0] - 1e-6 for k in problem.kind]).all()
    assert (begin[:, dag.target] >= end[:, dag.source] + quanta(dag.latency_s) - 1e-6).all()


def profile_problem(path, schedule, stages, microbatches, wait_w, transfer_s=0.0, virtual=1):
    rows = {}
    for row in csv_rows(path):
        option = Option(float(row["time"]), float(row["energy"]), float(row["frequency"]))
        rows.setdefault((int(row["stage"]), row["instruction"]), []).append(option)
    ranks = len(stages) // virtual
    plan = build_schedule(schedule, ranks, microbatches, virtual_stages_per_rank=virtual, tail=())
    dag = dag_of_schedule(plan, transfer_s)
    keys, kind = {}, []
    for rank, order in enumerate(dag.ranks):
        for i in order:
            name = "forward" if i.kind == "forward" else "backward"
            kind.append(keys.setdefault((stages[i.chunk * ranks + rank], name, rank), len(keys)))
    return make_problem(dag, [rows[stage, name] for stage, name, _ in keys], kind, wait_w)


A100, A40 = "stage_profile_gpt3-175b_a100-sxm.csv", "stage_profile_bloom_a40.csv"


@pytest.mark.parametrize(
    ("name", "schedule", "stages", "microbatches", "wait_w", "transfer_s", "virtual"),
    [
        (A100, "1f1b", (0, 1, 2, 7), 6, 83.64, 0.0, 1),
        (A40, "1f1b", (0, 3, 7), 6, 70.4, 0.0012, 1),
        (A100, "gpipe", (0, 7, 7), 5, 83.64, 0.0, 1),
        (A100, "zb-h1", (0, 1, 7), 5, 83.64, 0.0, 1),
        (A40, "interleaved-1f1b", (0, 1, 2, 7), 4, 70.4, 0.0, 2),
    ],
)
def test_measured_profiles_equal_the_linear_programme(
    data, name, schedule, stages, microbatches, wait_w, transfer_s, virtual
):
    path = data / "perseus_sosp24" / name
    problem = profile_problem(path, schedule, stages, microbatches, wait_w, transfer_s, virtual)
    curve = curve_of(problem)
    between = np.linspace(curve.time[-1], curve.time[0], 7).round()
    assert compare(problem, {*between.tolist(), *curve.time[:: len(curve.time) // 4].tolist()}, curve) < 1e-9


def test_breakpoints_of_the_175b_pipeline(data):
    path = data / "perseus_sosp24" / A100
    curve = curve_of(profile_problem(path, "1f1b", tuple(range(8)), 32, 83.64))
    assert len(curve.time) == 621
    assert curve.time_s[[0, -1]] == pytest.approx([8.819901, 5.894388], abs=1e-9)


def test_a_single_option_everywhere_is_one_point():
    dag = make_dag([[Instruction("forward")] * 3])
    curve = curve_of(make_problem(dag, [[Option(0.01, 3.0, 1000.0)]], [0, 0, 0], 10.0))
    assert curve.time.tolist() == [30_000]
    assert curve.cost_j.tolist() == pytest.approx([9.0 - 0.3])


def test_more_breakpoints_than_the_inner_loop_writes_at_once(monkeypatch, data):
    path = data / "perseus_sosp24" / A100
    problem = profile_problem(path, "1f1b", (0, 1, 2, 7), 8, 83.64)
    whole = curve_of(problem)
    monkeypatch.setattr("joulecast.plan.exact.parametric_flow._CHUNK", 7)
    parts = curve_of(problem)
    assert parts.time.tolist() == whole.time.tolist()
    assert parts.cost_j.tolist() == whole.cost_j.tolist()
    assert (parts.end == whole.end).all()


def test_spans_of_large_graphs_are_thinned(monkeypatch, data):
    problem = profile_problem(data / "perseus_sosp24" / A100, "1f1b", (0, 1, 2, 7), 8, 83.64)
    whole = curve_of(problem)
    assert whole.kept.tolist() == list(range(250))
    monkeypatch.setattr("joulecast.plan.exact.parametric_flow._CHUNK", 60)
    monkeypatch.setattr("joulecast.plan.exact.parametric_flow._SPAN_BYTES", 8 * 130 * 40)
    few = curve_of(problem)
    assert few.cost_j.tolist() == whole.cost_j.tolist()
    assert 20 <= len(few.kept) <= 41
    assert few.kept[[0, -1]].tolist() == [0, 249]
    assert (few.end == whole.end[few.kept]).all()
    assert (few.start == whole.start[few.kept]).all()
    assert np.mean([p.gap for p in exact_front(problem).points]) < 0.003
