"""Rotary embedding and head norms as eager code runs them: which kernels, on how many bytes."""

from dataclasses import replace

import pytest

from joulecast.model.architecture.hf import load_model
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.layer_shard import shard
from joulecast.model.transformer.rotary import head_norm_backward, head_norm_forward, rotary_backward, rotary_forward

TOKENS, DIM = 2 * 1024, 128


def sharded(model="llama-3.1-8b", tensor_parallel=4, **config):
    return shard(replace(load_model(model), **config), Implementation(tensor_parallel=tensor_parallel), 2, 1024)


def moved(launches):
    """Elements in and out by the kernel's name without its part."""
    return {x.operator.name: (x.operator.bytes_read / 2, x.operator.bytes_written / 2) for x in launches}


def test_queries_and_keys_are_rotated_by_five_kernels_each():
    found = moved(rotary_forward(sharded()))
    query, key = TOKENS * 8 * DIM, TOKENS * 2 * DIM
    expected = {
        f"rotary.{part}.{name}": (reads * n, n * writes)
        for part, n in (("query", query), ("key", key))
        for name, reads, writes in (
            ("cos", 1, 1), ("neg", 0.5, 0.5), ("cat", 1, 1), ("sin", 1, 1), ("add", 2, 1),
        )
    }  # fmt: skip
    assert found == expected
    assert next(iter(found)) == "rotary.query.cos"


def test_the_backward_fills_halves_with_zeros_and_undoes_the_heads():
    found = moved(rotary_backward(sharded()))
    n = TOKENS * 2 * DIM
    assert found["rotary.key.grad.slice1.fill"] == found["rotary.key.grad.slice2.fill"] == (0, n)
    assert found["rotary.key.grad.slice1.copy"] == (n / 2, n / 2)
    assert found["rotary.key.grad.slices"] == found["rotary.key.grad.add"] == (2 * n, n)
    assert found["rotary.key.grad.clone"] == (n, n)
    assert next(iter(found)) == "rotary.key.grad.sin"  # keys first: the reverse of the forward
    assert len(found) == 2 * 10


def test_heads_that_are_rotated_in_part_are_put_together_again():
    forward, backward = rotary_forward(sharded(rotary_fraction=0.25)), rotary_backward(sharded(rotary_fraction=0.25))
    n = TOKENS * 8 * DIM
    assert moved(forward)["rotary.query.cos"] == (n / 4, n / 4)
    assert moved(forward)["rotary.query.pass"] == (n, n) == moved(backward)["rotary.query.grad.pass"]


def test_no_rotation_no_kernels():
    assert rotary_forward(sharded("gpt3-175b")) == rotary_backward(sharded("gpt3-175b")) == ()
    assert head_norm_forward(sharded()) == head_norm_backward(sharded(), accumulate=False) == ()


@pytest.mark.parametrize("accumulate", [True, False])
def test_every_head_is_normed(accumulate):
    s = sharded(qk_norm=True)
    rows = {"query": TOKENS * 8, "key": TOKENS * 2}
    forward = moved(head_norm_forward(s))
    assert forward["query_norm.copy"] == forward["query_norm"] == (rows["query"] * DIM,) * 2
    assert {x.operator.rows for x in head_norm_forward(s) if x.operator.name == "key_norm"} == {rows["key"]}
    launches = head_norm_backward(s, accumulate)
    backward = moved(launches)
    n = rows["key"] * DIM
    assert backward["key_norm.grad"] == (2 * n, n)
    assert backward["key_norm.gamma.grad"] == (2 * n, pytest.approx(DIM))
    assert next(iter(backward)).startswith("key")
    completed = [(x.operator.name, x.completes) for x in launches if x.completes]
    last = "weight.accumulate" if accumulate else "gamma.grad"
    assert completed == [(f"{part}_norm.{last}", f"{part}_norm.weight") for part in ("key", "query")]
    if accumulate:
        assert backward["key_norm.weight.accumulate"] == (2 * DIM, DIM)
