"""Keys about a feature that only some plans of a space have stand beside plans without it, which do without them."""

import pytest

import joulecast as jc
from joulecast.plan.sweep.plan_text import done_without, plan_text
from joulecast.plan.sweep.space import space_from_dict
from joulecast.simulator.plan_file.plan import load_plan

ALL = ["none", "selective", "full"]
LISTS = [["layernorm"], ["layernorm", "mlp"]]


def kinds(found):
    """Recomputation of every plan, and what is recomputed selectively."""
    return [(r["schedule.recompute"], r.get("schedule.recompute_modules")) for r in found.rows]


def alone(tables, recompute, **keys):
    """Time of the same plan where the space offers nothing else."""
    (row,) = jc.sweep(tables(schedule__recompute=recompute, **keys)).rows
    return row["time_s"]


def test_modules_that_are_stated_once_are_left_out_of_other_plans(tables):
    """They were refused, so that a space lost its plans without recomputation, which are the fastest."""
    found = jc.sweep(tables(schedule__recompute=ALL, schedule__recompute_modules=["layernorm", "mlp"]))
    times = {row["schedule.recompute"]: row["time_s"] for row in found.rows}
    assert found.refused == "" and set(times) == set(ALL)
    assert times["none"] == alone(tables, "none")
    assert times["full"] == alone(tables, "full")
    assert times["selective"] == alone(tables, "selective", schedule__recompute_modules=["layernorm", "mlp"])
    assert times["none"] < times["selective"] < times["full"]


def test_several_lists_of_modules_repeat_no_other_plan(tables):
    found = jc.sweep(tables(schedule__recompute=ALL, schedule__recompute_modules=LISTS))
    assert sorted(kinds(found)) == [
        ("full", LISTS[0]),
        ("none", LISTS[0]),
        ("selective", LISTS[0]),
        ("selective", LISTS[1]),
    ]
    assert found.legal == 4 and found.refused == ""


def test_an_interval_is_that_of_full_recomputation(tables):
    space = {"implementation__framework": "pytorch-eager", "implementation__cuda_graphs": None}
    found = jc.sweep(tables(**space, schedule__recompute=["none", "full"], schedule__recompute_interval=2))
    times = {row["schedule.recompute"]: row["time_s"] for row in found.rows}
    assert times["none"] == alone(tables, "none", **space)
    assert times["full"] == alone(tables, "full", **space, schedule__recompute_interval=2)


@pytest.mark.parametrize("modules", [LISTS, LISTS[1]])
def test_the_file_of_such_a_plan_is_one(tables, tmp_path, modules):
    """Without the keys that it does without."""
    space = space_from_dict(tables(schedule__recompute=ALL, schedule__recompute_modules=modules))
    for row in jc.sweep(tables(schedule__recompute=ALL, schedule__recompute_modules=modules)).rows:
        file = tmp_path / "plan.toml"
        file.write_text(plan_text(space, row), encoding="utf-8")
        plan = load_plan(file)
        assert plan.schedule.recompute == row["schedule.recompute"]
        assert ("recompute_modules" in file.read_text()) == (row["schedule.recompute"] == "selective")


def test_one_recomputation_alone_refuses_what_is_about_another(tables):
    with pytest.raises(jc.InputError, match="these modules are recomputed selectively, and recompute is 'none'"):
        jc.sweep(tables(schedule__recompute="none", schedule__recompute_modules=["layernorm"]))


OFFERED = [
    ("workload__precision", ["bf16", "fp8"], "workload__fp8_recipe", ["delayed", "blockwise"]),
    ("parallelism__fsdp", [False, True], "parallelism__fsdp_shard_size", [2, 4]),
    ("overlap__nanobatches", [1, 2], "overlap__window", [[1, 2], ["qkv", "output"]]),
    ("workload__objective", ["orpo", "dpo"], "workload__reference", ["copy", "precomputed"]),
    ("workload__objective", ["orpo", "distillation"], "workload__teacher", ["llama-3.2-1b", "llama-3.2-3b"]),
    ("implementation__log_probabilities", ["whole", "chunked"], "workload__completion_tokens", [100, 200]),
    ("implementation__optimizer", ["adamw", "muon"], "implementation__muon_num_ns_steps", [4, 6]),
]


