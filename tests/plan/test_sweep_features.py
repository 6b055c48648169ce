"""Keys about a feature that only some plans of a space have stand beside plans without it, which do without them."""

import tomllib

import pytest

import joulecast as jc
from joulecast.plan.sweep.plan_text import done_without, plan_text
from joulecast.plan.sweep.space import space_from_dict
from joulecast.simulator.closed_form.forecast import closed_form
from joulecast.simulator.plan_file.plan import load_plan, plan_from_dict

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
    (
        "implementation__framework",
        ["pytorch-eager", "megatron"],
        "implementation__generation",
        ["nemo-2024", "megatron-core"],
    ),
    (
        "implementation__framework",
        ["megatron", "pytorch-eager"],
        "implementation__modules",
        ["torchtitan", "transformers"],
    ),
    ("workload__model", ["llama-3.2-1b", "mixtral-8x7b"], "workload__moe_load_imbalance", [1.1, 1.3]),
    ("workload__model", ["llama-3.2-1b", "mixtral-8x7b"], "workload__moe_expert_capacity_factor", [1.2, 1.4]),
    ("workload__model", ["llama-3.2-1b", "mixtral-8x7b"], "parallelism__expert_model_parallel_size", [2, 4]),
    ("workload__model", ["llama-3.2-1b", "mixtral-8x7b"], "parallelism__expert_tensor_parallel_size", [1, 2]),
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
    if switch == "implementation__framework":
        del common["implementation__modules"], common[switch]
    if switch == "workload__model":
        common |= {"workload__layers": 2, "parallelism__tensor_model_parallel_size": 1}
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


TP, CP = "parallelism__tensor_model_parallel_size", "parallelism__context_parallel_size"
PP = "parallelism__pipeline_model_parallel_size"
MODEL = {"implementation__cuda_graphs": None, PP: 1, TP: 1}


@pytest.mark.parametrize(
    ("key", "values", "size", "of_one"),
    [
        ("parallelism__sequence_parallel", [True, False], TP, False),
        ("implementation__shard_head", [False, True], TP, True),
        ("parallelism__cp_comm_type", ["all_gather", "p2p"], CP, "p2p"),
        ("parallelism__cp_comm_type", ["all_gather", "a2a"], CP, "all_gather"),
        ("parallelism__account_for_embedding_in_pipeline_split", [True, False], PP, False),
        ("parallelism__account_for_loss_in_pipeline_split", [True, False], PP, False),
    ],
)
def test_what_several_gpus_share_makes_no_second_plan_of_one(tables, key, values, size, of_one):
    """A sweep listed, and simulated, the plan of one GPU once for every value."""
    offered = tables(**MODEL | {size: [1, 2], key: values, "workload__layers": [14, 15, 16], "schedule__name": "1f1b"})
    found = jc.sweep(offered)
    rows = [(row[size.replace("__", ".")], row[key.replace("__", ".")]) for row in found.rows]
    assert {value for count, value in rows if count == 2} == set(values) and found.refused == ""
    assert [value for count, value in rows if count == 1] == [of_one] * 3
    (alone,) = jc.sweep(tables(**MODEL | {size: 1, key: values, "schedule__name": "1f1b"})).rows
    assert alone[key.replace("__", ".")] == of_one


@pytest.mark.parametrize(
    ("schedule", "apart"),
    [("1f1b", [(2, False, False), (4, True, True)]), ("zb-v", [(2, True, True), (4, True, True)])],
)
def test_embedding_and_head_take_a_layer_from_either_of_two_stages(tables, schedule, apart):
    """Both counted as blocks they made the plan of two stages a second time."""
    counted = {f"parallelism__account_for_{end}_in_pipeline_split": [True, False] for end in ("embedding", "loss")}
    offered = tables(**MODEL | counted | {PP: [2, 4], "workload__layers": 14, "schedule__name": schedule})
    names = [key.replace("__", ".") for key in (PP, *counted)]
    assert sorted(tuple(row[name] for name in names) for row in jc.sweep(offered).rows) == apart


def test_nodes_of_more_gpus_than_there_are_make_no_second_plan(tables):
    offered = {"cluster__gpus": [8, 16], "cluster__gpus_per_node": [32, 16, 8, 4], TP: 1, PP: 1}
    found = jc.sweep(tables(**offered))
    assert {(row["gpus"], row["cluster.gpus_per_node"]) for row in found.rows} == {
        *((8, per_node) for per_node in (32, 4)),
        *((16, per_node) for per_node in (32, 8, 4)),
    }
    assert len({row["time_s"] for row in found.rows}) == len(found.rows)


