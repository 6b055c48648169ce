"""Parts of a micro-batch taking turns: the order, what waits for what, and that no work is lost or made."""

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.model.architecture.hf import load_model
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch
from joulecast.model.kernels.operators import Collective, Gemm
from joulecast.model.training import step
from joulecast.model.training.data_parallel import gradient_sizes, overlapped_gradient_reduction
from joulecast.model.training.nanobatches import (
    Nanobatches,
    Window,
    layers_backward,
    layers_forward,
    operators_of_half,
    take_turns,
)
from joulecast.model.training.pipeline_stage import split_backward

LLAMA, GPT, QWEN = (replace(load_model(name), layers=3) for name in ("llama-3.1-8b", "gpt3-175b", "qwen3-8b"))
EVERY = list(product(("pytorch-eager", "megatron"), (False, True), ("none", "selective", "full")))


def compute(name: str, **how: object) -> Launch:
    return Launch(Gemm(64, 64, 64, name=name), **how)


def communicate(name: str, **how: object) -> Launch:
    return Launch(Collective("all_reduce", 1e6, 2, name=name), "communication", **how)


def words(launches: tuple[Launch, ...]) -> str:
    """Names in order; ``~`` before a communication, ``name<2`` for a kernel that waits for all but two of them."""
    return " ".join(
        ("~" if one.stream == "communication" else "")
        + one.operator.name
        + (f"<{one.outstanding}" if one.waits else "")
        for one in launches
    )


LAYER = (
    compute("norm1"), compute("qkv"), compute("attention"), compute("output"), communicate("R", waits=True),
    compute("residual1"), compute("up"), compute("down"), communicate("S", waits=True), compute("residual2"),
)  # fmt: skip


def test_each_part_communicates_beside_the_next_across_the_borders_of_layers():
    assert words(take_turns(LAYER * 2, Nanobatches(2))) == (
        "norm1 qkv attention output ~R norm1 qkv attention output ~R "
        "residual1<1 up down ~S residual1<1 up down ~S "
        "residual2<1 norm1 qkv attention output ~R residual2<1 norm1 qkv attention output ~R "
        "residual1<1 up down ~S residual1<1 up down ~S residual2<1 residual2<0"
    )


def test_three_parts_leave_two_communications_outstanding():
    assert words(take_turns(LAYER[:6], Nanobatches(3))) == (
        "norm1 qkv attention output ~R norm1 qkv attention output ~R norm1 qkv attention output ~R "
        "residual1<2 residual1<1 residual1<0"
    )


def test_a_window_begins_with_the_communication_and_ends_with_waiting_for_it():
    windows = (Window("attention", ("qkv", "attention")), Window("mlp", ("residual1", "up")))
    launches = take_turns(LAYER, Nanobatches(2, windows, "window"))
    assert words(launches) == (
        "norm1 qkv attention output norm1 ~R qkv attention output<0 ~R "
        "residual1 up down<0 ~S residual1 up down<0 ~S residual2 residual2<0"
    )


def test_communication_as_soon_as_possible_still_ends_with_its_window():
    launches = take_turns(LAYER, Nanobatches(2, (Window("attention", ("qkv",)),), "asap"))
    assert words(launches).startswith("norm1 qkv attention output ~R norm1 qkv attention<0 output ~R residual1 up")


def test_communication_of_a_window_that_ends_a_block_holds_up_the_next():
    launches = take_turns(LAYER[:-1], Nanobatches(2, (Window("mlp", ("down",)),), "window"))
    assert words(launches) == (
        "norm1 qkv attention output ~R norm1 qkv attention output residual1<0 up ~R down residual1<0 up ~S down ~S"
    )


def test_asynchronous_communication_within_a_part_stays_where_it_is():
    part = (compute("dgrad"), communicate("R"), compute("wgrad"), compute("norm", waits=True))
    assert words(take_turns(part, Nanobatches(2))) == "dgrad ~R wgrad dgrad ~R wgrad norm<1 norm<0"


def test_one_part_runs_as_before():
    arguments = (LLAMA, Implementation(tensor_parallel=2), 4, 4096)
    assert layers_forward(*arguments, 3, Nanobatches()) == step.layer_forward(*arguments) * 3
    assert layers_backward(*arguments, 3, Nanobatches()) == step.layer_backward(*arguments) * 3


def test_the_parts_outputs_are_copied_together_once_all_are_there():
    implementation = Implementation(tensor_parallel=2)
    for build, name in ((layers_forward, "parts.cat"), (layers_backward, "parts.grad.cat")):
        *_, last = build(LLAMA, implementation, 4, 1024, 2, Nanobatches(2))
        assert last.operator.name == name and last.waits
        assert last.operator.bytes_read == last.operator.bytes_written == 4 * 1024 * LLAMA.hidden * 2


