"""The best plan of each GPU and number of them that a space offers."""

import pytest

import joulecast as jc
from joulecast.plan.sweep.clusters import MOST_CLUSTERS, cluster_keys, simulate_each
from joulecast.plan.sweep.space import space_from_dict

MICRO = "workload__micro_batch_size"
TWO = {"cluster__gpu": ["h200-sxm", "a100-sxm-80gb"], "cluster__gpus": [8, 16]}


def of(row):
    """What tells the cluster of a row."""
    return row["cluster.gpu"], row["cluster.gpus"]


@pytest.fixture(scope="module")
def found(tables):
    """Two GPUs in two numbers, of which one plan is best."""
    return jc.sweep(tables(**TWO, **{MICRO: [1, 2]}, objective__minimise="energy", objective__top=1))


def test_each_cluster_has_its_best_plan_simulated(found):
    """Though only one plan is asked for."""
    assert [of(row) for row in found.of_each_cluster] == [
        ("h200-sxm", 8),
        ("h200-sxm", 16),
        ("a100-sxm-80gb", 8),
        ("a100-sxm-80gb", 16),
    ]
    assert len(found.best) == 1 and found.best[0] in found.of_each_cluster
    for row in found.of_each_cluster:
        own = [other["energy_j"] for other in found.rows if of(other) == of(row)]
        assert row["source"] == "simulated" and row["energy_j_p05"] < row["energy_j"] < row["energy_j_p95"]
        assert row["energy_j"] < 1.03 * min(own)
    assert found.without == ()
    assert [row["plan"] for row in found.to_dict()["best_of_each_cluster"]] == [
        row["plan"] for row in found.of_each_cluster
    ]


def test_a_cluster_that_keeps_to_no_constraint_is_named(found, tables):
    limit = 1.001 * found.of_each_cluster[0]["peak_job_power_w"]
    space = tables(**TWO, **{MICRO: [1, 2]}, constraints__max_site_power_w=limit, objective__top=1)
    held = jc.sweep(space)
    assert {row["cluster.gpus"] for row in held.of_each_cluster} == {8}
    assert "16 x h200-sxm" in held.without
    assert "no plan was found that fits memory and keeps to the constraints on 16 x h200-sxm" in " ".join(
        held.to_dict()["notes"]
    )
    assert all(row["peak_job_power_w"] <= limit for row in held.of_each_cluster)


def test_a_number_of_gpus_that_no_plan_can_have_is_told_with_its_reason(tables):
    notes = jc.sweep(tables(cluster__gpus=[8, 24], **{MICRO: [1, 2]}, objective__top=1)).to_dict()["notes"]
    assert any(note.startswith("no plan has cluster.gpus = 24: workload.global_batch_size: ") for note in notes)


def test_of_each_cluster_the_next_best_is_simulated_where_the_best_takes_longer_than_is_allowed(tables):
    space = space_from_dict(tables(cluster__gpus=[4, 8], constraints__max_time_s=1.0))
    rows = [
        {"plan": n, "cluster.gpus": gpus, "time_s": time_s, "tokens": 1, "doubt": ""}
        for n, (gpus, time_s) in enumerate([(4, 0.98), (4, 0.985), (4, 0.99), (8, 0.5)])
    ]
    simulated = {**dict(enumerate(rows)), 0: rows[0] | {"time_s": 1.01}}
    asked = []

    def run(plans):
        asked.extend(sorted(plans))
        return {plan: simulated[plan] for plan in plans}

    assert [row["plan"] for row in simulate_each(rows, [], space, run)] == asked == [0, 3, 1]


def test_one_cluster_has_no_table_and_very_many_are_told_by_the_gpu_alone(tables):
    def keys(**changed):
        return cluster_keys(space_from_dict(tables(**changed)))

    many = list(range(1, MOST_CLUSTERS + 1))
    assert keys() == () == keys(cluster__gpus=[*many, 2 * MOST_CLUSTERS])
    assert keys(cluster__gpus=[4, 8]) == ("cluster.gpus",)
    assert keys(**TWO) == ("cluster.gpu", "cluster.gpus")
    assert keys(cluster__gpu=TWO["cluster__gpu"], cluster__gpus=many) == ("cluster.gpu",)


def test_closed_forms_alone_have_the_table_too(tables):
    found = jc.sweep(tables(**TWO, objective__top=0))
    assert len(found.of_each_cluster) == 4
    assert {row["source"] for row in found.of_each_cluster} == {"closed-form"}
