"""Exchange of experts' tokens by DeepEP's and HybridEP's kernels, which SMs or links bound."""

from __future__ import annotations

import pytest

import joulecast as jc
from joulecast.errors import InputError
from joulecast.model.kernels.operators import Collective
from joulecast.simulator.instructions.program import plan_program
from joulecast.simulator.plan_file.plan import plan_from_dict


def rate(gpu: str, sms: int | None, ranks: int = 8) -> float:
    """What one GPU exchanges in a second, latencies left out [GB/s]."""
    card, size = jc.gpu(gpu), 1e9
    times = [card.predict(Collective("token_exchange", size * k, ranks, ctas=sms)).time_s for k in (1, 2)]
    return 1e-9 * size * (ranks - 1) / ranks / (times[1] - times[0])


@pytest.mark.parametrize(("sms", "published"), [(16, (362.01, 310.21)), (24, (512.72, 425.95)), (32, (615.78, 519.57))])
def test_sms_bound_the_exchange(sms: int, published: tuple[float, float]) -> None:
    """HybridEP's own table on eight GB200, dispatched in bf16 and combined."""
    assert rate("gb200", sms) == pytest.approx(sum(published) / 2, rel=0.055)


def test_links_bound_an_exchange_with_sms_enough() -> None:
    assert rate("gb200", None) == pytest.approx(0.76 * 900, rel=0.035)
    assert rate("gb200", 128) == pytest.approx(rate("gb200", None), rel=0.01)
    assert rate("h100-sxm", 16) == pytest.approx(0.76 * 450 / (1 + (342 / 352) ** 3) ** (1 / 3), rel=0.01)


def plan(**implementation: object):
    return plan_from_dict(
        {
            "workload": {"model": "qwen3-30b-a3b", "sequence_length": 4096, "global_batch_size": 8},
            "cluster": {"gpu": "gb200", "gpus": 8},
            "parallelism": {"expert_model_parallel_size": 8},
            "overlap": {"comm_ctas": 12},
            "implementation": {"framework": "megatron", **implementation},
        }
    )


def test_a_plan_says_how_many_sms_exchange_tokens() -> None:
    """It overrides the blocks of other communication, and nothing else."""
    launches = plan_program(plan(moe_token_dispatcher_type="flex", moe_flex_dispatcher_num_sms=16)).ranks[0].types
    found = [x.operator for ty in launches for x in ty if isinstance(x.operator, Collective)]
    exchanges = {one.ctas for one in found if one.kind == "token_exchange"}
    assert exchanges == {16} and {one.ctas for one in found if one.kind != "token_exchange"} == {12}
    usual = plan_program(plan(moe_token_dispatcher_type="flex")).ranks[0].types[0]
    assert {x.operator.ctas for x in usual if "all_to_all" in x.operator.name} == {12}
    with pytest.raises(InputError, match="NCCL exchanges tokens"):
        plan(moe_flex_dispatcher_num_sms=16)