@pytest.mark.parametrize(("switch", "settings", "key", "values"), OFFERED)
def test_several_values_of_a_key_beside_plans_without_its_feature(tables, tmp_path, switch, settings, key, values):
    """Plans of bf16 were lost where a space offered two recipes of FP8."""
    common = {"workload__micro_batch_size": 2, "parallelism__tensor_model_parallel_size": 2}
    common |= {"implementation__framework": "pytorch-eager", "implementation__cuda_graphs": None}
    if key == "workload__fp8_recipe":
        common |= {"implementation__framework": "megatron"}
    if switch.startswith(("workload__objective", "implementation")):
        common |= {"implementation__modules": "transformers", "parallelism__tensor_model_parallel_size": 1}
    asked = tables(**common, **{switch: settings, key: values})
    found = jc.sweep(asked)
    off, on = settings
    dotted, place = key.replace("__", "."), switch.replace("__", ".")
    assert [row[place] for row in found.rows].count(off) == 1 and found.refused == ""
    assert [row[dotted] for row in found.rows if row[place] == on] == values
    (without,) = [row for row in found.rows if row[place] == off]
    (plain,) = jc.sweep(tables(**common, **{switch: off})).rows
    assert (without["time_s"], without["energy_j"]) == (plain["time_s"], plain["energy_j"])
    space = space_from_dict(asked)
    assert dotted.partition(".")[2] not in plan_text(space, without)
    assert dotted in done_without(space, without)


def test_weights_that_are_kept_in_fp4_are_not_those_of_plans_in_fp8(tables):
    """A key that is stated once acted on plans that do without it, where their precision reads it too."""
    stated = {"workload__fp4_param_gather": True, "workload__precision": ["fp4", "fp8"]}
    found = {row["workload.precision"]: row for row in jc.sweep(tables(cluster__gpu="b200", **stated)).rows}
    for precision, own in (("fp8", {}), ("fp4", {"workload__fp4_param_gather": True})):
        (alone,) = jc.sweep(tables(cluster__gpu="b200", workload__precision=precision, **own)).rows
        assert [found[precision][k] for k in ("time_s", "memory_bytes")] == [alone["time_s"], alone["memory_bytes"]]


ADAPTERS = {
    "cluster__gpus": 1,
    "parallelism__tensor_model_parallel_size": 1,
    "parallelism__pipeline_model_parallel_size": 1,
    "implementation__framework": "pytorch-eager",
    "implementation__modules": "transformers",
}


def adapters(tables, lora):
    found = jc.sweep(tables(**ADAPTERS, workload__lora=lora))
    return [row["workload.lora"] for row in sorted(found.rows, key=lambda row: row["plan"])]


def test_keys_of_a_table_within_a_table_offer_several_values(tables):
    lists = [["q_proj"], ["q_proj", "v_proj"]]
    found = adapters(tables, {"rank": {"min": 8, "max": 16, "step": 8}, "target_modules": lists})
    assert sorted(found, key=str) == sorted(
        ({"rank": rank, "target_modules": modules} for rank in (8, 16) for modules in lists), key=str
    )
    assert jc.sweep(tables(**ADAPTERS, workload__lora={"rank": 8, "target_modules": lists[1]})).legal == 1


def test_whole_tables_may_stand_in_a_list_too(tables):
    assert adapters(tables, [{"rank": 8}, {"rank": [16, 32]}]) == [{"rank": rank} for rank in (8, 16, 32)]


@pytest.mark.parametrize(
    ("lora", "problem"),
    [
        ({"rank": []}, r"workload\.lora\.rank\]: an empty list offers nothing"),
        ([], r"workload\.lora\]: an empty list offers nothing"),
        ({"rank": ["many"]}, r"workload\.lora\.rank\]: .*many.* whole number"),
        ({"rnak": [8]}, r"workload\.lora\.rnak.*rank"),
        (3, r"workload\.lora\].*table"),
    ],
)
def test_what_such_tables_cannot_offer(tables, lora, problem):
    with pytest.raises(jc.InputError, match=problem):
        adapters(tables, lora)
