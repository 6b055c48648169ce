"""Closed form of long forwards and backwards that draw unlike power, and limits under which it is not trusted."""

from __future__ import annotations

from typing import Any

import pytest
from plan_tables import merged
from ways_agree import ways_agree

from joulecast.simulator.closed_form.trust import doubt
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict


def plan(gpu: str, sequence: int, batch: int, *, tp: int = 1, pp: int = 1, dp: int = 1, **tables: Any) -> Plan:
    usual: dict[str, Any] = {
        "workload": {"model": "llama-3.1-70b", "sequence_length": sequence, "global_batch_size": batch * dp},
        "cluster": {"gpu": gpu, "gpus": tp * pp * dp},
        "parallelism": {
            "tensor_model_parallel_size": tp,
            "pipeline_model_parallel_size": pp,
            "sequence_parallel": tp > 1,
        },
        "schedule": {"name": "1f1b" if pp > 1 else "none"},
        "implementation": {"framework": "megatron"},
    }
    return plan_from_dict(merged(usual, tables))


@pytest.mark.parametrize(
    "one",
    [
        plan("h200-sxm", 2048, 6, tp=4),
        plan("h200-sxm", 1024, 8, tp=4),
        plan("h100-sxm", 4096, 4, pp=2, power={"clock_mhz": {"forward": 915}}),
        plan("h200-sxm", 4096, 16, tp=2, pp=8, power={"clock_mhz": {"forward": 930}}),
    ],
)
def test_backwards_above_the_limit_are_held_though_the_mean_is_below_it(one: Plan) -> None:
    """Of a forward of 0.2 s at 500 W and a backward at 850 the mean is below 700: each backward's clock falls."""
    ways_agree(one, time=0.03, energy=0.03, must_fit=False)
    assert doubt(one) == ""


def test_low_limits_are_not_trusted() -> None:
    tight = plan("b200", 2048, 4, tp=2, power={"power_limit_w": 350})
    assert "350 of 1000 W" in doubt(tight)
    assert doubt(plan("b200", 2048, 4, tp=2, power={"power_limit_w": 450})) == ""
    reduced = {"overlap": {"grad_reduce": "overlapped"}, "power": {"power_limit_w": 400}}
    assert "beside one of 1 backwards" in doubt(plan("h200-sxm", 4096, 1, tp=4, dp=4, **reduced))
    assert doubt(plan("h200-sxm", 4096, 8, tp=4, dp=4, **reduced)) == ""
    assert doubt(plan("h200-sxm", 4096, 1, tp=4, **reduced)) == ""
    assert doubt(plan("h200-sxm", 4096, 1, tp=4, dp=4, overlap=reduced["overlap"])) == ""


@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_host_that_is_slower_hides_the_reduction_beside_the_last_backward(microbatches: int, recompute: str) -> None:
    """As long as launches set the pace of the backward with the reduction and of that without alike."""
    one = plan(
        "b200",
        1024,
        microbatches,
        tp=4,
        dp=4,
        workload={"model": "llama-3.2-3b"},
        schedule={"recompute": recompute},
        implementation={"framework": "pytorch-eager", "host_launch_us": 40},
        overlap={"grad_reduce": "overlapped"},
    )
    ways_agree(one, time=1e-3, energy=1e-3)