def test_nodes_that_go_with_a_number_of_gpus_stand_for_each_other_within_it(tables):
    clusters = [{"gpu": "h200-sxm", "gpus": gpus, "gpus_per_node": 32} for gpus in (8, 16)]
    clusters.append(clusters[0] | {"gpus_per_node": 16})
    rows = jc.sweep(tables(cluster=clusters, **{TP: 1, PP: 1})).rows
    assert sorted((row["gpus"], row["cluster.gpus_per_node"]) for row in rows) == [(8, 32), (16, 32)]


#: Spaces in which a key says how something is done that none of their plans does.
NOWHERE = [
    ({"workload__precision": ["bf16", "fp16"], "workload__fp8_recipe": "delayed"}, "nothing is computed in FP8"),
    ({"workload__precision": ["bf16", "fp16"], "workload__fp8_param_gather": [False, True]}, "nothing is computed in"),
    ({"schedule__recompute": ["none", "full"], "schedule__recompute_modules": ["mlp"]}, "recompute = 'selective'"),
    ({"workload__objective": ["dpo", "kto"], "workload__num_iterations": 2}, "scores no completions before"),
]


@pytest.mark.parametrize(("keys", "problem"), NOWHERE)
def test_a_key_that_does_nothing_in_any_plan_is_refused(tables, keys, problem):
    """It was ignored where the space varied what it is about."""
    run = {"implementation__framework": "pytorch-eager", "implementation__modules": "transformers"}
    usual = MODEL | (run if "workload__objective" in keys else {})
    with pytest.raises(jc.InputError, match=problem) as told:
        jc.sweep(tables(**usual | keys))
    assert told.value.key == [*keys][-1].replace("__", ".") and "leave this key out" in told.value.remedy


#: Keys about what a feature of a feature does, and values of the one that decides about both.
BELOW = [
    ("workload__objective", ["next-token", "grpo"], {"workload__completion_tokens": 1024}),
    ("workload__objective", ["orpo", "dpo"], {"implementation__reference_precision": "bf16"}),
    (
        "implementation__moe_token_dispatcher_type",
        ["alltoall", "flex"],
        {"implementation__moe_flex_dispatcher_backend": "deepep", "implementation__moe_flex_dispatcher_num_sms": 24},
    ),
]


@pytest.mark.parametrize(("switch", "settings", "keys"), BELOW)
def test_what_is_about_a_feature_of_a_feature_is_left_out_too(tables, switch, settings, keys):
    """The plan without was refused, as the key that decides was not the one that varied."""
    run = {"implementation__framework": "pytorch-eager", "implementation__modules": "transformers"}
    experts = {"workload__model": "mixtral-8x7b", "workload__layers": 2, "parallelism__expert_model_parallel_size": 4}
    usual = MODEL | (experts if "moe" in switch else run)
    space = tables(**usual, **keys, **{switch: settings})
    found = jc.sweep(space)
    assert [row[switch.replace("__", ".")] for row in found.rows] == settings and found.refused == ""
    for row, own in zip(found.rows, ({}, keys), strict=True):
        (alone,) = jc.sweep(tables(**usual, **own, **{switch: row[switch.replace("__", ".")]})).rows
        assert [alone[name] for name in ("time_s", "energy_j", "memory_bytes")] == [
            row[name] for name in ("time_s", "energy_j", "memory_bytes")
        ]
        written = plan_from_dict(tomllib.loads(plan_text(space_from_dict(space), row)))
        assert closed_form([written]).time_s == pytest.approx([row["time_s"]], rel=1e-12)


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


TILES = {"linear": ["library", [128, 256, 64], {"m": 128, "n": 128, "k": 64}], "norm1": [{"rows": 4, "warps": 8}]}


def test_tiles_may_be_listed_as_for_a_choice(tables, tmp_path):
    """Sweeps refused the lists that choose takes."""
    space = tables(implementation__tiles=TILES)
    rows = sorted(jc.sweep(space).rows, key=lambda row: row["plan"])
    assert [row["implementation.tiles"] for row in rows] == [
        {"linear": linear, "norm1": TILES["norm1"][0]} for linear in TILES["linear"]
    ]
    assert len({row["time_s"] for row in rows}) == 3
    for row in rows:
        file = tmp_path / "plan.toml"
        file.write_text(plan_text(space_from_dict(space), row), encoding="utf-8")
        assert closed_form([load_plan(file)]).time_s[0] == pytest.approx(row["time_s"], rel=0.01)


@pytest.mark.parametrize(
    ("tiles", "plans", "refused"),
    [
        ({"linear": [128, 256, 64]}, 1, ""),
        ({"linear": [[128, 256, 64], [512, 512, 64]]}, 1, "nearest that fits"),
    ],
)
def test_one_tile_is_one_value_and_one_that_does_not_fit_is_told(tables, tiles, plans, refused):
    found = jc.sweep(tables(implementation__tiles=tiles))
    assert found.legal == plans
    assert refused in " ".join(found.missing)
