"""Documents in one sequence: pairs and blocks counted by hand and one by one, and what kernels take for them."""

import math
from dataclasses import replace

import numpy as np
import pytest

import joulecast as jc
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.documents import Documents, gathered
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Attention
from joulecast.simulator.traces.operator_text import operator_text

SEQUENCE = 8192
GPU = jc.gpu("h200-sxm")


def of(*lengths):
    return gathered(np.array(lengths, dtype=float), np.ones(len(lengths)))


def squares_one_by_one(lengths, size, window=10**6):
    """Squares of a grid over the whole sequence that hold a pair of positions of one document."""
    document, position = np.repeat(np.arange(len(lengths)), lengths), np.arange(sum(lengths))
    behind = np.subtract.outer(position, position)
    seen = (document[:, None] == document) & (behind >= 0) & (behind < window)
    return int(seen.reshape(len(seen) // size, size, -1, size).any(axis=(1, 3)).sum())


def test_pairs_and_blocks_of_three_documents_by_hand():
    # In steps of 64 keys the three blocks of 300 tokens take 2, 4 and 5, those of 128 and of 84 take 2 each.
    found = of(300, 128, 84)
    blocks = found.blocks(128)
    assert (blocks.queries, blocks.squares, blocks.longest, blocks.more) == (4.0, 7.5, 3.0, 300 / 128)
    assert found.pairs() == (300**2 + 128**2 + 84**2) / 2
    kernel = Attention(2, 4, 1, 512, 64, documents=found)
    assert kernel.flops == 2 * 2 * 4 * 2 * 64 * found.pairs()


def test_a_backward_has_five_products_of_these_pairs():
    forward, backward = (
        Attention(1, 8, 8, 512, 128, direction=way, documents=of(300, 212)) for way in ("forward", "backward")
    )
    assert backward.flops == 2.5 * forward.flops


def test_documents_of_whole_blocks_lie_on_the_grid():
    found = of(256, 384, 128)
    assert found.grid(128) == replace(found.blocks(128), more=0.0)
    assert found.grid(128).squares == squares_one_by_one([256, 384, 128], 128)


def test_squares_of_a_grid_are_the_mean_over_where_documents_begin():
    lengths, size = [200, 70, 330, 90, 36, 600, 45, 165], 32
    generator = np.random.default_rng(3)
    drawn = [generator.permutation(lengths) for _ in range(200)]
    mean = np.mean([squares_one_by_one(one, size) for one in drawn])
    assert of(*lengths).grid(size).squares == pytest.approx(mean, rel=0.01)


def test_the_longest_block_is_the_mean_over_sequences():
    # One sequence in ten has a document of 1,024, the others one of 512.
    assert Documents(((128.0, 4.2), (512.0, 0.9), (1024.0, 0.1))).blocks(128).longest == pytest.approx(
        0.1 * 8 + 0.9 * 4
    )
    assert of(1024, 512, 512).blocks(128).longest == 8.0


def test_gathered_lengths_keep_pairs_and_blocks():
    lengths = np.random.default_rng(0).integers(1, 3000, 500)
    found = of(*lengths)
    assert len(found.pieces) <= 3000 / 64 + 1
    assert 2 * found.pairs() == pytest.approx(sum(int(length) ** 2 for length in lengths))
    steps = sum(math.ceil(min(n, 128 * i) / 64) for n in lengths for i in range(1, math.ceil(n / 128) + 1))
    assert found.blocks(128).squares == pytest.approx(steps / 2)


@pytest.mark.parametrize("window", [1, 60, 128, 200, 299, 5000])
def test_pairs_in_a_window_are_those_counted_one_by_one(window):
    lengths = [300, 128, 84]
    counted = sum(min(position + 0.5, window) for length in lengths for position in range(length))  # half of its own
    assert of(*lengths).pairs(window) == pytest.approx(counted)


def test_blocks_in_a_window_by_hand():
    # Blocks of 1,000 tokens begin at 0, 128, …; in a window of 256 keys the third begins at key 1, the fourth at 129.
    blocks = of(1000).blocks(128, 256)
    assert (blocks.queries, blocks.longest) == (1000 / 128, 3.0)
    assert blocks.squares == 1 + 2 + 3 * 5 + 2.85 // 0.5 * 0.5 + 0.5  # the last block: keys 641 to 999, from step 10 on
    assert of(1000).blocks(128, 1000) == of(1000).blocks(128)


@pytest.mark.parametrize("window", [20, 33, 100, 256])
def test_squares_of_a_grid_in_a_window(window):
    lengths, size = [200, 70, 330, 90, 36, 600, 45, 165], 32
    generator = np.random.default_rng(3)
    drawn = [generator.permutation(lengths) for _ in range(200)]
    mean = np.mean([squares_one_by_one(one, size, window) for one in drawn])
    assert of(*lengths).grid(size, window).squares == pytest.approx(mean, rel=0.02)
    assert of(256, 384, 128).grid(32, window).squares == squares_one_by_one([256, 384, 128], 32, window)


def test_one_document_in_a_window_is_a_sequence_in_a_window():
    for direction in ("forward", "backward"):
        whole = Attention(1, 32, 8, 8192, 128, backend="flash-attention-2", direction=direction, window=1024)
        one = replace(whole, documents=of(8192))
        assert one.flops == whole.flops
        assert lower([one], gpu_model(GPU.description)).core_cycles == pytest.approx(
            lower([whole], gpu_model(GPU.description)).core_cycles, rel=0.15
        )


@pytest.mark.parametrize("backend", ["flash-attention-2", "flash-attn-2", "cudnn", "te-cudnn", "flex"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_shorter_documents_take_less_but_never_nothing(backend, direction):
    def forecast(documents):
        return GPU.predict(
            Attention(1, 32, 8, SEQUENCE, 128, backend=backend, direction=direction, documents=documents),
            clock_mhz=1500,
        )

    found = [forecast(of(*[length] * (SEQUENCE // length))) for length in (128, 512, 2048, 4096)]
    times = [one.time_s for one in found]
    assert times == sorted(times)
    assert [one.energy_j for one in found] == sorted(one.energy_j for one in found)
    assert times[-1] < forecast(None).time_s
    # Blocks of queries begin and end, whatever they have to do.
    assert times[0] > forecast(None).time_s * 128 / SEQUENCE


def test_short_documents_lose_the_rest_of_their_blocks():
    # Of one host an H200 took 103.7, 105.7 and 122.3 us for 8,192 positions in documents of 128, 64 and 96.
    times = [
        GPU.predict(
            Attention(1, 32, 8, 6144, 128, backend="flash-attention-2", documents=of(*[length] * (6144 // length))),
            clock_mhz=1500,
        ).time_s
        for length in (128, 64, 96)
    ]
    assert times[1] / times[0] == pytest.approx(105.7 / 103.7, abs=0.03)
    assert times[2] / times[0] == pytest.approx(122.3 / 103.7, abs=0.05)


def test_kernels_with_and_without_documents_are_forecast_together():
    plain = Attention(1, 32, 8, SEQUENCE, 128, backend="flash-attention-2")
    apart = Attention(1, 32, 8, SEQUENCE, 128, backend="flash-attention-2", documents=of(*[1024] * 8))
    model = gpu_model(GPU.description)
    both = lower([plain, apart], model).core_cycles
    assert both.tolist() == [lower([one], model).core_cycles[0] for one in (plain, apart)]


def test_a_rank_with_more_to_do_has_more_documents():
    mean = Documents(((1000.0, 3.0), (2000.0, 1.0)))
    most = replace(mean, load=1.5)
    assert most.pairs() == 1.5 * mean.pairs()
    for blocks in ("blocks", "grid"):
        found, usual = getattr(most, blocks)(128), getattr(mean, blocks)(128)
        assert (found.squares, found.queries) == (1.5 * usual.squares, usual.queries)
    assert most.pairs(256) == mean.pairs(256)
    assert most.grid(128, 256) == mean.grid(128, 256)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"documents": ((512.0, 2.0),)}, "documents"),
        ({"documents": Documents(())}, "documents"),
        ({"documents": Documents(((2048.0, 1.0),))}, "documents"),
        ({"documents": Documents(((256.0, 1.0), (2048.0, 0.1)))}, "documents"),
        ({"documents": Documents(((512.0, 2.1),))}, "documents"),
        ({"documents": Documents(((256.0, 0.0), (512.0, 1.0)))}, "documents"),
        ({"documents": Documents(((0.0, 1.0), (512.0, 1.0)))}, "documents"),
        ({"documents": Documents(((512.0, 2.0),)), "tile": jc.Tile(128, 64)}, "tile"),
        ({"documents": Documents(((512.0, 2.0),)), "causal": False}, "documents"),
    ],
)
def test_documents_that_no_kernel_has_are_refused(options, key):
    with pytest.raises(jc.InputError) as refused:
        GPU.predict(jc.Attention(1, 8, 8, 1024, 128, backend="flash-attention-2", **options))
    assert refused.value.key == key


def test_a_trace_tells_documents_of_few_lengths():
    few = jc.Attention(1, 8, 8, 1024, 128, documents=jc.Documents(((512.0, 2.0),)))
    again = eval(operator_text(few), {"Attention": jc.Attention, "Documents": jc.Documents})
    assert again == few
    many = Documents(tuple((float(length), 1.0) for length in range(1, 40)))
    assert "documents" not in operator_text(replace(few, documents=many))


def test_flex_attention_runs_in_tiles_of_powers_of_two(h200):
    """Heads of 80 and 96 take what 128 does, those of 64 less."""
    times = {d: time_of_flex(d, h200) for d in (64, 80, 96, 128)}
    assert times[80] == pytest.approx(times[128], rel=0.05) and times[96] == pytest.approx(times[128], rel=0.05)
    assert times[64] < 0.75 * times[128]


def time_of_flex(head_dim, gpu):
    one = Attention(1, 16, 16, 8192, head_dim, backend="flex")
    return lower([one], gpu).core_cycles[0]
