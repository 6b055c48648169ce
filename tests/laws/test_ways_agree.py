"""Laws of spaces that vary two or three keys at random: a plan is the same, whichever way it is reached.

A sweep's row is the forecast of the plan that is written for it, no plan of a space is lost or listed twice, and what a
comparison names makes one plan of another. What holds of one key is tested where it is; here are keys that nobody has
tried together, the same ones on every run.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import combinations, islice, product
from typing import Any, Literal, NamedTuple, get_args, get_origin

import pytest

from joulecast.errors import InputError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.plan.comparison.compare import differing_keys
from joulecast.plan.sweep.plan_text import plan_text
from joulecast.plan.sweep.rows import Forecaster, Row, fullest_of
from joulecast.plan.sweep.space import space_from_dict
from joulecast.simulator.closed_form.forecast import closed_form
from joulecast.simulator.closed_form.trust import DOUBTFUL_ERROR
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import Plan, PlanFrame, is_free, plan_from_dict
from joulecast.simulator.plan_file.schema import TABLES, PlanFile
from joulecast.simulator.plan_file.source import Source

#: Spaces around every plan, and how many of them are simulated.
SPACES, SIMULATED = 12, 1
EAGER, MEGATRON = {"framework": "pytorch-eager", "modules": "transformers"}, {"framework": "megatron"}


def usual(gpu: str, gpus: int, split: Mapping[str, Any], run: Mapping[str, Any], **work: Any) -> dict[str, Any]:
    """Tables of a small plan."""
    sizes = {"sequence_length": 1024, "micro_batch_size": 2, "global_batch_size": 32}
    workload = {"model": "llama-3.2-1b", "layers": 4} | sizes | work
    where = {"gpu": gpu, "gpus": gpus}
    return {"workload": workload, "cluster": where, "parallelism": dict(split), "implementation": dict(run)}


ROLLOUT = {"completion_tokens": 512, "rollout": {"num_generations": 8, "generation_batch_size": 32}}
PIPELINE = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "sequence_parallel": True}
EXPERTS = {"expert_model_parallel_size": 4}
BASES = {
    "dense": usual("h200-sxm", 8, {}, EAGER),
    "sharded": usual("h200-sxm", 16, {"fsdp": True}, EAGER),
    "lora": usual("h200-sxm", 2, {}, EAGER, lora={"rank": 8}),
    "grpo": usual("h200-sxm", 1, {}, EAGER, objective="grpo", **ROLLOUT),
    "megatron": usual("h200-sxm", 16, PIPELINE, MEGATRON),
    "experts": usual("h200-sxm", 16, EXPERTS, MEGATRON, model="mixtral-8x7b", layers=2),
    "fp8": usual("h200-sxm", 8, {"tensor_model_parallel_size": 2}, MEGATRON, precision="fp8"),
    "fp4": usual("b200", 4, {}, MEGATRON, precision="fp4"),
    "fp32": usual("h200-sxm", 4, {}, EAGER, precision="fp32"),
    "tf32": usual("h200-sxm", 4, {}, EAGER, precision="tf32"),
}
JOINT = {"framework": "pytorch-eager"}
#: Values of keys whose type does not say them.
VALUES: dict[str, tuple[Any, ...]] = {
    "cluster.gpu": ("h200-sxm", "h100-sxm", "b200"),
    "cluster.gpus": (4, 8, 16),
    "cluster.gpus_per_node": (4, 8, 16),
    "network.name": ("roce-400g", "infiniband-ndr"),
    "schedule.name": ("gpipe", "1f1b", "zb-h1", "interleaved-1f1b", "zb-v"),
    "power.clock_mhz": (1200, 1410),
    "power.power_limit_w": (450.0, 600.0),
    "workload.lora.target_modules": (["q_proj"], ["q_proj", "v_proj"]),
    "workload.sequence_length": (512, 2048),
    "workload.global_batch_size": (32, 64),
    "workload.layers": (2, 4),
    "workload.objective": ("next-token", "dpo", "kto", "grpo", "reward"),
    "workload.document_tokens": (300, [200, 600]),
    "implementation.optimizer": ("adamw", "muon", "lion-8bit"),
    "overlap.window": ("all", ["qkv", "output"]),
}
OF_TYPE: dict[Any, tuple[Any, ...]] = {bool: (True, False), int: (1, 2, 4), float: (0.5, 2.0, 100.0)}
#: Of all plans of a sweep alike, or without values that a type could tell.
LEFT_OUT = ("site.node_power_limit_w", "site.rack_power_limit_w", "site.power_limit_w", "workload.model")
KEYS = tuple(sorted(f"{table}.{name}" for table, own in TABLES.items() for name in own.model_fields))
#: Values that a comparison names in other words of the file.
SYNONYMS = ("workload.num_layers_at_start_in_bf16", "workload.num_layers_at_end_in_bf16", "implementation.liger_kernel")
#: Keys that a comparison names by what they come to.
SPLIT = "parallelism.account_for_"


def offers(key: str) -> tuple[Any, ...]:
    """Values of a key that are legal in some plan."""

    def of(kind: Any) -> Iterator[Any]:
        if get_origin(kind) is Literal:
            yield from get_args(kind)
        elif kind in OF_TYPE:
            yield from OF_TYPE[kind]
        else:
            for part in get_args(kind):
                yield from of(part)

    table, _, name = key.rpartition(".")
    return VALUES.get(key) or tuple(dict.fromkeys(of(TABLES[table].model_fields[name].annotation)))


def put(tables: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Tables with values under dotted keys; ``None`` leaves a key out."""
    whole = {name: dict(table) for name, table in tables.items()}
    for key, value in values.items():
        *places, name = key.split(".")
        own = whole
        for place in places:
            own[place] = dict(own.get(place) or {})
            own = own[place]
        own[name] = value
        if value is None:
            del own[name]
    return whole


