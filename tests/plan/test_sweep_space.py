"""SPACE.toml: what may stand in it, which combinations are legal, and what bad input gets."""

import itertools

import pytest

import joulecast as jc
from joulecast.errors import InputError
from joulecast.plan.knobs.ranges import range_values
from joulecast.plan.sweep.legal import combinations
from joulecast.plan.sweep.plans import Plans
from joulecast.plan.sweep.search import run_sweep
from joulecast.plan.sweep.space import load_space, space_from_dict
from joulecast.plan.sweep.values import NUMBERS, WORDS, table_values
from joulecast.simulator.plan_file.plan import plan_from_dict
from joulecast.simulator.plan_file.schema import TABLES
from joulecast.simulator.plan_file.source import Source
from joulecast.simulator.schedules import schedule_names

TP, PP = "parallelism__tensor_model_parallel_size", "parallelism__pipeline_model_parallel_size"
VP, MICRO = "parallelism__virtual_pipeline_model_parallel_size", "workload__micro_batch_size"


def legal(space):
    """Combinations that pass, as sets of items."""
    plans = Plans(space)
    found = combinations(space, plans)
    passed = []
    for number in range(len(found)):
        try:
            plan = plans.plan(found.of(number))
        except InputError:
            continue
        passed.append((found.of(number), plan))
    return passed, found


def once(found):
    """On one stage 1f1b, interleaved or none are one plan, the schedule offered first, and ends that count are none.

    On two stages both ends that count are none, too.
    """
    kept = {}
    for values, plan in found:
        ends = [value for key, value in values.items() if "account_for" in key]
        if (plan.pp == 1 and any(ends)) or (len(plan.parallelism.stage_layers) == 2 and len(ends) == 2 and all(ends)):
            continue
        alike = plan.pp == 1 and plan.schedule.name in ("none", "1f1b", "interleaved-1f1b")
        others = {k: v for k, v in values.items() if k != "schedule.name"}
        kept.setdefault(repr((others, None if alike else plan.schedule.name)), (values, plan))
    return list(kept.values())


@pytest.mark.parametrize(
    "changes",
    [
        {TP: [1, 4], PP: "all", VP: "all", MICRO: [1, 4], "schedule__name": ["1f1b", "interleaved-1f1b"]},
        {TP: "all", MICRO: "all", "workload__global_batch_size": [12]},
        {TP: [1, 2, 3, 8], PP: [1, 2, 4, 5], "schedule__name": ["none", "gpipe", "Interleaved", "zb_h1"], VP: [1, 2]},
        {TP: [1, 2, 4], PP: {"min": 1, "max": 4}, "cluster__gpus": [4, 6, 8, 16], MICRO: [1, 2, 5]},
        {TP: [1, 4], "parallelism__context_parallel_size": [1, 2, 4], PP: [1, 2], "workload__sequence_length": [2048]},
        {TP: [1, 2], PP: [2], "parallelism__stage_layers": [[9, 7], [8, 8], [8, 9]], VP: [1, 2]},
        {PP: "all", VP: [1, 2, 6], "parallelism__stage_layers": ["balanced"], "workload__layers": [5, 8]},
        {
            PP: "all",
            VP: [1, 2, 3],
            "workload__layers": [8, 14, 15],
            "parallelism__account_for_embedding_in_pipeline_split": [True, False],
            "parallelism__account_for_loss_in_pipeline_split": [True, False],
            "schedule__name": ["1f1b", "interleaved-1f1b"],
        },
        {PP: [1, 2, 3, 4], MICRO: [1, 2, 3], "cluster__gpus": [12], "schedule__name": list(schedule_names())}
        | {"workload__layers": [12, 16], "workload__global_batch_size": [36, 48]},
        {PP: [1, 2, 3, 4], VP: [2], "cluster__gpus": [12], "schedule__name": ["zb-v", "dualpipe-v", "interleaved-1f1b"]}
        | {"workload__layers": [12, 16], "workload__global_batch_size": [36, 48]},
        {PP: [1, 2], "parallelism__fsdp": [True, False], "parallelism__distributed_optimizer": [True, False]},
        {
            MICRO: [1, 2],
            "implementation__framework": ["megatron"],
            "schedule__recompute": ["selective", "full"],
            "schedule__recompute_modules": [["core_attn"], ["mlp"]],
        },
        {TP: [1, 2], "workload__model": ["llama-3.2-1b", "llama-3.2-3b"], "workload__global_batch_size": [12, 16]},
        {TP: [1, 16], "cluster__gpus": [16], "cluster__gpus_per_node": [8, 16], "power__power_limit_w": [1, 500, 700]},
    ],
)
def test_all_that_is_legal_and_nothing_else(tables, changes):
    space = space_from_dict(tables(**changes))
    passed, found = legal(space)
    expected = []
    for values in itertools.product(*found.values):
        combination = dict(zip(found.keys, values, strict=True))
        try:
            expected.append((combination, plan_from_dict(space.with_values(combination))))
        except InputError:
            continue
    assert expected
    expected = once(expected)
    assert sorted(passed, key=repr) == sorted(expected, key=repr)
    assert found.offered == len(list(itertools.product(*found.values)))


