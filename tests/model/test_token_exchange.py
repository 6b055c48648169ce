"""Exchange of experts' tokens by DeepEP's and HybridEP's kernels, which SMs or links bound."""

from __future__ import annotations

import pytest

import joulecast as jc
from joulecast.errors import InputError
from joulecast.model.kernels.operators import Collective
from joulecast.simulator.instructions.program import plan_program
from joulecast.simulator.plan_file.plan import plan_from_dict


def rate(gpu: str, sms: int | None, ranks: int = 8, kind: str = "token_exchange") -> float:
    """What one GPU exchanges in a second, latencies left out [GB/s]."""
    card, size = jc.gpu(gpu), 1e9
    times = [card.predict(Collective(kind, size * k, ranks, ctas=sms)).time_s for k in (1, 2)]
    return 1e-9 * size * (ranks - 1) / ranks / (times[1] - times[0])


@pytest.mark.parametrize(("sms", "published"), [(16, (362.01, 310.21)), (24, (512.72, 425.95)), (32, (615.78, 519.57))])
def test_sms_bound_the_exchange(sms: int, published: tuple[float, float]) -> None:
    """DeepEP's table on eight GB200, dispatched in bf16 and combined (HybridEP's README)."""
    assert rate("gb200", sms) == pytest.approx(sum(published) / 2, rel=0.055)


@pytest.mark.parametrize(
    ("ranks", "published"), [(8, (717.2, 750.6)), (16, (631.3, 686.6)), (24, (601.7, 652.9)), (32, (588.5, 623.7))]
)
def test_hybrid_ep_needs_a_third_of_the_sms(ranks: int, published: tuple[float, float]) -> None:
    """The same table's HybridEP, mean of dispatch in bf16 and combine: 16 SMs over 32."""
    few, many = (rate("gb200", sms, ranks, "hybrid_exchange") for sms in (16, 32))
    assert few / many == pytest.approx(published[0] / published[1], rel=0.03)
    assert few > 1.7 * rate("gb200", 16, ranks)


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
    deepep = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}
    launches = plan_program(plan(**deepep, moe_flex_dispatcher_num_sms=16)).ranks[0].types
    found = [x.operator for ty in launches for x in ty if isinstance(x.operator, Collective)]
    exchanges = {one.ctas for one in found if one.kind == "token_exchange"}
    assert exchanges == {16} and {one.ctas for one in found if one.kind != "token_exchange"} == {12}
    for backend, kind, sms in (("deepep", "token_exchange", 20), ("hybridep", "hybrid_exchange", 16)):
        asked = plan(moe_token_dispatcher_type="flex", moe_flex_dispatcher_backend=backend)
        types = plan_program(asked).ranks[0].types
        assert {x.operator.ctas for ty in types for x in ty if getattr(x.operator, "kind", "") == kind} == {sms}
    usual = plan_program(plan(moe_token_dispatcher_type="flex")).ranks[0].types[0]
    assert {x.operator.ctas for x in usual if "all_to_all" in x.operator.name} == {12}
    with pytest.raises(InputError, match="NCCL exchanges tokens"):
        plan(moe_flex_dispatcher_backend="hybridep")
    with pytest.raises(InputError, match=r"three times as much .*moe_flex_dispatcher_backend"):
        plan(moe_token_dispatcher_type="flex", moe_flex_dispatcher_num_sms=16)
