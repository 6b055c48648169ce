"""Fused attention: work by blocks, causality, groups and backends."""

import numpy as np
import pytest

from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.attention import BLOCK, AttentionShapes, attention_work
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Attention, products_width


def work(
    gpu,
    *,
    batch=1,
    heads=32,
    kv_heads=8,
    sequence=4096,
    head_dim=128,
    causal=True,
    backend="cudnn",
    back=False,
    window=0,
    value_dim=0,
):
    values = (batch, heads, kv_heads, sequence, head_dim, causal, sequence, window, value_dim)
    columns = np.broadcast_arrays(*(np.asarray(v, dtype=float) for v in values))
    shapes = AttentionShapes(*(np.atleast_1d(column) for column in columns))
    return attention_work(shapes, backend, "backward" if back else "forward", "bf16", gpu)


def test_causal_attention_does_about_half_the_work(h200):
    """(n + 1)/2 of n key blocks for each query block, and what every query block costs besides."""
    causal, full = work(h200, sequence=16384, causal=np.array([1, 0])).executed_flops
    assert 0.5 < causal / full < 0.52


def test_cycles_grow_with_the_square_of_a_long_sequence(h200):
    short, long = work(h200, sequence=np.array([65536, 131072])).cycles
    assert long / short == pytest.approx(4.0, rel=0.02)


@pytest.mark.parametrize("backend", ["cudnn", "flash-attention-2"])
def test_part_of_a_block_costs_a_whole_one(h200, backend):
    exact, more, next_block = work(h200, sequence=np.array([1024, 1025, 1024 + BLOCK]), backend=backend).cycles
    assert more == next_block > exact


def test_a_longer_sequence_wastes_less(h200):
    """Once there are more blocks than SMs."""
    work_of = work(h200, sequence=np.array([1024, 4096, 16384]))
    assert np.all(np.diff(work_of.busy_share) > 0)
    assert work_of.busy_share[-1] < 1.0


def test_backward_executes_five_products_for_two(h200):
    ahead, back = work(h200, sequence=32768), work(h200, sequence=32768, back=True)
    assert back.executed_flops[0] / ahead.executed_flops[0] == pytest.approx(2.5, rel=0.02)
    assert back.cycles[0] > 2.5 * ahead.cycles[0]


def test_cudnn_is_faster_than_flash_attention_2(h200):
    for back in (False, True):
        slow, fast = (work(h200, backend=b, back=back).cycles[0] for b in ("flash-attention-2", "cudnn"))
        assert 1.5 < slow / fast < 2.5


@pytest.mark.parametrize("back", [False, True])
def test_flash_attention_1_runs_at_half_the_pace(h200, back):
    """Dao, arXiv 2307.08691: the second is about twice as fast."""
    first, second = (work(h200, backend=f"flash-attention-{n}", sequence=16384, back=back).cycles[0] for n in (1, 2))
    assert first / second == pytest.approx(2.0, rel=0.01)


def test_narrow_heads_use_the_units_less(h200):
    """At equal work (twice the heads, half as wide) heads of 64 take longer, by ``narrow``."""
    wide, narrow = work(h200, heads=np.array([32, 64]), head_dim=np.array([128, 64]), sequence=131072).cycles
    assert narrow / wide == pytest.approx(1 / h200["kernel.attention.cudnn.forward.narrow"], rel=0.02)


def test_wide_heads_take_what_hopper_showed_but_for_blackwells_backward(h200):
    """At equal work (as many values over half the heads) heads of 256 take longer by ``wide`` where it is stated."""
    b200 = gpu_model(load_gpu("b200"))
    factor = b200["kernel.attention.cudnn.backward.wide"]
    for gpu, back, ratio in ((h200, False, 0.89), (h200, True, 1.26), (b200, True, 1 / factor)):
        narrow, wide = work(
            gpu, heads=np.array([64, 32]), head_dim=np.array([128, 256]), sequence=65536, back=back
        ).cycles
        assert wide / narrow == pytest.approx(ratio, rel=0.02)
    assert factor < 0.8


def test_grouped_queries_move_less(h200):
    grouped, own = work(h200, kv_heads=np.array([8, 32])).hbm_bytes
    size = 4096 * 128 * 2
    assert grouped == pytest.approx(size * (2 * 32 + 2 * 8))
    assert own == pytest.approx(size * (2 * 32 + 2 * 32))
    back = work(h200, back=True).hbm_bytes[0]  # Q, O and dO, dQ and its sums in fp32; K, V and their gradients
    assert back == pytest.approx(size * ((4 + 3 * 2) * 32 + 4 * 8))


def test_heads_and_batch_are_alike(h200):
    many_heads, many_sequences = work(h200, batch=np.array([1, 4]), heads=np.array([128, 32])).cycles
    assert many_heads == pytest.approx(many_sequences)