def test_all_is_offered_as_every_size_that_is_tried(tables):
    _, found = legal(space_from_dict(tables(**{TP: "all", MICRO: "all", "workload__global_batch_size": 12})))
    sizes = dict(zip(found.keys, found.values, strict=True))
    assert sizes["workload.micro_batch_size"] == (1, 2, 3, 4, 6, 12)
    assert found.offered == 6 * len(sizes["parallelism.tensor_model_parallel_size"]) > 6 * 8


def test_a_plan_of_one_stage_is_offered_once(tables):
    names = ["gpipe", "interleaved-1f1b", "1f1b", "none"]
    passed, _ = legal(space_from_dict(tables(**{PP: [1, 2], "schedule__name": names})))
    of = {stages: [v["schedule.name"] for v, plan in passed if plan.pp == stages] for stages in (1, 2)}
    assert of[1] == ["gpipe", "interleaved-1f1b"] and "1f1b" in of[2]


def test_both_ends_of_a_range_belong_to_it():
    ranges = ({"min": 4, "max": 4}, {"min": 0.1, "max": 0.3, "step": 0.1}, {"min": 1, "max": 4, "step": 2})
    found = [range_values(value, "key", Source()) for value in ranges]
    assert found == [(4,), pytest.approx((0.1, 0.2, 0.3)), (1, 3)]
    with pytest.raises(InputError, match="is no range"):
        range_values({"min": False, "max": 1}, "key", Source())


def test_ranges_lists_and_single_values(tables):
    space = space_from_dict(tables(**{TP: [2], "power__power_limit_w": {"min": 400, "max": 700, "step": 150}}))
    assert dict(space.axes) == {"power.power_limit_w": (400, 550, 700)}
    assert space.value("parallelism.tensor_model_parallel_size") == 2
    clocks = {"forward": 1410, "backward": [1200, 1305]}
    space = space_from_dict(tables(power__clock_mhz=[1980, clocks]))
    assert dict(space.axes)["power.clock_mhz"] == (1980, clocks)
    space = space_from_dict(tables(power__clock_mhz=clocks))
    assert not space.axes and space.value("power.clock_mhz") == clocks
    window = space_from_dict(tables(overlap__window=["up", "down"], parallelism__stage_layers=[8, 8]))
    assert not window.axes


def test_a_list_that_one_plan_may_have_is_of_one_plan():
    """Of one power limit for each rank alone it is not: a list of these is several limits of all."""
    lists = {
        f"{table}.{name}"
        for table, model in TABLES.items()
        for name, field in model.model_fields.items()
        if "list[" in str(field.annotation)
    }
    assert lists - {"power.power_limit_w"} <= {*WORDS, *NUMBERS}
    found = table_values("implementation", {"liger_kernel": ["rms_norm", "rope"]}, Source())
    assert found == {"implementation.liger_kernel": (["rms_norm", "rope"],)}
    several = table_values("implementation", {"liger_kernel": [["rms_norm", "rope"], True]}, Source())
    assert several == {"implementation.liger_kernel": (["rms_norm", "rope"], True)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parallelism__tensor_model_paralel_size": [1]}, r"tensor_model_paralel_size\]: unknown key.*Did you mean"),
        ({"clustr__gpus": 8}, r"\[clustr\]: unknown key.*Did you mean 'cluster'"),
        ({"constraints__max_time": 3.0}, r"\[constraints.max_time\]: unknown key.*max_time_s"),
        ({"objective__minimise": "speed"}, "'speed' cannot be minimised.*time, energy, money, carbon"),
        ({"objective__minimise": ["time", "time"]}, "names one twice. Name each once"),
        ({"objective__minimise": []}, "0 objectives. Name one, two or three"),
        ({"objective__minimise": ["time", "energy", "money", "carbon"]}, "4 objectives"),
        ({TP: []}, "an empty list offers nothing"),
        ({"schedule__name": ["1f1b", 5]}, r"schedule.name\]: 5 is not a text in quotes"),
        ({TP: [1, "two"]}, r"tensor_model_parallel_size\]: 'two' is not a whole number"),
        ({TP: [0, 1]}, "Use a value above 0"),
        ({PP: {"min": 4, "max": 1}}, r"{min = 4, max = 1} is no range\. Write.*the minimum not above the maximum"),
        ({PP: {"min": 4}}, "{min = 4} is no range"),
        ({PP: {"min": 4, "maxx": 8}}, "maxx = 8} is no range"),
        ({"power__power_limit_w": {"min": "400 W", "max": 700}}, 'min = "400 W", max = 700} is no range'),
        ({"cluster__gpus": [8, 10**12]}, r"\[cluster.gpus\]: 1000000000000.*Use a value of at most 10000000"),
        (
            {"workload__global_batch_size": 10**13, "workload__micro_batch_size": "all"},
            "1e.13 samples. Use at most 1e.12",
        ),
        ({"workload__global_batch_size": 2**30}, r"134217728 micro-batches in one iteration.* Use at most 100000"),
        ({PP: {"min": 1, "max": 4, "step": 0}}, "is no range"),
        ({"power__power_limit_w": {"min": 1, "max": 1e9, "step": 1}}, "at most 100000"),
        ({"schedule__name": "all"}, "unknown schedule 'all'"),
        ({"schedule__name": ["1f1b", "ifib"]}, "unknown schedule 'ifib'.*1f1b"),
        ({"workload__global_batch_size": None}, "this key is missing"),
        ({"workload__model": ["llama-3.2-1b", "lama"]}, "unknown model 'lama'"),
        ({"cluster__gpu": "h200-smx"}, "unknown GPU 'h200-smx'.*h200-sxm"),
        ({TP: [3, 5]}, "none of 2 combinations is a legal plan"),
        ({"overlap__comm_ctas": [200, 300]}, "first of them: overlap.comm_ctas: 200 thread blocks.*nearest is 132"),
        ({"objective__top": -1}, "Use a value of at least 0"),
        ({"site__power_limit_w": [5000, 9000]}, r"\[site.power_limit_w\].*same limit.*constraints.max_site_power_w"),
        ({"site__nodes_per_rack": 4, "site__rack_power_limit_w": {"min": 1e4, "max": 2e4, "step": 1e4}}, "same limit"),
    ],
)
def test_bad_input(tables, changes, message):
    with pytest.raises(InputError, match=message) as caught:
        jc.sweep(tables(**changes))
    assert "\n" not in str(caught.value)