@pytest.mark.parametrize(("framework", "sequence_parallel", "recompute"), EVERY)
def test_work_and_communication_are_those_of_the_whole_micro_batch(framework, sequence_parallel, recompute):
    implementation = Implementation(
        framework=framework, tensor_parallel=4, sequence_parallel=sequence_parallel, recompute=recompute
    )
    for config, build in product((LLAMA, GPT), (layers_forward, layers_backward)):
        plain = build(config, implementation, 4, 2048, 3, Nanobatches())
        for parts in (2, 4):
            cut = build(config, implementation, 4, 2048, 3, Nanobatches(parts))
            assert flops(cut) == pytest.approx(flops(plain), rel=1e-12)
            assert communicated_bytes(cut) == pytest.approx(communicated_bytes(plain), rel=1e-12)
            assert accumulations(cut) == {name: parts * count for name, count in accumulations(plain).items()}
            assert Counter(one.completes for one in cut if one.completes) == Counter(
                one.completes for one in plain if one.completes
            )
            assert not any(one.waits for one in cut if one.stream == "communication")


def flops(launches: tuple[Launch, ...]) -> float:
    return sum(getattr(one.operator, "flops", 0.0) * one.repeat for one in launches)


def communicated_bytes(launches: tuple[Launch, ...]) -> float:
    return sum(one.operator.bytes for one in launches if isinstance(one.operator, Collective))


def accumulations(launches: tuple[Launch, ...]) -> Counter[str]:
    return Counter(one.operator.name for one in launches if one.operator.name.endswith(("accumulate", "wgrad")))


def needs(part: list[Launch]) -> dict[int, int]:
    """Communication, by place in the part, that each kernel needs: what the one stream of a part would wait for."""
    found, communications, due = {}, [], -1
    for at, one in enumerate(part):
        if one.stream == "communication":
            communications.append(at)
            due = at if one.waits else due
        else:
            explicit = (
                communications[-1 - one.outstanding] if one.waits and len(communications) > one.outstanding else -1
            )
            due = max(due, explicit)
            found[at] = due
    return found


def check_order(part: list[Launch], launches: tuple[Launch, ...], parts: int) -> None:
    """Every kernel of every part runs once, in its part's order, and after the communication that it needs.

    The places of a part are told apart by their operators' names, its parts by the order of the blocks.
    """
    where = {one.operator.name: at for at, one in enumerate(part)}
    seen: Counter[int] = Counter()
    communications: list[tuple[int, int]] = []
    waited = -1
    done: list[list[int]] = [[] for _ in range(parts)]
    wanted = needs(part)
    for one in launches:
        at = where[one.operator.name]
        number = seen[at]
        seen[at] += 1
        if one.stream == "communication":
            communications.append((at, number))
            before = [p for p in range(at) if part[p].stream == "compute"]
            assert set(before) <= set(done[number]), "its input is not ready"
            continue
        done[number].append(at)
        if one.waits:
            waited = max(waited, len(communications) - 1 - one.outstanding)
        if wanted[at] >= 0:
            assert (wanted[at], number) in communications[: waited + 1], "a kernel starts without what it needs"
    assert set(seen.values()) == {parts} and set(seen) == set(where.values())
    kernels = [at for at, one in enumerate(part) if one.stream == "compute"]
    assert all(order == kernels for order in done)


OPERATORS = ("norm1", "qkv", "output", "residual1", "up", "down")


@st.composite
def some_part(draw: st.DrawFn) -> list[Launch]:
    part, communications = [], 0
    for at in range(draw(st.integers(1, 14))):
        name = f"{draw(st.sampled_from(OPERATORS))}.{at}"
        if draw(st.booleans()) and at:
            part.append(communicate(name, waits=draw(st.booleans())))
            communications += 1
        else:
            waits = draw(st.booleans()) and communications > 0
            part.append(compute(name, waits=waits, outstanding=draw(st.integers(0, 2)) if waits else 0))
    return part


@st.composite
def some_cut(draw: st.DrawFn) -> Nanobatches:
    windows = []
    for half, names in (("attention", OPERATORS[:3]), ("mlp", OPERATORS[3:])):
        first, last = sorted((draw(st.integers(0, 2)), draw(st.integers(0, 2))))
        if draw(st.booleans()):
            windows.append(Window(half, names[first : last + 1]))
    return Nanobatches(draw(st.integers(2, 4)), tuple(windows), draw(st.sampled_from(("asap", "window"))))