@pytest.mark.parametrize("back", [False, True])
def test_fewer_blocks_than_sms_take_as_long_as_the_longest(h200, back):
    """One head of 32 query blocks and two heads run side by side; only a longer sequence takes longer."""
    one, two, many = work(h200, heads=np.array([1, 2, 32]), kv_heads=1, back=back).cycles
    assert one == two < many
    short, long = work(h200, heads=1, kv_heads=1, sequence=np.array([2048, 4096]), back=back).cycles
    assert 1.7 < long / short < 2.0
    shares = work(h200, heads=np.array([1, 2]), kv_heads=1, back=back).busy_share
    assert shares[1] == pytest.approx(2.0 * shares[0]) and shares[1] < 0.5


@pytest.mark.parametrize("backend", ["cudnn", "flash-attention-2"])
def test_blocks_that_each_have_an_sm_leave_no_tail(h200, backend):
    """Two heads of 64 blocks on 132 SMs: without a mask all are as long as the longest one with it.

    Of cuDNN's forward a block with the diagonal has what masks it besides.
    """
    masked, full = (
        lower([Attention(1, 2, 2, 8192, 128, causal=causal, backend=backend)], h200).core_cycles[0]
        for causal in (True, False)
    )
    assert full == pytest.approx(masked, rel=0.03 if backend == "cudnn" else 1e-6)
    assert bool(full < masked) is (backend == "cudnn")


