"""Graphs of instructions: of schedules and of users, with circles refused."""

import json

import numpy as np
import pytest

from joulecast.errors import InputError
from joulecast.plan.exact.dag import dag_of_schedule, make_dag
from joulecast.plan.exact.dag_file import load_dag
from joulecast.simulator.schedules import Instruction, build_schedule

F, B = Instruction("forward"), Instruction("backward")


def graph(instructions, dependencies=()):
    return {
        "instructions": [{"id": i, "stage": s, "instruction": k} for i, s, k in instructions],
        "dependencies": [{"from": a, "to": b, **({"latency_s": x[0]} if x else {})} for a, b, *x in dependencies],
    }


TWO_STAGES = [("f0", 0, "forward"), ("b0", 0, "backward"), ("f1", 1, "forward"), ("b1", 1, "backward")]


def write(tmp_path, value):
    path = tmp_path / "dag.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value, indent=1))
    return path


def refused(path):
    with pytest.raises(InputError) as caught:
        load_dag(path)
    assert str(path) in str(caught.value.file)
    return caught.value


@pytest.mark.parametrize(
    ("name", "virtual"), [("gpipe", 1), ("1f1b", 1), ("zb-h1", 1), ("interleaved-1f1b", 2), ("zb-v", 2)]
)
def test_schedules_keep_their_order_and_dependencies(name, virtual):
    schedule = build_schedule(name, 4, 8, virtual_stages_per_rank=virtual, tail=())
    dag = dag_of_schedule(schedule, 0.25)
    place = np.argsort(dag.order)
    assert (place[dag.source] < place[dag.target]).all()
    chain = dag.instructions - 4
    assert (dag.latency_s[:chain] == 0.0).all()
    assert (dag.source[chain:] == schedule.edges.source).all()
    turns = schedule.edges.source_rank == schedule.edges.target_rank  # where a folded pipeline comes back
    assert (dag.latency_s[chain:][turns] == 0.0).all()
    assert (dag.latency_s[chain:][~turns] == 0.25).all()
    assert turns.any() == (name == "zb-v")
    assert [len(order) for order in dag.ranks] == [len(order) for order in schedule.ranks]


def test_a_users_graph(tmp_path):
    dag = load_dag(write(tmp_path, graph(TWO_STAGES, [("f0", "f1", 0.001), ("b1", "b0")])))
    assert dag.names == ("f0", "b0", "f1", "b1")
    assert [i.kind for i in dag.ranks[1]] == ["forward", "backward"]
    pairs = {(dag.names[u], dag.names[v]): w for u, v, w in zip(dag.source, dag.target, dag.latency_s, strict=True)}
    assert pairs == {("f0", "b0"): 0.0, ("f1", "b1"): 0.0, ("f0", "f1"): 0.001, ("b1", "b0"): 0.0}
    assert [dag.names[i] for i in dag.order] == ["f0", "f1", "b1", "b0"]


def test_a_circle_is_named_with_file_and_line(tmp_path):
    path = write(tmp_path, graph(TWO_STAGES, [("f0", "f1"), ("b0", "f1"), ("f1", "b0"), ("f0", "b0")]))
    error = refused(path)
    assert "wait for each other in a circle: " in str(error)
    assert "f1 -> b0 -> f1" in str(error) or "b0 -> f1 -> b0" in str(error)
    assert '"from": "b0"' in path.read_text().splitlines()[error.line] or (
        '"from": "f1"' in path.read_text().splitlines()[error.line]
    )


def test_a_circle_through_the_order_of_a_stage(tmp_path):
    error = refused(write(tmp_path, graph(TWO_STAGES, [("b0", "f1"), ("b1", "f0")])))
    assert "in a circle" in str(error)
    with pytest.raises(InputError, match="forward of stage 0 -> forward of stage 0"):
        make_dag([[F]], [0], [0])


def test_an_unknown_name(tmp_path):
    path = write(tmp_path, graph(TWO_STAGES, [("f0", "f2")]))
    error = refused(path)
    assert "unknown instruction 'f2'" in str(error)
    assert "Did you mean 'f" in str(error)


@pytest.mark.parametrize(
    ("change", "says", "near"),
    [
        ({"stage": -1}, "greater than or equal to 0", '"id": "b0"'),
        ({"stage": "0"}, "integer", '"id": "b0"'),
        ({"id": ""}, "at least 1 character", '"id": ""'),
        ({"clock": 3}, "not permitted", '"id": "b0"'),
        ({"id": "f0"}, "two instructions are called 'f0'", '"id": "f0"'),
    ],
)
def test_broken_entries_have_a_line(tmp_path, change, says, near):
    tables = graph(TWO_STAGES)
    tables["instructions"][1] |= change
    path = write(tmp_path, tables)
    error = refused(path)
    assert says in str(error)
    lines = path.read_text().splitlines()
    assert near in lines[error.line]
    assert lines[error.line - 1].strip() == "{"


def test_other_broken_files(tmp_path):
    assert refused(write(tmp_path, '{\n"instructions": [,]}')).line == 2
    assert "no such file" in str(refused(tmp_path / "none.json"))
    assert refused(write(tmp_path, {"instructions": []}))
    assert refused(write(tmp_path, [1, 2]))
    for stage in (2, 999_999_999):
        error = refused(write(tmp_path, graph([("a", 0, "f"), ("b", stage, "f")])))
        assert "stage 1 has no instruction" in str(error)
    tables = graph(TWO_STAGES, [("f0", "f1", -0.5)])
    assert "greater than or equal to 0" in str(refused(write(tmp_path, tables)))


def test_latencies_must_be_times():
    for latency in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="latency"):
            make_dag([[F], [B]], [0], [1], latency)
    with pytest.raises(InputError, match="without instructions"):
        make_dag([[]])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '{"instruction": []}',
            r"dag.json \[instructions\]: this key is missing. Add it: the file has instructions and",
        ),
        (
            '{"instructions": [{"id": "a", "stage": 0}]}',
            r"dag.json:1 \[instructions.0.instruction\]: this key is missing",
        ),
        ("[]", "dag.json: it is no object. Give one with instructions and dependencies"),
        ('{"instructions": []}', r"\[instructions\]: list should have at least 1 item"),
    ],
)
def test_what_a_graph_lacks_is_told_with_its_key(tmp_path, text, said):
    file = tmp_path / "dag.json"
    file.write_text(text)
    with pytest.raises(InputError, match=said):
        load_dag(file)