def keys_in(tables: Mapping[str, Any], within: str = "") -> dict[str, Any]:
    """Dotted keys of tables, and their values."""
    found: dict[str, Any] = {}
    for name, value in tables.items():
        key = f"{within}{name}"
        found |= keys_in(value, f"{key}.") if key in TABLES and isinstance(value, Mapping) else {key: value}
    return found


def read(tables: Mapping[str, Any]) -> Plan | None:
    """The plan; none where its keys do not go together."""
    try:
        return plan_from_dict(tables)
    except InputError:
        return None


class Varied(NamedTuple):
    """A space, and its plans that can be, each read by itself."""

    tables: dict[str, Any]
    plans: list[Plan]


def two_of(key: str, base: Mapping[str, Any], r: random.Random) -> list[Any]:
    """Two values of a key, most of which are legal alone."""
    legal = [value for value in offers(key) if read(put(base, {key: value})) is not None or r.random() < 0.2]
    return r.sample(legal, min(2, len(legal)))


def varied(base: Mapping[str, Any], seed: str) -> Iterator[Varied]:
    """Spaces of two or three keys drawn at random, some plan of which can be."""
    r = random.Random(seed)
    known = [key for key in KEYS if key.count(".") == 1 or key.split(".")[1] in base["workload"]]
    known = [key for key in known if not key.startswith(LEFT_OUT) and key not in ("workload.lora", "workload.rollout")]
    while True:
        keys = r.sample(known, r.choice((2, 3)))
        legal = {
            key: [v for v in offers(key) if read(put(base, {key: v})) is not None or r.random() < 0.2] for key in keys
        }
        drawn = {key: r.sample(values, min(2, len(values))) for key, values in legal.items() if values}
        each = [dict(zip(drawn, values, strict=True)) for values in product(*drawn.values())]
        plans = [plan for values in each if (plan := read(put(base, values))) is not None]
        if len(plans) > 1:
            offered = {
                key: values if len(values) > 1 or isinstance(values[0], list) else values[0]
                for key, values in drawn.items()
            }
            yield Varied(put(base, offered), plans)


def figures(row: Row) -> tuple[float, ...]:
    return tuple(row[name] for name in ("time_s", "energy_j", "memory_bytes"))


class Swept(NamedTuple):
    """A space whose plans were forecast."""

    forecaster: Forecaster
    plans: list[Plan]
    rows: dict[int, Row]
    written: dict[int, dict[str, Any]]


@cache
def swept(name: str) -> list[Swept]:
    """Some spaces around a plan."""

    def found() -> Iterator[Swept]:
        for tables, plans in varied(BASES[name], name):
            try:
                space = space_from_dict(tables)
                forecaster = Forecaster(space)
                whole = range(len(forecaster.combinations))
            except InputError as error:  # some value is in no plan of the space
                assert error.key and "\n" not in str(error)
                continue
            rows = {row["plan"]: row for row in forecaster.forecast(whole) if isinstance(row, dict)}
            written = {number: tomllib.loads(plan_text(space, row)) for number, row in rows.items()}
            yield Swept(forecaster, plans, rows, written)

    return list(islice(found(), SPACES))