@settings(derandomize=True, deadline=None, max_examples=400, database=None)
@given(some_part(), some_cut())
def test_no_kernel_starts_before_what_it_needs(part, cut):
    check_order(part, take_turns(part, cut), cut.parts)


@pytest.mark.parametrize(("framework", "sequence_parallel", "recompute"), EVERY)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_real_layers_keep_their_order(framework, sequence_parallel, recompute, direction):
    implementation = Implementation(
        framework=framework, tensor_parallel=4, sequence_parallel=sequence_parallel, recompute=recompute
    )
    build = step.layer_forward if direction == "forward" else step.layer_backward
    stack = build(QWEN, implementation, 1, 2048) * 2
    part = [
        replace(one, operator=replace(one.operator, name=f"{one.operator.name}.{i}")) for i, one in enumerate(stack)
    ]
    windows = (Window("attention", ("rotary", "attention")), Window("mlp", ("up", "gate")))
    for cut in (Nanobatches(2), Nanobatches(3), Nanobatches(2, windows, "window"), Nanobatches(2, windows, "asap")):
        check_order(part, take_turns(part, cut), cut.parts)


def test_a_split_backward_hands_the_waiting_of_moved_kernels_on():
    implementation = Implementation(tensor_parallel=2, sequence_parallel=True)
    whole = layers_backward(LLAMA, implementation, 2, 2048, 2, Nanobatches(2))
    inputs, weights = split_backward(whole)
    assert flops(inputs) + flops(weights) == pytest.approx(flops(whole), rel=1e-12)
    assert not any(one.waits for one in weights)
    # The product of the first part's gradient waits for the gathering of the first part, not of the second.
    assert words(inputs).startswith("~down.grad.all_gather ~down.grad.all_gather down.dgrad<1")


@pytest.mark.parametrize(("framework", "sequence_parallel", "recompute"), EVERY)
def test_buckets_of_gradients_leave_each_kernel_waiting_for_its_own(framework, sequence_parallel, recompute):
    implementation = Implementation(
        framework=framework, tensor_parallel=2, sequence_parallel=sequence_parallel, recompute=recompute
    )
    plain = layers_backward(LLAMA, implementation, 2, 2048, 3, Nanobatches(2))
    sizes = gradient_sizes(LLAMA, implementation)
    reduced = overlapped_gradient_reduction(plain, sizes, implementation, 2, 30e6)
    assert sum(one.operator.name.startswith("bucket") for one in reduced) > 5
    assert awaited(reduced) == awaited(plain)


def awaited(launches: tuple[Launch, ...]) -> list[tuple[str, int]]:
    """Kernels that wait, and for which of the layers' communications, but for those whose wait is over already."""
    found: list[tuple[str, int]] = []
    # Numbers among the layers' communications, 0 before the first; of a bucket its last one's.
    communications: list[int] = []
    for one in launches:
        if one.stream == "communication":
            communications.append(
                (communications[-1] if communications else 0) + (not one.operator.name.startswith("bucket"))
            )
        elif one.waits:
            found.append((one.operator.name, communications[len(communications) - 1 - one.outstanding]))
    return found


def test_halves_of_a_layer():
    assert operators_of_half(LLAMA, "pytorch-eager", "attention") == (
        "residual2", "norm1", "qkv", "rotary", "attention", "output",
    )  # fmt: skip
    assert operators_of_half(LLAMA, "megatron", "mlp") == ("residual1", "norm2", "up", "gate", "down")
    assert operators_of_half(GPT, "pytorch-eager", "mlp") == ("residual1", "norm2", "up", "activation", "down")
    assert {"query_norm", "key_norm"} < set(operators_of_half(QWEN, "megatron", "attention"))


@pytest.mark.parametrize("framework", ["pytorch-eager", "megatron"])
def test_in_the_backward_a_window_holds_the_gradients_of_its_operators(framework):
    implementation = Implementation(framework=framework, tensor_parallel=2)
    windows = (Window("attention", ("qkv", "attention")), Window("mlp", ("gate",)))
    launches = layers_backward(LLAMA, implementation, 2, 2048, 3, Nanobatches(2, windows, "window"))
    names = [one.operator.name for one in launches]
    behind = [names[i + 1] for i, one in enumerate(launches[:-1]) if one.stream == "communication"]
    steady = behind[2:-2]
    assert set(steady) <= {"attention.backward", "gate.product.grad_up", "gate.silu.grad"}
    assert len(set(steady)) == 2
