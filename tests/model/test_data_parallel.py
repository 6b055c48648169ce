"""Buckets of gradients: what fills one, to the byte, and who waits for it."""

from __future__ import annotations

import pytest

from joulecast.errors import InputError
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch, collective
from joulecast.model.kernels.operators import Gemm
from joulecast.model.training.data_parallel import gradient_reduction, is_bucket, overlapped_gradient_reduction
from joulecast.model.training.parameters import ParameterTensor

EAGER, MEGATRON = Implementation(), Implementation("megatron")
MIB = 1024 * 1024


def buckets(sizes: list[int], run: Implementation, bucket_bytes: float | None = None) -> list[int]:
    """Bytes of each bucket when gradients of so many elements are finished one after another."""
    done = [Launch(Gemm(1, 1, 1), completes=f"p{i}") for i in range(len(sizes))]
    elements = {f"p{i}": size for i, size in enumerate(sizes)}
    launches = overlapped_gradient_reduction(done, elements, run, 4, bucket_bytes)
    return [int(x.operator.bytes) for x in launches if is_bucket(x)]


def test_the_first_bucket_is_full_at_one_mebibyte_and_others_at_25():
    one, small = MIB // 2, 1000
    assert buckets([one, 25 * one, small], EAGER) == [MIB, 25 * MIB, 2000]
    assert buckets([one - 1, 1, 25 * one - 1, 1, small], EAGER) == [MIB, 25 * MIB, 2000]
    assert buckets([one - 1, small, small], EAGER) == [MIB - 2 + 2000, 2000]
    assert buckets([one, 25 * one - 1, small], EAGER) == [MIB, 25 * MIB - 2 + 2000]


def test_a_smaller_size_of_buckets_holds_for_the_first_too():
    assert buckets([250, 250, 499, 1, 500], EAGER, 1000.0) == [1000, 1000, 1000]
    assert buckets([MIB // 2] * 3, EAGER, 2.0 * MIB) == [MIB, 2 * MIB]


def test_megatrons_buckets_hold_40_million_gradients_in_fp32():
    assert buckets([40_000_000, 39_999_999, 1, 5], MEGATRON) == [160_000_000, 160_000_000, 20]


def test_after_the_backward_a_bucket_of_exactly_the_size_is_full():
    parameters = [ParameterTensor(name, size) for name, size in (("a", 500), ("b", 499), ("c", 1), ("d", 7))]
    found = gradient_reduction(parameters, EAGER, 2, 1000.0)
    assert [(x.operator.name, x.operator.bytes) for x in found] == [
        ("a.all_reduce", 1000.0), ("b.all_reduce", 1000.0), ("d.all_reduce", 14.0),
    ]  # fmt: skip
    assert all(x.waits for x in found)


def test_only_the_last_bucket_is_waited_for_at_the_end():
    done = [Launch(Gemm(1, 1, 1), completes=name) for name in ("a", "b", "c")]
    launches = overlapped_gradient_reduction(done, dict.fromkeys("abc", MIB), MEGATRON, 2, 4.0 * MIB)
    assert [x.waits for x in launches if is_bucket(x)] == [False, False, True]


def test_a_layer_waits_for_its_own_communication_not_for_the_buckets_behind_it():
    """On the stream: the layer's first, a bucket, the layer's second, a bucket; then a kernel that needs the first."""
    own = [collective("all_reduce", f"own{i}", 1e6, EAGER, waits=False) for i in range(2)]
    product = Launch(Gemm(1, 1, 1), completes="p")
    needs = [Launch(Gemm(1, 1, 1), waits=True, outstanding=outstanding) for outstanding in (1, 0, 2)]
    launches = overlapped_gradient_reduction([own[0], product, own[1], product, *needs], {"p": MIB}, MEGATRON, 2, 1.0)
    assert [x.operator.name.partition(".")[0] for x in launches if x.stream == "communication"] == [
        "own0", "bucket0", "own1", "bucket1",
    ]  # fmt: skip
    # Three may be outstanding behind the first, one behind the second, and all four where none is needed.
    assert [x.outstanding for x in launches if x.stream == "compute" and x.waits] == [3, 1, 4]


def test_a_gradient_of_unknown_size_is_named():
    with pytest.raises(InputError, match="'p'"):
        overlapped_gradient_reduction([Launch(Gemm(1, 1, 1), completes="p")], {}, EAGER, 2)