def test_without_a_mask_cudnns_forward_takes_whole_rounds(h200):
    """4,096 positions are 32 blocks of a head, all alike; a diagonal makes them uneven, and FlashAttention-2 splits."""
    sms = int(h200.sm_count)
    heads = np.array([sms // 4, sms // 4 + 1, sms // 2, 3 * (sms // 4)])  # 8, 8.2, 16 and 24 rounds
    cycles = (
        work(h200, heads=heads, kv_heads=1, causal=False).cycles - h200["kernel.attention.cudnn.forward.fixed_cycles"]
    )
    assert cycles / cycles[0] == pytest.approx(np.array([8, 9, 16, 24]) / 8)
    shares = work(h200, heads=heads, kv_heads=1, causal=False).busy_share
    assert shares[1] < shares[0] == pytest.approx(1.0, rel=0.01)
    masked = Attention(1, 32, 8, 4096, 128, causal=False, each_score="mask")
    assert lower([masked], h200).core_cycles[0] > 1.8 * cycles[0]


def test_four_heads_against_eight_as_measured(h200):
    """FlashAttention-2, 4,096 tokens. 128 blocks have an SM each on H200, but not on A100 (PCIe; SimuMax: 0.76)."""
    a100 = gpu_model(load_gpu("a100-pcie-80gb"))
    heads = {"heads": np.array([4, 8]), "kv_heads": 1, "backend": "flash-attention-2"}
    for gpu, back, measured in ((h200, False, 0.604), (h200, True, 0.626), (a100, True, 0.57)):
        four, eight = work(gpu, back=back, **heads).cycles
        assert four / eight == pytest.approx(measured, abs=0.1)
        assert gpu is a100 or four / eight == pytest.approx(measured, abs=0.03)
    (four, eight), (alone, together) = (work(gpu, **heads).cycles for gpu in (a100, h200))
    assert four / eight > alone / together + 0.1


@pytest.mark.parametrize("backend", ["cudnn", "flash-attention-2"])
@pytest.mark.parametrize("back", [False, True])
def test_more_heads_or_positions_never_take_less_time(h200, backend, back):
    splits = backend == "flash-attention-2" and not back  # by a rule with jumps, where there are few blocks
    sequences = {"heads": 4, "sequence": np.arange(64, 16384, 64)}
    for sizes in ({"heads": np.arange(4 if splits else 1, 200)}, *(() if splits else (sequences,))):
        assert np.all(np.diff(work(h200, kv_heads=1, backend=backend, back=back, **sizes).cycles) >= 0.0)


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("sequence", [4096, 16384])
def test_flash_attentions_own_package_beside_cudnn_as_published(back, sequence):
    """Shah et al., arXiv 2407.08608, figures 5 and 6: 319 of 518 and 335 of 539 TFLOP/s forward, 310 of 499 and 322 of
    516 backward, on H100 with heads of 128."""
    h100 = gpu_model(load_gpu("h100-sxm"))
    works = (
        work(h100, batch=16384 // sequence, heads=16, kv_heads=16, sequence=sequence, back=back, backend=name)
        for name in ("cudnn", "flash-attn-2", "flash-attention-2")
    )
    cudnn, package, pytorch = (one.cycles[0] / 1.7e9 + back * one.memory_s[0] for one in works)
    assert cudnn / package == pytest.approx(0.62, abs=0.02)
    assert package < 0.88 * pytorch


def test_energy_follows_the_executed_operations(h200):
    causal, full = lower([Attention(1, 32, 8, 4096, 128, causal=c) for c in (True, False)], h200).tensor_j
    assert 0.5 < causal / full < 0.6
    fewer, more = lower([Attention(b, 32, 8, 4096, 128) for b in (1, 3)], h200).tensor_j
    assert more == pytest.approx(3 * fewer)


def test_a_description_tells_the_energy_of_heads_of_128(h200):
    """Of long sequences, whose masked squares are few."""
    for direction in ("forward", "backward"):
        one = Attention(1, 32, 8, 65536, 128, direction=direction)
        per_flop = lower([one], h200).tensor_j[0] / one.flops * 1e12
        assert per_flop == pytest.approx(h200[f"power.attention_pj_per_flop.cudnn.{direction}"], rel=0.01)


def test_cudnn_under_transformer_engine_is_faster_where_there_is_cudnn():
    """On AMD's cards it stands for AITER's kernels, which Transformer Engine runs as they are."""
    for name, gain in (("h200-sxm", 1.12), ("b200", 1.12), ("mi300x", 1.0), ("mi210", 1.0), ("mi355x", 1.0)):
        gpu = gpu_model(load_gpu(name))
        alone, engine = (
            work(gpu, batch=2, kv_heads=32, sequence=8192, backend=backend).cycles[0]
            for backend in ("cudnn", "te-cudnn")
        )
        assert alone / engine == pytest.approx(gain, rel=0.01)


def test_cudnn_runs_heads_in_the_next_wider_kernel_that_it_has(h200):
    """Forward a head of 72 takes what one of 128 takes, of 144 what one of 192 takes; nothing of that is work done."""
    dims = np.array([48, 64, 72, 112, 128, 144, 192, 256])
    found = dict(zip(dims, work(h200, head_dim=dims).cycles, strict=True))
    assert found[48] == pytest.approx(found[64])
    assert found[72] == pytest.approx(found[112]) == pytest.approx(found[128])
    assert found[144] == pytest.approx(found[192])
    assert found[128] < found[192] < found[256]
    back = dict(zip(dims, work(h200, head_dim=dims, back=True).cycles, strict=True))
    assert 0.9 * back[128] < back[72] < back[112] < back[128]
    assert back[144] == pytest.approx(back[192])


def test_pytorchs_own_kernels_have_any_width(h200):
    dims = np.array([64, 72, 80, 96, 112, 128, 160, 192, 256])
    cycles = work(h200, head_dim=dims, backend="flash-attention-2").cycles
    assert cycles[1:4] == pytest.approx(cycles[3]) and cycles[4:6] == pytest.approx(cycles[5])
    assert cycles[6:8] == pytest.approx(cycles[7])
    assert np.all(np.diff(cycles[[0, 3, 5, 7, 8]]) > 0)


def test_padding_takes_energy_but_less_than_work(h200):
    """Products with zeros: the energy of a head of 96 lies between three quarters of one of 128 and all of it."""
    narrow, full = (lower([Attention(2, 32, 32, 4096, head_dim)], h200).tensor_j[0] for head_dim in (96, 128))
    assert 0.8 < narrow / full < 0.95


def test_heads_whose_values_are_narrower_are_not_padded(h200):
    """Latent attention: keys of 192, values of 128, stated as their mean."""
    equal, latent = work(h200, head_dim=160, value_dim=np.array([0, 128]), back=True).cycles
    assert latent < 0.75 * equal


def test_backwards_multiply_keys_thrice_and_values_twice(h200):
    """Latent attention: of five products three are 192 wide and two 128."""
    forward, backward = (Attention(2, 8, 8, 1024, 160, direction=d, value_dim=128) for d in ("forward", "backward"))
    assert backward.flops / forward.flops == pytest.approx((3 * 192 + 2 * 128) / (192 + 128))
    alike = work(h200, head_dim=128, back=True).cycles * (3 * 192 + 2 * 128) / (5 * 128)
    assert work(h200, head_dim=160, value_dim=128, back=True).cycles == pytest.approx(1.14 * alike, rel=0.01)


@pytest.mark.parametrize("back", [False, True])
def test_what_kernels_execute_has_the_widths_of_what_is_counted(h200, back, monkeypatch):
    """One rule of keys wider than values: where it changes, operations and cycles of products change alike."""

    def found():
        operator = Attention(
            2, 8, 8, 4096, 160, causal=False, direction="backward" if back else "forward", value_dim=128
        )
        return operator.flops, work(
            h200, head_dim=160, value_dim=128, causal=0, sequence=4096, back=back
        ).executed_flops

    before = found()

    def doubled(mean, values, *, backward):
        return 2.0 * products_width(mean, values, backward=backward)

    for module in ("operators", "attention"):
        monkeypatch.setattr(f"joulecast.model.kernels.{module}.products_width", doubled)
    flops, executed = found()
    assert flops == 2.0 * before[0]
    assert executed == pytest.approx(2.0 * before[1])
