"""Blocks on an SM, waves and traffic of kernels with explicit tiles."""

import pytest

import joulecast as jc


@pytest.fixture(scope="module")
def gpu():
    return jc.gpu("h200-sxm")


def test_products(gpu):
    """Shared memory and registers as Triton 3.6 compiles this tile: 147,456 bytes, 206 registers, no spills."""
    use = gpu.tile_use(jc.Gemm(4096, 4096, 4096, tile=jc.Tile(128, 256, 64, 8, 3)))
    assert use.blocks == 32 * 16
    assert use.shared_bytes == 147_456
    assert use.registers == pytest.approx(206, rel=0.15) and use.spilled_registers == 0
    assert use.resident_blocks == 1
    assert use.waves == pytest.approx(512 / 132)
    assert use.occupancy == pytest.approx(256 / 2048)
    assert use.l2_bytes == 512 * (128 + 256) * 4096 * 2 == use.near_bytes
    assert 3 * 4096 * 4096 * 2 < use.hbm_bytes < 0.2 * use.l2_bytes, "tiles at work share stripes of operands"


def test_splits_write_partial_sums_and_unstaged_operands_are_loaded_again(gpu):
    product = jc.Gemm(1024, 1024, 8192, tile=jc.Tile(128, 128, 64, 8, 3))
    whole = gpu.tile_use(product)
    split = gpu.tile_use(jc.Gemm(1024, 1024, 8192, tile=jc.Tile(128, 128, 64, 8, 3, split_k=4)))
    assert split.blocks == 4 * whole.blocks
    assert split.l2_bytes - whole.l2_bytes == 4 * 8 * 1024 * 1024
    own = gpu.tile_use(jc.Gemm(1024, 1024, 8192, tile=jc.Tile(128, 128, 64, 8, 3, staged=False)))
    assert own.near_bytes > 2 * whole.near_bytes and own.shared_bytes == 0


def test_attention(gpu):
    """Compiled: 81,920 bytes of shared memory and 181 registers."""
    attention = jc.Attention(2, 16, 16, 4096, 128, tile=jc.Tile(64, 64, warps=4, stages=2))
    use = gpu.tile_use(attention)
    assert use.blocks == 2 * 16 * 64
    assert use.shared_bytes == 81_920
    assert use.registers == pytest.approx(181, rel=0.15)
    large = gpu.tile_use(jc.Attention(2, 16, 16, 4096, 128, tile=jc.Tile(128, 64, warps=8, stages=2)))
    assert large.l2_bytes < 0.6 * use.l2_bytes, "keys and values are read by half as many blocks"


def test_a_batch_is_so_many_times_the_tiles(gpu):
    tile = jc.Tile(128, 128, 64, 8, 3)
    one, five = (gpu.tile_use(jc.Gemm(1000, 1000, 512, batch=batch, tile=tile)) for batch in (1, 5))
    assert (one.blocks, five.blocks) == (64, 320)
    assert one.l2_bytes == 64 * 256 * 512 * 2 and five.l2_bytes == 5 * one.l2_bytes


def test_attention_reads_keys_for_every_block_and_its_own_queries_once(gpu):
    tile = jc.Tile(64, 64, warps=4, stages=2)
    use = gpu.tile_use(jc.Attention(2, 16, 16, 4096, 128, causal=False, tile=tile))
    row = 128 * 2
    assert use.near_bytes == 32 * 64 * 64 * (2 * 64 * row)  # heads, blocks, steps, keys and values
    assert use.l2_bytes - use.near_bytes == 32 * 2 * 4096 * row  # queries and results


def test_rows(gpu):
    """Compiled for one row a warp: 228 registers; for two: 255 and 112 spilled."""
    rows = jc.Streaming("rmsnorm", 5e8, 5e8, elements=2.5e8, rows=61_036, columns=4096)
    one, two = (gpu.tile_use(rows.with_tile(jc.RowTile(r, warps=1))) for r in (1, 2))
    assert one.registers == pytest.approx(228, rel=0.15) and one.spilled_registers == 0
    assert two.spilled_registers == pytest.approx(112, rel=0.3)
    assert one.hbm_bytes == pytest.approx(1e9)
    assert one.resident_blocks in (8, 9), "the registers that it really has leave room for 8"


def test_without_a_tile_there_is_nothing_to_tell(gpu):
    with pytest.raises(jc.InputError, match="no explicit tile"):
        gpu.tile_use(jc.Gemm(64, 64, 64))
