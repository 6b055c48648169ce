"""Attention with a given tile: steps counted one by one, bytes and energy that follow from them."""

from dataclasses import replace

import pytest

from joulecast.model.kernels.attention_tiles import attention_blocks, attention_steps, lower_tiled_attention
from joulecast.model.kernels.occupancy import spilled_registers
from joulecast.model.kernels.operators import Attention, Tile
from joulecast.model.kernels.tile_estimates import estimate

BATCH, HEADS, KV_HEADS, DIM = 2, 16, 4, 128


def attend(m=128, n=64, sequence=4096, keys=None, warps=8, stages=3, **changes):
    plain = Attention(BATCH, HEADS, KV_HEADS, sequence, DIM, tile=Tile(m, n, warps=warps, stages=stages))
    return replace(plain, **({"kv_sequence": keys} if keys else {}) | changes)


def lowered(operator, gpu):
    return {name: float(values[0]) for name, values in lower_tiled_attention([operator], gpu).items()}


def counted(m, n, sequence, causal):
    """Steps of all blocks of queries: the keys that some of their queries may see, in blocks of ``n``."""
    return sum(-(-min(sequence, first + m) // n) if causal else -(-sequence // n) for first in range(0, sequence, m))


@pytest.mark.parametrize(("m", "n"), [(64, 64), (128, 64), (128, 32), (128, 128)])
@pytest.mark.parametrize("causal", [False, True])
def test_steps_are_those_that_one_counts(m, n, causal):
    found = attention_steps([attend(m, n, causal=causal)])
    assert found.rows[0] == 4096 / m and found.full[0] == 4096 / n
    assert found.steps[0] == pytest.approx(counted(m, n, 4096, causal))


def test_queries_at_the_end_of_many_keys_see_all_before_them():
    """A quarter as many queries as keys: of the last keys alone a causal mask hides a triangle."""
    found = attention_steps([attend(128, 64, sequence=1024, keys=4096, causal=True)])
    blocks = [-(-(3072 + first + 128) // 64) for first in range(0, 1024, 128)]
    assert found.steps[0] == pytest.approx(sum(blocks))


def test_backward_holds_keys_and_takes_queries():
    forward, backward = (attention_steps([attend(direction=d)]) for d in ("forward", "backward"))
    assert (forward.kept[0], forward.walked[0]) == (128, 64) == (backward.walked[0], backward.kept[0])
    assert forward.steps[0] == pytest.approx(backward.steps[0], rel=0.05)


def test_operations_cost_their_energy(h200):
    found = lowered(attend(causal=False), h200)
    flops = 2 * 2.0 * BATCH * HEADS * 4096**2 * DIM
    per_flop = (
        estimate(h200, "power.tile_attention_share") * h200["power.attention_pj_per_flop.flash-attention-2.forward"]
    )
    assert found["tensor_j"] == pytest.approx(flops * per_flop * 1e-12)
    assert found["tensor_use"] == pytest.approx(flops / (h200.flops_per_cycle("bf16") * found["core_cycles"]))
    assert 0.2 < found["tensor_use"] < 1.0


def test_the_memory_sees_every_tensor_once_forward_and_twice_backward(h200):
    forward, backward = (lowered(attend(direction=d), h200) for d in ("forward", "backward"))
    one = BATCH * 4096 * DIM * 2.0
    once = one * (2 * HEADS + 2 * KV_HEADS)  # queries and outputs, keys and values
    speed = h200.device["memory_bandwidth_bytes_per_s"]
    assert forward["memory_s"] * speed == pytest.approx(once)
    # Gradients; the row products read dO and O again, and dQ is cleared, read and rounded in fp32.
    assert backward["memory_s"] * speed == pytest.approx(2 * once + (2 + 3 * 2) * HEADS * one)
    per_byte = h200["power.hbm_base_pj_per_byte"] + h200["power.hbm_toggle_pj_per_byte"]
    assert forward["hbm_j"] == pytest.approx(once * per_byte * 1e-12)


def test_blocks_of_fewer_queries_than_the_reference_load_keys_again(h200):
    """Those of 128 queries are in the energy of an operation; of 32, three quarters of their loads come on top."""
    assert lowered(attend(128, 64, causal=False), h200)["onchip_j"] == 0.0
    found = lowered(attend(32, 64, warps=4, causal=False), h200)
    loaded = BATCH * HEADS * (4096 / 32) * 4096 * 2 * DIM * 2.0
    assert found["onchip_j"] == pytest.approx(
        0.75 * loaded * estimate(h200, "power.tile_attention.pj_per_l2_byte") * 1e-12
    )


def test_warps_without_rows_of_their_own_slow_a_step(h200):
    """Eight warps are two groups of four, that wait for each other; with 64 rows they share them too."""
    thin, wide = (attend(m, 128, causal=False) for m in (64, 128))
    for name, operator, others in (
        ("thin", thin, [wide, replace(thin, tile=Tile(64, 128, warps=4, stages=3))]),
        ("joint", wide, [replace(thin, tile=Tile(64, 128, warps=4, stages=3))]),
    ):
        key = f"kernel.tile_attention.{name}"
        without = h200.with_values({key: 1.0})
        slower = lowered(operator, h200)["core_cycles"] / lowered(operator, without)["core_cycles"]
        assert 1.0 < slower == pytest.approx(estimate(h200, key), rel=0.06)
        assert all(lowered(other, h200) == lowered(other, without) for other in others)


def test_a_step_is_products_scores_and_scaling(h200):
    """Two groups on an SM, three stages: nothing is exposed. 1,024 blocks of equal length make 8 on the fullest SM."""
    found = lowered(attend(128, 64, causal=False), h200)
    assert found["core_cycles"] == pytest.approx(8 * (64 * step_cycles(h200) + ends_cycles(h200)), rel=0.02)
    assert found["activity"] == pytest.approx(1024 / 132 * 64 * step_cycles(h200) / found["core_cycles"], rel=0.01)


def test_a_mask_costs_cycles_and_energy_for_every_score(h200):
    """The masked half is left out; what is not, is compared, and its blocks end one after the other."""
    causal, all_seen = (lowered(attend(128, 64, causal=c), h200) for c in (True, False))
    steps = attention_steps([attend(128, 64, causal=True)]).steps[0] * BATCH * HEADS
    scores = steps * 128 * 64
    assert causal["onchip_j"] == pytest.approx(
        scores * estimate(h200, "power.tile_attention.pj_per_masked_score") * 1e-12
    )
    assert all_seen["onchip_j"] == 0.0
    masked = estimate(h200, "kernel.tile_attention.cycles_per_masked_score") * 128 * 64
    step = step_cycles(h200) + masked * estimate(h200, "kernel.tile_attention.joint")
    ends = BATCH * HEADS * 32 / h200.sm_count * ends_cycles(h200)
    cycles = step * (steps / h200.sm_count + 0.5 * 64) + ends + h200["kernel.tile_gemm.tile_overhead_cycles"]
    assert causal["core_cycles"] == pytest.approx(cycles)


def step_cycles(gpu):
    """Of 128 queries, 64 keys and eight warps, nothing masked."""
    rate = gpu.flops_per_cycle("bf16") / gpu.sm_count
    each = {name: estimate(gpu, f"kernel.tile_attention.{name}") for name in ("eta", "joint")}
    return each["joint"] * (
        2 * 2.0 * 128 * 64 * DIM / (rate * each["eta"])
        + estimate(gpu, "kernel.tile_attention.cycles_per_score") * 128 * 64
        + estimate(gpu, "kernel.tile_attention.cycles_per_scaled_value") * 128 * DIM
        + estimate(gpu, "kernel.tile_attention.cycles_per_warp") * 8
    )


def ends_cycles(gpu):
    """Of a block of 128 queries."""
    return estimate(gpu, "kernel.tile_attention.cycles_per_kept_value") * 128 * DIM


def test_fewer_stages_leave_loads_exposed(h200):
    one, two, three, four = (lowered(attend(stages=s, causal=False), h200)["core_cycles"] for s in (1, 2, 3, 4))
    assert three == four
    assert one - two == pytest.approx(two - three, rel=0.01) and two > 1.02 * three
    loads = 2 * 64 * DIM * 2  # keys and values of a step, on an SM's eight blocks of 64 steps
    assert two - three == pytest.approx(
        8 * 64 * loads / estimate(h200, "kernel.tile_attention.exposed_bytes_per_sm_cycle")
    )


def test_a_backward_step_is_five_products_scores_and_what_is_added_up(h200):
    """One block of 128 keys on an SM, two stages: nothing is exposed, but nothing runs beside it either."""
    found = lowered(attend(128, 128, stages=2, head_dim=64, causal=False, direction="backward"), h200)
    own = {
        name: estimate(h200, f"kernel.tile_attention_backward.{name}")
        for name in ("cycles_per_score", "cycles_per_walked_value", "alone", "steps_of_block")
    }
    rate = h200.flops_per_cycle("bf16") / h200.sm_count * estimate(h200, "kernel.tile_attention.eta")
    products = 5 * 2 * 128 * 128 * 64 / rate
    step = products + own["cycles_per_score"] * 128 * 128 + own["cycles_per_walked_value"] * 128 * 64
    steps = BATCH * HEADS * 32 * (32 + own["steps_of_block"]) / h200.sm_count
    ends = h200["kernel.tile_gemm.tile_overhead_cycles"]
    assert found["core_cycles"] == pytest.approx(steps * step * own["alone"] + ends)


def test_one_stage_leaves_a_part_of_a_backward_step_exposed(h200):
    without = h200.with_values({"kernel.tile_attention_backward.exposed_stage": 0.0})
    one, two, three = (
        attend(64, 64, warps=4, stages=s, head_dim=64, causal=False, direction="backward") for s in (1, 2, 3)
    )
    ends = h200["kernel.tile_gemm.tile_overhead_cycles"]
    longer = (lowered(one, h200)["core_cycles"] - ends) / (lowered(one, without)["core_cycles"] - ends)
    assert longer == pytest.approx(1.0 + estimate(h200, "kernel.tile_attention_backward.exposed_stage"))
    assert all(lowered(more, h200) == lowered(more, without) for more in (two, three))


@pytest.mark.parametrize(("head_dim", "stages"), [(128, 2), (96, 1), (64, 1)])
def test_what_spills_backward_lies_in_one_cache_or_the_other(h200, head_dim, stages):
    """Registers are written and read, twice as many as lack; the first-level cache has what fits, L2 the rest."""
    operator = attend(128, 192, stages=stages, head_dim=head_dim, direction="backward", causal=False)
    blocks = attention_blocks([operator], h200)
    moved = 2 * (spilled_registers(blocks, h200)[0] - 45) * blocks.threads[0] * 8
    steps = BATCH * HEADS * attention_steps([operator]).steps[0]
    keys = ("power.tile_spill_pj_per_byte", "power.l2_pj_per_byte")
    none, near, far = (
        lowered(operator, h200.with_values(dict(zip(keys, each, strict=True))))["onchip_j"]
        for each in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0))
    )
    assert near + far - 2 * none == pytest.approx(steps * moved * 1e-12)
    room = max(h200.device["shared_memory_per_sm_bytes"] - blocks.shared_bytes[0], 0)
    close = min(moved, 2 * room)
    assert near - none == pytest.approx(steps * close * 1e-12)
    key = "kernel.tile_gemm.register_bytes_per_sm_cycle"
    slow, fast = (lowered(operator, h200.with_values({key: rate}))["core_cycles"] for rate in (10.0, 20.0))
    ends = BATCH * HEADS * 22 * estimate(h200, "kernel.tile_attention_backward.steps_of_block")  # of 4,096 by 192 keys
    assert slow - fast == pytest.approx((steps + ends) / h200.sm_count * close * (1 / 10 - 1 / 20))


def test_what_a_block_needs(h200):
    forward = attention_blocks([attend()], h200)
    assert forward.threads[0] == 256
    assert forward.shared_bytes[0] == (128 + 2 * 3 * 64) * DIM * 2  # the queries, and three stages of keys and values
    backward = attention_blocks([attend(direction="backward")], h200)
    assert backward.shared_bytes[0] == (2 * 64 + 2 * 3 * 128) * DIM * 2 + 128 * DIM * 4  # what is added to dQ
    assert forward.registers[0] == pytest.approx(172, rel=0.1)  # as Triton 3.6 compiles it, and with 32 keys 253
    assert attention_blocks([attend(128, 32, warps=4)], h200).registers[0] == pytest.approx(253, rel=0.1)


def test_groups_that_share_keys_both_hold_the_scores(h200):
    """Backward of heads of 64: compiled, 160 registers with eight warps and 199 with four."""
    eight, four = (attend(64, 64, warps=w, head_dim=64, direction="backward", stages=2) for w in (8, 4))
    blocks = [attention_blocks([operator], h200).registers[0] for operator in (eight, four)]
    assert blocks == pytest.approx([160, 199], rel=0.06)


def test_a_little_that_spills_is_what_no_step_needs(h200):
    """128 x 64 in four warps: 40 words spill outside the loop, of 128 x 128 75 in it (compiled)."""
    small, large = (attend(128, n, warps=4, causal=False) for n in (64, 128))
    free = h200.with_values({"power.tile_spill_pj_per_byte": 0.0})
    assert lowered(small, h200) == lowered(small, free)
    steps = BATCH * HEADS * 32 * 32
    spilled = (lowered(large, h200)["onchip_j"] - lowered(large, free)["onchip_j"]) / (
        steps * 128 * 8 * estimate(h200, "power.tile_spill_pj_per_byte") * 1e-12
    )
    assert spilled == pytest.approx(75, rel=0.15)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_fewer_blocks_than_sms_take_as_long_as_the_longest(h200, direction):
    one, two, many = (
        lowered(attend(batch=1, heads=heads, kv_heads=1, direction=direction), h200) for heads in (1, 2, 64)
    )
    assert many["core_cycles"] > 2.0 * two["core_cycles"]
    assert one["core_cycles"] == pytest.approx(two["core_cycles"], rel=0.05)
    assert one["activity"] == pytest.approx(0.5 * two["activity"], rel=0.05)
