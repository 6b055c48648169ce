"""Muon's kernels against what torch.optim.Muon runs, and how whole matrices are shared out over ranks."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import replace

import pytest

from joulecast.model.architecture.hf import load_model
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch
from joulecast.model.framework.muon import Muon
from joulecast.model.kernels.operators import DTYPE_BYTES, Collective, Gemm, Streaming
from joulecast.model.training.layer_wise import largest_share, shares
from joulecast.model.training.matrix import Matrix
from joulecast.model.training.muon import counted, muon_step, work
from joulecast.model.training.optimizer import optimizer_step
from joulecast.model.training.parameters import layer_parameters, parameters_of_stage

EAGER = Implementation(modules="transformers", optimizer="muon", muon=Muon())
MEGATRON = Implementation(framework="megatron", optimizer="muon", muon=Muon(nesterov=False))


def named(launches: tuple[Launch, ...]) -> Counter[str]:
    found: Counter[str] = Counter()
    for one in launches:
        found[one.operator.name.removeprefix("optimizer.muon.")] += one.repeat
    return found


def products(launches: tuple[Launch, ...]) -> Counter[tuple[int, int, int, str]]:
    found: Counter[tuple[int, int, int, str]] = Counter()
    for one in launches:
        if isinstance(one.operator, Gemm):
            found[one.operator.m, one.operator.n, one.operator.k, one.operator.layout] += one.repeat
    return found


def operators_of_torch(rows: int, columns: int, steps: int) -> Counter[str]:
    """ATen operators of a step of torch.optim.Muon on one bf16 matrix."""
    torch = pytest.importorskip("torch")
    dispatch = pytest.importorskip("torch.utils._python_dispatch")
    found: Counter[str] = Counter()

    class Record(dispatch.TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            found[operator.name().removeprefix("aten::")] += 1
            return operator(*args, **(kwargs or {}))

    weight = torch.nn.Parameter(torch.randn(rows, columns, dtype=torch.bfloat16))
    weight.grad = torch.randn_like(weight)
    muon = torch.optim.Muon([weight], ns_steps=steps)
    muon.step()  # makes the state
    with Record():
        muon.step()
    return found


@pytest.mark.parametrize(("rows", "columns"), [(48, 16), (16, 48), (32, 32)])
@pytest.mark.parametrize("steps", [1, 5])
def test_a_step_runs_the_operators_of_torch(rows: int, columns: int, steps: int) -> None:
    torchs = operators_of_torch(rows, columns, steps)
    ours = named(muon_step({Matrix((rows,), columns): 1}, replace(EAGER, muon=Muon(steps=steps))))
    assert torchs["mm"] == ours["gram"] == steps
    assert torchs["addmm"] == ours["square"] + ours["update"] == ours["copy"] + ours["reorder"] == 2 * steps
    assert ours["reorder"] == (rows > columns)
    assert torchs["lerp_.Scalar"] == ours["momentum"] == 1
    assert torchs["lerp.Scalar"] == ours["nesterov"] == 1
    assert torchs["linalg_vector_norm"] == ours["norm"] == torchs["div_.Tensor"] == ours["scale"] == 1
    assert torchs["mul_.Tensor"] == ours["decay"] == 1
    assert torchs["add_.Tensor"] == ours["add"] + ours["add_across"] == 1


def test_the_defaults_are_torchs() -> None:
    torch = pytest.importorskip("torch")
    theirs = inspect.signature(torch.optim.Muon).parameters
    assert (theirs["ns_steps"].default, theirs["nesterov"].default) == (Muon().steps, Muon().nesterov)


@pytest.mark.parametrize(
    ("rows", "columns", "first", "later"),
    [
        (300, 100, ((100, 100, 300, "nt"), (100, 300, 100, "tn")), ((100, 100, 300, "tn"), (100, 300, 100, "nn"))),
        (100, 300, (), ((100, 100, 300, "tn"), (100, 300, 100, "nn"))),
    ],
)
def test_a_tall_matrix_lies_across_in_the_first_iteration_alone(rows, columns, first, later) -> None:
    found = products(muon_step({Matrix((rows,), columns): 7}, EAGER))
    assert found.pop((100, 100, 100, "nn")) == 5 * 7
    assert found == {**dict.fromkeys(first, 7), **dict.fromkeys(later, (4 if first else 5) * 7)}
    short, long = sorted((rows, columns))
    assert work(Matrix((rows,), columns), EAGER) == 5 * (4 * short**2 * long + 2 * short**3)


def test_products_are_in_bf16_whatever_the_parameters_are() -> None:
    wide = muon_step({Matrix((64,), 64): 1}, replace(EAGER, parameters="fp32"))
    assert {one.operator.dtype for one in wide if isinstance(one.operator, Gemm)} == {"bf16"}
    assert named(wide)["cast"] == 1
    assert named(muon_step({Matrix((64,), 64): 1}, EAGER))["cast"] == 0


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen2.5-7b", "deepseek-v3", "nemotron-h-8b", "qwen3-next-80b-a3b"])
@pytest.mark.parametrize("run", [MEGATRON, replace(EAGER, modules="joint")])
def test_shapes_have_the_elements_of_their_tensors(model: str, run: Implementation) -> None:
    config = load_model(model)
    tensors = [p for kind in config.kinds for p in layer_parameters(kind, run) if p.matrix is not None]
    assert tensors
    for one in tensors:
        assert one.matrix is not None
        assert one.elements == one.tensors * one.matrix.elements
    outside = parameters_of_stage(config, run, 0, first=True, last=True)
    assert [p for p in outside if p.matrix is not None and not p.name.startswith("mtp.")] == []


def test_all_but_matrices_is_stepped_by_adamw() -> None:
    config = load_model("llama-3.2-1b")
    parameters = parameters_of_stage(config, EAGER, 2, first=True, last=True)
    matrices = sum(p.elements for p in parameters if p.matrix is not None)
    moved = dict.fromkeys(("adamw", "momentum", "zero_grad"), 0.0)
    for one in optimizer_step(parameters, EAGER):
        of = one.operator
        for name in moved:
            if isinstance(of, Streaming) and of.name.startswith((f"optimizer.{name}", f"optimizer.muon.{name}")):
                moved[name] += one.repeat * of.elements
    total = sum(p.elements for p in parameters)
    assert moved == {
        "adamw": pytest.approx(total - matrices),
        "momentum": pytest.approx(matrices),
        "zero_grad": pytest.approx(total),
    }


def test_megatron_takes_queries_keys_and_values_one_by_one_unless_told_not_to() -> None:
    (qkv,) = [p for p in layer_parameters(load_model("llama-3.1-8b"), MEGATRON) if p.name == "qkv.weight"]
    assert qkv.matrix == Matrix((4096, 1024, 1024), 4096, "rows")
    apart = products(muon_step(counted([qkv]), MEGATRON))
    assert (1024, 4096, 1024, "nn") in apart and (4096, 4096, 4096, "nn") in apart
    joint = products(muon_step(counted([qkv]), replace(MEGATRON, muon=Muon(split_qkv=False))))
    assert set(joint) == {(4096, 4096, 6144, "nt"), (4096, 4096, 6144, "tn"), (4096, 4096, 4096, "nn")} | {
        (4096, 6144, 4096, layout) for layout in ("tn", "nn")
    }


@pytest.mark.parametrize("split", ["rows", "columns"])
def test_tensor_parallel_ranks_take_parts_the_whole_or_all_of_it_together(split) -> None:
    part = Matrix((512,), 2048, split) if split == "rows" else Matrix((2048,), 512, split)
    steps = {
        mode: muon_step({part: 1}, replace(MEGATRON, tensor_parallel=4, muon=Muon(tensor_mode=mode)))
        for mode in ("blockwise", "duplicated", "distributed")
    }
    assert not any(isinstance(one.operator, Collective) for one in steps["blockwise"])
    (gather,) = [one.operator for one in steps["duplicated"] if isinstance(one.operator, Collective)]
    assert (gather.kind, gather.bytes, gather.gpus) == ("all_gather", 4.0 * 2048 * 2048, 4)
    assert {key[:3] for key in products(steps["duplicated"])} == {(2048, 2048, 2048)}
    sums = [(one.operator, one.repeat) for one in steps["distributed"] if isinstance(one.operator, Collective)]
    assert sum(repeat for one, repeat in sums if one.bytes == DTYPE_BYTES["bf16"] * 2048**2) == 5
    assert {key[:3] for key in products(steps["distributed"])} == {
        (2048, 2048, 512),
        (2048, 2048, 2048),
        (2048, 512, 2048),
    }


def test_tf32_products_need_no_casts() -> None:
    high = muon_step({Matrix((64,), 128): 1}, replace(MEGATRON, muon=Muon(products="tf32")))
    assert {one.operator.dtype for one in high if isinstance(one.operator, Gemm)} == {"tf32"}
    assert named(high)["cast"] == 0
    assert named(muon_step({Matrix((64,), 128): 1}, MEGATRON))["cast"] == 2


def test_whole_matrices_go_to_the_rank_with_least() -> None:
    small, large = Matrix((10,), 10), Matrix((30,), 10)
    assert sorted(sum(one.elements * n for one, n in each.items()) for each in shares({small: 5, large: 2}, 2)) == [
        500,
        600,
    ]
    assert largest_share({large: 3}, 8) == large.elements
    assert largest_share({small: 4, large: 4}, 1) == 4 * (small.elements + large.elements)


def test_the_busiest_replica_steps_whole_matrices() -> None:
    config = load_model("llama-3.2-1b")
    parameters = parameters_of_stage(config, MEGATRON, 2, first=False, last=False)
    for ranks in (1, 4, 64):
        share = max(
            shares(counted(parameters), ranks), key=lambda one: sum(work(m, MEGATRON) * n for m, n in one.items())
        )
        expected = sum(work(m, MEGATRON) * n for m, n in share.items())
        step = optimizer_step(parameters, MEGATRON, state_shards=ranks)
        found = sum(one.operator.flops * one.repeat for one in step if isinstance(one.operator, Gemm))
        assert found == pytest.approx(expected)
