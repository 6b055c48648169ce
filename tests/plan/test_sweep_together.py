"""Clusters whose values go together: ``[[cluster]]``."""

import json

import pytest

import joulecast as jc
from joulecast.errors import InputError
from joulecast.plan.sweep.clusters import cluster_keys, offered
from joulecast.plan.sweep.legal import combinations
from joulecast.plan.sweep.plan_text import plan_text
from joulecast.plan.sweep.plans import Plans
from joulecast.plan.sweep.search import run_sweep
from joulecast.plan.sweep.space import load_space, space_from_dict

H200, A100 = {"gpu": "h200-sxm", "gpus": 8}, {"gpu": "a100-sxm-80gb", "gpus": 16}
MICRO, GPU, GPUS = "workload__micro_batch_size", "cluster.gpu", "cluster.gpus"
TOP = {"objective__top": 1}


@pytest.fixture
def paired(tables):
    """Tables of a space with these clusters."""

    def make(*clusters, **changes):
        return {**tables(**changes), "cluster": list(clusters)}

    return make


def test_only_the_clusters_that_are_stated_are_swept(paired, tables):
    space = space_from_dict(paired(H200, A100, **{MICRO: [1, 2]}))
    assert offered(space, cluster_keys(space)) == [("h200-sxm", 8), ("a100-sxm-80gb", 16)]
    found = combinations(space, Plans(space))
    assert found.offered == 4
    assert {(v[GPU], v[GPUS]) for v in map(found.of, range(len(found)))} == {("h200-sxm", 8), ("a100-sxm-80gb", 16)}
    both = jc.sweep(paired(H200, A100, **{MICRO: [1, 2]}, **TOP))
    assert len(both.of_each_cluster) == 2
    times = {(row[GPU], row["workload.micro_batch_size"]): row["time_s"] for row in both.rows}
    for cluster in (H200, A100):
        alone = {f"cluster__{key}": value for key, value in cluster.items()}
        for row in jc.sweep(tables(**alone, **{MICRO: [1, 2]}, **TOP)).rows:
            assert times[cluster["gpu"], row["workload.micro_batch_size"]] == pytest.approx(row["time_s"], rel=1e-12)


def test_a_cluster_may_offer_several_values_and_leave_others_out(paired):
    apart = {**A100, "gpus": [8, 16], "gpus_per_node": 4}
    space = space_from_dict(paired(H200, apart, H200))
    assert space.together.settings == (
        ("h200-sxm", 8, None), ("a100-sxm-80gb", 8, 4), ("a100-sxm-80gb", 16, 4)
    )  # fmt: skip
    rows = jc.sweep(paired(H200, apart)).rows
    assert {row["cluster.gpus_per_node"] for row in rows} == {None, 4}
    text = plan_text(space, next(row for row in rows if row[GPU] == "h200-sxm"))
    assert "gpus_per_node" not in text and "gpus = 8" in text
    assert space_from_dict(paired(H200)).axes == ()
    several = [
        space_from_dict(paired(H200, A100, {**one, "gpus": other["gpus"]}))
        for one, other in ((H200, A100), (A100, H200))
    ]
    assert several[0].axes == several[1].axes and several[0].fingerprint() != several[1].fingerprint()


def test_a_sweep_of_clusters_goes_on_where_it_was_cut(paired, tmp_path):
    space, out = space_from_dict(paired(H200, A100, **{MICRO: [1, 2]}, **TOP)), tmp_path / "plans.jsonl"
    whole = run_sweep(space, out)

    def stop(done, of, what):
        if what != "plans":
            raise KeyboardInterrupt

    again = tmp_path / "again.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run_sweep(space, again, progress=stop)
    notes = []
    assert run_sweep(space, again, resume=True, note=notes.append).rows == whole.rows
    assert "holds 3 plans in closed form" in notes[0]
    other = space_from_dict(paired(H200, {**A100, "gpus": 8}, **{MICRO: [1, 2]}))
    assert other.fingerprint() != space.fingerprint()


def test_one_vendors_framework_on_anothers_card_is_said(paired):
    amd = {"gpu": "mi300x", "gpus": 8}
    run = {"implementation__framework": "megatron", "implementation__generation": "megatron-bridge-2025"}
    said = [jc.sweep(paired(H200, *more, **run)).to_dict()["notes"] for more in ((), (amd,))]
    assert [sum("is NVIDIA's: what AMD has" in note for note in notes) for notes in said] == [0, 1]


def test_bad_clusters_get_one_line(paired, tmp_path):
    for clusters, message in (
        ((H200, {"gpu": "b200"}), r"\[cluster.gpus\]: cluster 2 does not say it. Add it: GPUs in total"),
        ((H200, {**A100, "gpu": "a100-smx"}), r"unknown GPU 'a100-smx'"),
        ((H200, {**A100, "gpuss": 8}), r"\[cluster.gpuss\]: unknown key. Did you mean 'gpus'"),
        ((H200, 8), r"\[cluster\]: not a table"),
        ((H200, {**A100, "gpus": "8"}), r"\[cluster.gpus\]: '8' is not a whole number"),
        ((), r"\[cluster\]: not a table"),
    ):
        with pytest.raises(InputError, match=message):
            jc.sweep(paired(*clusters))
    with pytest.raises(InputError, match=r"\[parallelism\]: not a table"):
        space_from_dict(paired(H200) | {"parallelism": [{}]})
    tables = paired(H200)
    file = tmp_path / "space.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in tables["workload"].items()]
    file.write_text("\n".join(["[workload]", *lines, "[[cluster]]", 'gpu = "b200"', "gpus = 8", "gpuss = 8"]))
    with pytest.raises(InputError, match=rf"{file.name}:{len(lines) + 5} "):
        load_space(file)
    with pytest.raises(InputError, match="'cluster' stands for several tables"):
        load_space(file, ["cluster.gpus=8"])
    with pytest.raises(InputError, match=r"\[cluster\]: several tables of one name. A plan has one \[cluster\]"):
        jc.predict(file)
