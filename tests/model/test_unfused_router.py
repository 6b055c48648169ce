"""Routers in PyTorch's operations against those that ran on an H100, and in plans."""

from __future__ import annotations

import pytest
from paths import ROOT
from row_files import csv_rows

import joulecast as jc
from joulecast.errors import InputError
from joulecast.model.architecture.experts import Experts
from joulecast.model.transformer import unfused_router
from joulecast.simulator.instructions.program import plan_program
from joulecast.simulator.plan_file.plan import plan_from_dict

ROWS = csv_rows(ROOT / "validate" / "recorded" / "routers" / "routers.csv", aux_loss="true")


def seconds(row: dict[str, str], part: str) -> float:
    """Forecast of one way; what replaces scores by random ones is in none."""
    router = ("grouped " if row["groups"] == "true" else "") + row["scores"]
    experts = Experts(int(row["experts"]), int(row["active"]), 1, router=router)
    launches = getattr(unfused_router, part)(experts, int(row["tokens"]), fused=False)
    return sum(jc.gpu("h100-sxm").predict(one.operator).time_s * one.repeat for one in launches)


@pytest.mark.parametrize("row", ROWS, ids=lambda r: "-".join(list(r.values())[:6]))
def test_an_h100_took_as_long(row: dict[str, str]) -> None:
    forward, both = float(row["forward_s"]), float(row["both_s"])
    assert seconds(row, "forward") == pytest.approx(forward, rel=0.18)
    assert seconds(row, "forward") + seconds(row, "backward") == pytest.approx(both, rel=0.18)


def test_the_mean_is_met() -> None:
    errors = [(seconds(row, "forward") + seconds(row, "backward")) / float(row["both_s"]) - 1 for row in ROWS]
    assert sum(errors) / len(errors) == pytest.approx(0.0, abs=0.06)


def plan(**implementation: object):
    return plan_from_dict(
        {
            "workload": {"model": "nemotron-3-nano-30b-a3b", "sequence_length": 4096, "global_batch_size": 8},
            "cluster": {"gpu": "gb200", "gpus": 8},
            "parallelism": {"expert_model_parallel_size": 8},
            "implementation": {"framework": "megatron", **implementation},
        }
    )


def test_a_plan_says_whether_a_router_is_fused() -> None:
    """Sigmoids in a group: 34 passes, 15 back, and three choices; the host's operations are counted for either."""
    fused, apart = (plan_program(plan(moe_router_fusion=said)).ranks[0].types for said in (True, False))
    counts = {x.operator.name: x.repeat for ty in apart for x in ty if x.operator.name.startswith("router.")}
    assert (counts["router.unfused"], counts["router.grad.unfused"], counts["router.choice"]) == (34, 15, 3)
    names = {x.operator.name for ty in fused for x in ty}
    assert {"router.softmax", "router.softmax.grad"} <= names and "router.unfused" not in names
    with pytest.raises(InputError, match="moe_router_fusion"):
        plan(moe_router_fusion=False, framework="pytorch-eager")
