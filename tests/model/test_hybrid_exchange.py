"""What HybridEP's kernels exchange beside tokens: weights of all experts of a domain, and all ranks' choices."""

from __future__ import annotations

import pytest

import joulecast as jc
from joulecast.errors import InputError
from joulecast.model.framework.launch_shares import shares
from joulecast.model.framework.launches import streaming
from joulecast.model.kernels.operators import Collective, Streaming
from joulecast.model.transformer import hybrid_exchange
from joulecast.model.transformer.expert_parts import different_parts
from joulecast.simulator.instructions.footprints import footprints
from joulecast.simulator.instructions.program import plan_program
from joulecast.simulator.plan_file.gpu import gpu_of
from joulecast.simulator.plan_file.plan import plan_from_dict

TOKENS, EXPERTS, ACTIVE, HIDDEN, RANKS = 4096, 128, 8, 2048, 16


def plan(backend: str | None = "hybridep", *, gpu: str = "gb200", framework: str = "megatron", **parallelism: object):
    said = {} if backend is None else {"moe_flex_dispatcher_backend": backend}
    return plan_from_dict(
        {
            "workload": {
                "model": "qwen3-30b-a3b",
                "sequence_length": TOKENS,
                "global_batch_size": 16,
                "moe_load_imbalance": 1.0,
            },
            "cluster": {"gpu": gpu, "gpus": RANKS},
            "parallelism": {"expert_model_parallel_size": RANKS, **parallelism},
            "implementation": {"framework": framework, "moe_token_dispatcher_type": "flex", **said},
        }
    )


def exchanged(backend: str | None, gpu: str = "gb200") -> dict[str, float]:
    """Bytes of a layer's exchanges, by name."""
    types = plan_program(plan(backend, gpu=gpu)).ranks[0].types
    return {x.operator.name: x.operator.bytes for ty in types for x in ty if isinstance(x.operator, Collective)}


def test_weights_of_all_experts_go_with_tokens_and_their_gradients_come_back() -> None:
    plain, hybrid = exchanged("deepep"), exchanged("hybridep")
    copies = plain["dispatch.all_to_all"] / (2 * HIDDEN)
    for name in ("dispatch.all_to_all", "dispatch.grad.all_to_all"):
        assert hybrid[name] - plain[name] == pytest.approx(copies * EXPERTS * 4)
    for name in ("combine.all_to_all", "combine.grad.all_to_all"):
        assert hybrid[name] == plain[name]
    assert exchanged(None) == plain


def test_between_nodes_weights_are_those_of_a_node() -> None:
    plain, hybrid = (exchanged(backend, "h100-sxm") for backend in ("deepep", "hybridep"))
    copies = plain["dispatch.all_to_all"] / (2 * HIDDEN)
    assert hybrid["dispatch.all_to_all"] - plain["dispatch.all_to_all"] == pytest.approx(copies * EXPERTS / 2 * 4)


def test_all_choices_are_gathered_and_scanned_in_the_forward() -> None:
    choices = float(RANKS * TOKENS * EXPERTS)
    found, plain = exchanged("hybridep"), exchanged("deepep")
    assert found["router.map.gathered"] == choices and "router.counts.all_gather" not in found
    assert "router.counts.all_gather" in plain and "router.map.gathered" not in plain
    forward, backward = (
        [x.operator for x in ty if x.operator.name == "router.map.scanned"]
        for ty in plan_program(plan()).ranks[0].types[:2]
    )
    assert all(isinstance(one, Streaming) for one in forward) and not backward
    assert {(one.bytes_read, one.bytes_written) for one in forward} == {(choices, choices / RANKS)}


@pytest.mark.parametrize(
    ("local", "active", "times"),
    [(32, 36, (393.6, 267.3, 876.7)), (32, 8, (257.2, 127.3, 577.4)), (16, 8, (153.8, 103.5, 581.5))],
)
def test_kernels_on_eight_b200(local: int, active: int, times: tuple[float, float, float]) -> None:
    """8,192 tokens of 512 values a rank: sorts, sums and combines on 32 SMs, as a comparison of branches has it."""
    card, ranks, hidden = jc.gpu("b200"), 8, 512
    arrived = 8192 * different_parts(active, ranks)
    rows, share = 8192 * active, different_parts(active, ranks) / active

    def sorting(cycles: float, reads: float, writes: float) -> float:
        size = {"rows": rows, "columns": hidden, "sm_cycles": cycles * local * arrived}
        return card.predict(
            streaming("embedding", "x", rows * hidden, reads=reads, writes=writes, **size).operator
        ).time_s

    combine = Collective("hybrid_exchange", 2 * hidden * arrived, ranks, ctas=32, rows=arrived)
    forecast = (
        sorting(hybrid_exchange.SORTED, share, 1.0),
        sorting(hybrid_exchange.SUMMED, 1.0, share),
        card.predict(combine).time_s,
    )
    assert [1e6 * time for time in forecast] == pytest.approx(times, rel=0.27)


def test_combine_of_wide_rows_on_eight_b200() -> None:
    """4,096 tokens of 7,168 values a rank to 8 of 8 ranks on 32 SMs: 478 us by the same comparison."""
    rows = 4096 * different_parts(8, 8)
    combine = Collective("hybrid_exchange", 2 * 7168 * rows, 8, ctas=32, rows=rows)
    assert 1e6 * jc.gpu("b200").predict(combine).time_s == pytest.approx(478, rel=0.15)


def test_what_comes_back_is_fetched_row_by_row() -> None:
    types = plan_program(plan()).ranks[0].types
    found = {x.operator.name: x.operator for ty in types for x in ty if isinstance(x.operator, Collective)}
    copies = TOKENS * different_parts(ACTIVE, RANKS)
    for name in ("combine.all_to_all", "dispatch.grad.all_to_all"):
        assert found[name].rows == pytest.approx(copies)
    assert found["dispatch.all_to_all"].rows == found["combine.grad.all_to_all"].rows == 0
    half = [x.operator for x in shares(tuple(types[0]), 2) if x.operator.name == "combine.all_to_all"]
    assert {one.rows for one in half} == {half[0].rows} and half[0].rows == pytest.approx(copies / 2)
    sort = next(x.operator for x in types[0] if x.operator.name == "dispatch.sort")
    assert sort.sm_cycles == pytest.approx(hybrid_exchange.SORTED * (EXPERTS // RANKS) * copies)


def test_room_for_the_tokens_of_all_ranks() -> None:
    more, less = (footprints(one, gpu_of(one), must_fit=False)[0].context for one in (plan("hybridep"), plan("deepep")))
    assert more - less == RANKS * TOKENS * (2 * HIDDEN + 4 * EXPERTS)


def test_it_is_known_in_megatron() -> None:
    with pytest.raises(InputError, match="HybridEP's exchange is known in megatron"):
        plan(framework="pytorch-eager")