@pytest.mark.parametrize("name", BASES)
def test_a_row_is_the_forecast_of_the_plan_that_is_written_for_it(name: str) -> None:
    for place, (forecaster, _, rows, written) in enumerate(swept(name)):
        plans = {number: plan_from_dict(tables) for number, tables in written.items()}
        for number, plan in plans.items():
            assert plan == forecaster.plans.plan(forecaster.combinations.of(number))
        number = max(rows)
        row, alone = rows[number], closed_form([plans[number]])
        assert [*alone.time_s, *alone.energy_j] == pytest.approx([row["time_s"], row["energy_j"]], rel=1e-12)
        if place < SIMULATED:
            whole, simulated = forecast(plans[number]), forecaster.simulate(number)
            memory = max(rank.memory_bytes for rank in whole.ranks)
            assert figures(simulated) == (whole.time_s, whole.energy_j, memory)
            assert figures(row) == pytest.approx(figures(simulated), rel=DOUBTFUL_ERROR if row["doubt"] else 0.03)
            assert row["memory_bytes"] == memory


@pytest.mark.parametrize("name", BASES)
def test_no_plan_of_a_space_is_lost_or_listed_twice(name: str) -> None:
    for _, plans, rows, written in swept(name):
        listed = [plan_from_dict(tables) for tables in written.values()]
        for one, other in combinations(listed, 2):  # on several stages blocks that count may come to the same split
            assert one != other or one.pp > 1
        for plan in plans:
            held = fullest_of(plan)
            if plan not in listed and held.total_bytes <= load_gpu(plan.cluster.gpu).number("memory_bytes"):
                alone = closed_form([plan])
                same = pytest.approx([*alone.time_s, *alone.energy_j, held.allocated_bytes], rel=1e-12)
                assert any(list(figures(row)) == same for row in rows.values()), plan


@pytest.mark.parametrize("name", BASES)
def test_a_comparison_names_the_keys_that_make_one_plan_another(name: str) -> None:
    r = random.Random(name)
    for *_, written in swept(name):
        pairs = list(combinations(written.values(), 2))
        for one, other in r.sample(pairs, min(3, len(pairs))):
            plans = [plan_from_dict(one), plan_from_dict(other)]
            named, said = differing_keys(plans), (keys_in(one), keys_in(other))
            assert set(named) <= {*KEYS, *("workload.lora", "workload.rollout")}
            for key, values in named.items():
                for own, value in zip(said, values, strict=True):
                    assert key in SYNONYMS or key not in own or own[key] == value, key
            for key in {*said[0], *said[1]} - set(named):
                value = said[1].get(key)
                if said[0].get(key) != value and not key.startswith(SPLIT):
                    assert read(put(one, {key: value})) in (None, plans[0]), key
            changed = read(put(one, {key: said[1].get(key, values[1]) for key, values in named.items()}))
            assert changed in (None, plans[1]), named


@pytest.mark.parametrize("name", [*BASES, "joint"])
def test_what_plans_share_is_read_once_for_all(name: str) -> None:
    """A frame that was read for one plan gives each of those that differ in what it leaves free."""
    base = BASES.get(name) or usual("h200-sxm", 8, {}, JOINT)
    frame, found = PlanFrame(PlanFile.model_validate(base), Source(None, "", {})), 0
    for key in filter(is_free, KEYS):
        for value in offers(key):
            plan = read(tables := put(base, {key: value}))
            if plan is not None:
                assert frame.plan(PlanFile.model_validate(tables)) == plan, key
                found += 1
    assert found > 20


@pytest.mark.parametrize("order", [[False, True], [True, False]])
def test_a_sweep_over_fsdp_has_each_plans_own_defaults_and_refuses_what_a_plan_does(order: list[bool]) -> None:
    base = usual("h200-sxm", 8, {}, JOINT)
    forecaster = Forecaster(space_from_dict(put(base, {"parallelism.fsdp": order})))
    plans = [forecaster.plans.plan(forecaster.combinations.of(n)) for n in range(2)]
    assert plans == [plan_from_dict(put(base, {"parallelism.fsdp": one})) for one in order]
    with pytest.raises(InputError, match="fp32 beside products in bf16 are not known of modules with joint"):
        wide = put(base, {"parallelism.fsdp": order, "implementation.parameter_precision": "fp32"})
        len(Forecaster(space_from_dict(wide)).combinations)