def test_all_of_large_numbers_is_found_at_once(tables):
    """Sizes that divide are looked for, not tried one by one; more tensor-parallel ranks than heads none has."""
    tp, batch = "parallelism.tensor_model_parallel_size", 2**20 * 9 * 25 * 49
    space = space_from_dict(
        tables(
            cluster__gpus=10**6,
            cluster__gpus_per_node=10**6,
            parallelism__tensor_model_parallel_size="all",
            workload__micro_batch_size="all",
            workload__global_batch_size=batch,
        )
    )
    found = combinations(space, Plans(space))
    values = dict(zip(found.keys, found.values, strict=True))
    assert (
        values["workload.micro_batch_size"][:6] == (1, 2, 3, 4, 5, 6)
        and values["workload.micro_batch_size"][-1] == batch
    )
    assert len(values["workload.micro_batch_size"]) == 21 * 3 * 3 * 3
    assert values[tp] == tuple(range(1, 73))


def test_every_example_has_legal_plans(examples):
    files = sorted(examples.glob("sweep-*.toml"))
    assert files
    for file in files:
        space = load_space(file)
        assert len(combinations(space, Plans(space))) > 100


def test_errors_name_file_and_line(tmp_path):
    file = tmp_path / "space.toml"
    file.write_text('[workload]\nmodel = "llama-3.2-1b"\nsequence_lenth = 2048\n')
    with pytest.raises(InputError, match=r"space.toml:3 \[workload.sequence_lenth\]"):
        load_space(file)
    with pytest.raises(InputError, match="no such file"):
        load_space(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("key", "name"),
    [("workload.model", "lama"), ("cluster.node", "hgx"), ("network.name", "ndr"), ("site.name", "here")],
)
def test_a_wrong_name_that_the_command_line_gave_is_not_looked_for_in_the_file(tmp_path, key, name):
    file = tmp_path / "space.toml"
    file.write_text(
        '[workload]\nmodel = "llama-3.2-1b"\nsequence_length = 2048\nglobal_batch_size = 8\n'
        '[cluster]\ngpu = "h200-sxm"\ngpus = [8, 16]\n[site]\npue = 1.2\n'
    )
    with pytest.raises(InputError, match=rf"space.toml \(--set\) \[{key}\]: unknown .* '{name}'"):
        run_sweep(load_space(file, [f"{key}={name}"]))


def test_the_fingerprint_tells_spaces_apart_but_not_their_goals(tables):
    one, other = tables(**{TP: [1, 2]}), tables(**{TP: [1, 4]})
    assert space_from_dict(one).fingerprint() != space_from_dict(other).fingerprint()
    assert (
        space_from_dict(one | {"objective": {"minimise": "energy"}}).fingerprint() == space_from_dict(one).fingerprint()
    )


def test_plans_keep_the_lower_of_a_sites_power_limit_and_a_constraint(tables):
    site = {"site__power_limit_w": 5000, "site__nodes_per_rack": 4, "site__rack_power_limit_w": 30000.0}
    found = space_from_dict(tables(**site, constraints__max_rack_power_w=20000.0)).constraints
    assert found.max_site_power_w == 5000.0
    assert found.max_rack_power_w == 20000.0
    assert found.max_node_power_w is None
    assert space_from_dict(tables(**site, constraints__max_site_power_w=9000.0)).constraints.max_site_power_w == 5000.0


def test_a_site_limit_that_no_plan_meets_is_named(tables):
    with pytest.raises(InputError, match=r"\[site.power_limit_w\].*max_site_power_w = 500: the nearest feasible value"):
        jc.sweep(tables(site__power_limit_w=500.0))
