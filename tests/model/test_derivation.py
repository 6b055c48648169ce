"""Rules by which descriptions are derived, worked out by hand; and derived descriptions as they were last accepted."""

from __future__ import annotations

from typing import Any

import accepted
import pytest

from joulecast.model.hardware.catalogue import gpu_names, load_gpu
from joulecast.model.hardware.derivation import rule_for, scale_factor
from joulecast.model.hardware.derivation_rules import RULES

FILE = "derived"
RELATIVE = "h200-sxm-rows"
#: One of each architecture, process node, kind of memory and of link.
DERIVED = (
    "a100-pcie-80gb", "a100-sxm-40gb", "a40", "b200", "gb300", "h100-nvl", "h100-pcie", "h100-sxm", "l40s", "mi210",
    "mi250x", "mi300x", "mi355x", "rtx-4090", "rtx-a6000", "rtx-pro-6000-blackwell", "v100-pcie-32gb", "v100-sxm2-16gb",
)  # fmt: skip
#: Parameter, GPU, quotient of its value and the relative's by hand from data sheets and stated figures, and standard
#: deviation of the rule between these two.
WORKED = (
    # 84 SMs of 1024 operations a cycle at 1740 MHz in 8 nm beside 132 of 4096 at 1980 MHz in 4 nm.
    ("power", "clock_w", "a40", 84 / 132 * 1024 / 4096 * 1.7 * 1740 / 1980, 0.30),
    ("power", "sm_w", "a40", 84 / 132 * 1024 / 4096 * 2.05 * 1740 / 1980, 0.30),
    ("power", "thermal_resistance_k_per_w", "h100-pcie", 700 / 350, 0.30 * 0.4),
    ("power", "hbm_base_pj_per_byte", "a40", 1.9, 0.25),
    ("power", "link_pj_per_byte", "l40s", 1.6, 0.30),
    ("power", "link_pj_per_byte", "v100-pcie-32gb", 1.8, 0.30),
    ("power", "hbm_base_pj_per_byte", "rtx-pro-6000-blackwell", 1.6, 0.25),
    ("voltage", "slope", "h100-pcie", 1.0, 0.12 * 0.4),
    ("governor", "settled_share", "a40", 1.0, 0.01),
    ("collective", "latency_s", "mi300x", 1.25, 0.30 * 1.5),
    ("kernel", "gemm.tile_overhead_cycles", "mi250x", 2.0, 0.30 * 1.5),
    ("kernel", "attention.flash-attention-2.forward.eta", "b200", 0.5, 0.20),
    ("contention", "stranded_sms", "a40", 0.01, 0.50),
)


def of_description(name: str) -> dict[str, list[float]]:
    """Every number of a description with its uncertainty, and of its discrepancies."""
    found = {
        f"{table}.{key}": [accepted.short(p.number), accepted.short(p.sd)]
        for table, content in load_gpu(name).tables.items()
        for key, p in content.parameters.items()
        if not isinstance(p.value, str)
    }
    for table, content in load_gpu(name).tables.items():
        for family, sizes in content.discrepancy.items():
            found[f"{table}.discrepancy.{family}"] = [accepted.short(sizes[quantity]) for quantity in sorted(sizes)]
    return found


@pytest.fixture(scope="module")
def stands() -> dict[str, Any]:
    return accepted.read(FILE)


@pytest.mark.parametrize("name", DERIVED)
def test_derived_descriptions_stand(name: str, stands: dict[str, Any]) -> None:
    found, before = of_description(name), stands[name]
    assert found.keys() == before.keys()
    assert not [key for key, values in found.items() if values != pytest.approx(before[key], rel=1e-5)]


@pytest.mark.parametrize(("table", "name", "gpu", "quotient", "rel_sd"), WORKED, ids=lambda value: str(value))
def test_rules_worked_out(table: str, name: str, gpu: str, quotient: float, rel_sd: float) -> None:
    own, there = load_gpu(gpu).tables[table].parameters[name], load_gpu(RELATIVE).tables[table].parameters[name]
    assert own.number / there.number == pytest.approx(quotient, rel=1e-3)
    inherited = there.sd / there.number
    assert own.sd / own.number == pytest.approx((inherited**2 + rel_sd**2) ** 0.5, rel=1e-3)
    assert f"x {quotient:.4g}: " in own.source


def test_a_derived_value_says_where_its_rule_ends() -> None:
    ended = 0
    for gpu in DERIVED:
        for table, content in load_gpu(gpu).tables.items():
            for name, parameter in content.parameters.items():
                if parameter.status != "derived" or " x " not in parameter.source or isinstance(parameter.value, str):
                    continue
                rule = rule_for(table, name)
                assert parameter.number <= rule.maximum
                said = f"at most {rule.maximum:g}"
                assert (said in parameter.source) == (parameter.number == rule.maximum), (gpu, name)
                ended += said in parameter.source
    assert ended > 10


def test_no_rule_is_idle() -> None:
    """All but the last, which is for what nobody has thought of, and that of a user's own kernels."""
    tables = load_gpu(RELATIVE).tables
    used = [rule_for(table, name) for table, content in tables.items() for name in content.parameters]
    assert [rule.name for rule in RULES[:-1] if rule not in used] == ["own.*"]


def test_a_card_is_its_own_relative() -> None:
    relative = load_gpu(RELATIVE)
    for table, content in relative.tables.items():
        for name in content.parameters:
            rule = rule_for(table, name)
            if "flash_2_compiled" not in rule.scale:
                assert scale_factor(rule, relative.device, relative.device) == 1.0


def test_every_architecture_is_among_them() -> None:
    kinds = ("architecture", "process_node_nm", "memory_kind", "link_kind")
    cards = {name: tuple(load_gpu(name).device[kind].value for kind in kinds) for name in gpu_names()}
    for place in range(len(kinds)):
        assert {cards[n][place] for n in (*DERIVED, RELATIVE)} == {facts[place] for facts in cards.values()}


if __name__ == "__main__":
    accepted.write(FILE, {name: of_description(name) for name in DERIVED})
