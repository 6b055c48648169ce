"""Equal shares of launches add up to the whole, in work and in shape."""

import pytest

from joulecast.errors import InputError
from joulecast.model.framework.launch_shares import shares
from joulecast.model.framework.launches import Launch, streaming
from joulecast.model.kernels.operators import Attention, Collective, Gemm


def share(operator, count=2):
    (found,) = shares((Launch(operator),), count)
    assert found.share == count
    return found.operator


def test_a_product_has_a_share_of_its_rows():
    half = share(Gemm(4096, 512, 256))
    assert (half.m, half.n, half.k, half.parts) == (2048, 512, 256, 2)
    assert share(Gemm(1, 512, 256)).m == 1


def test_attention_is_shared_by_sequences_or_else_by_heads():
    whole = Attention(4, 32, 8, 2048, 128)
    assert (share(whole).batch, share(whole).heads, share(whole).kv_heads) == (2, 32, 8)
    one = Attention(1, 32, 8, 2048, 128)
    assert (share(one).batch, share(one).heads, share(one).kv_heads) == (1, 16, 4)
    assert share(Attention(1, 32, 1, 2048, 128)).kv_heads == 1
    with pytest.raises(InputError, match="7 attention heads of 1 sequences cannot be shared by 2"):
        share(Attention(1, 7, 7, 2048, 128))


def test_bytes_elements_and_rows_are_halved():
    whole = streaming("rmsnorm", "norm", 4096 * 64, dtype="bf16", rows=64, columns=4096).operator
    half = share(whole)
    assert (half.bytes_read, half.bytes_written) == (whole.bytes_read / 2, whole.bytes_written / 2)
    assert (half.elements, half.rows, half.columns) == (whole.elements / 2, 32, 4096)
    quarter = share(Collective("all_reduce", 1e6, 4, rows=8.0), 4)
    assert (quarter.bytes, quarter.rows) == (0.25e6, 2.0)


def test_equal_launches_stay_the_same_object():
    launch = Launch(Gemm(4096, 512, 256))
    first, other, last = shares((launch, Launch(Gemm(8, 8, 8)), launch), 2)
    assert first is last is not other
