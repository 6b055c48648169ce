"""Stepwise communication beside products, and Megatron's unfused attention, against hand-computed work and bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from launched import flops
from plan_tables import changed

from joulecast.errors import InputError
from joulecast.model.architecture.hf import load_model
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch, linear_forward
from joulecast.model.framework.layer_shard import shard
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Collective, Gemm, Streaming
from joulecast.model.memory.activations import layer_bytes
from joulecast.model.memory.layer_transients import layer_transient_bytes
from joulecast.model.power.kernel_power import at_clock
from joulecast.model.training.step import layer_backward, layer_forward
from joulecast.model.transformer.pipelined_products import gathered_product, scattered_product
from joulecast.model.transformer.unfused_attention import kept_bytes
from joulecast.simulator.instructions.tables import instruction_table, kernels_of
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import plan_from_dict

GPU = gpu_model(load_gpu("h100-sxm"))
CLOCKS = np.array([1410.0, 1980.0])
RUN = Implementation(framework="megatron", tensor_parallel=4, sequence_parallel=True)
STEPWISE = replace(RUN, tp_comm_overlap=True)
GPT = load_model("gpt-22b")


def layer(run: Implementation, batch: int = 4) -> tuple[Launch, ...]:
    return (*layer_forward(GPT, run, batch, 2048), *layer_backward(GPT, run, batch, 2048))


def collectives(launches: Iterable[Launch]) -> list[Collective]:
    return [launch.operator for launch in launches if isinstance(launch.operator, Collective)]


def times(launches: tuple[Launch, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Length, and the part of it without compute, at each clock [s]."""
    table = instruction_table([launches], kernels_of([[launches]], CLOCKS, GPU), GPU)
    return table.duration_s[0], table.exposed_s[0]


def test_steps_move_and_multiply_what_one_collective_and_product_do():
    assert flops(layer(STEPWISE)) == flops(layer(RUN))
    tensor = 4 * 2048 * GPT.hidden * 2
    steps = [c for c in collectives(layer(STEPWISE)) if c.copy_engine]
    whole = [c for c in collectives(layer(STEPWISE)) if not c.copy_engine]
    assert len(steps) == 6 * 3 and {c.bytes / 2 for c in steps} == {tensor / 4}
    assert sorted(c.name for c in whole) == [
        "qkv.grad.reduce_scatter",
        "qkv.input.all_gather",
        "up.grad.reduce_scatter",
        "up.input.all_gather",
    ]


def test_parts_of_a_product_cost_what_the_product_costs_but_for_their_start():
    one = Gemm(8192, 6144, 4608)
    part = replace(one, m=2048, parts=4)
    whole, quarter = (at_clock(lower([g], GPU), 1755.0, GPU) for g in (one, part))
    fixed = lower([one], GPU).fixed_s
    assert 4 * (quarter.time_s - fixed) == pytest.approx(whole.time_s - fixed)
    static = 3 * fixed * quarter.power_w  # a start draws no more than a kernel at work
    assert whole.energy_j < 4 * quarter.energy_j < whole.energy_j + static


def test_copy_engines_hold_no_sm_and_cost_a_product_its_share_of_the_memory():
    product = linear_forward("up", 8192, 6144, 6144, "bf16")
    launches = gathered_product("up", product, 8192 * 6144 * 2.0, STEPWISE)
    parts = [launch for launch in launches if launch.stream == "compute"]
    duration, exposed = times(launches)
    assert exposed == pytest.approx([0.0, 0.0], abs=1e-12)
    alone = times(tuple(replace(p, waits=False, outstanding=0) for p in parts))[0]
    assert ((alone < duration) & (duration < 1.003 * alone)).all()
    costs = lower([launches[0].operator], GPU)
    assert costs.core_cycles[0] == 0 and costs.activity[0] == 0 and costs.link_j[0] > 0


def test_communication_that_is_longer_than_the_product_is_exposed_but_for_the_own_part():
    """The first part of the product runs beside the first step; each later part waits for its step."""
    product = linear_forward("up", 8192, 6144, 512, "bf16")
    launches = gathered_product("up", product, 2e9, STEPWISE)
    kernels = kernels_of([[launches]], CLOCKS, GPU)
    index = {operator: i for i, operator in enumerate(kernels.operators)}
    step, part = (kernels.times.time_s[:, index[launches[i].operator]] for i in (0, 3))
    assert (step > part).all()
    duration, exposed = times(launches)
    assert duration == pytest.approx(3 * step + part)
    slowed = duration - exposed  # the parts beside steps, by the memory that these take
    assert ((4 * part < slowed) & (slowed < 4.06 * part)).all()


def test_a_scattered_sum_ends_with_the_addition_of_its_parts():
    product = linear_forward("down", 8192, 6144, 6144, "bf16")
    launches = scattered_product("down", product, 8192 * 6144.0, STEPWISE)
    kinds = [launch.stream for launch in launches]
    assert kinds == ["compute", "communication"] * 3 + ["compute", "compute"]
    total = launches[-1].operator
    assert isinstance(total, Streaming) and launches[-1].waits
    assert (total.bytes_read, total.bytes_written) == (8192 * 6144 * 2, 8192 * 6144 * 2 / 4)
    assert (times(launches)[1] < 1e-12).all()  # the own part covers the last step


def test_the_ledger_tells_overlapped_from_exposed():
    apart, beside = (times(layer(run)) for run in (RUN, STEPWISE))
    assert (beside[0] < apart[0]).all()
    assert (beside[1] < 0.3 * apart[1]).all()
    table = instruction_table([layer(STEPWISE)], kernels_of([[layer(STEPWISE)]], CLOCKS, GPU), GPU)
    assert (table.communication_s[0, :, 0] > table.exposed_s[0]).all()


@pytest.mark.parametrize("tp", [1, 8])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_activations_are_those_of_korthikanti_et_al(tp: int, sequence_parallel: bool):
    """sbh·(8 + 24/t + 5as/(ht)) without the two masks of dropped residuals, 8/t with sequence parallelism."""
    run = Implementation(
        framework="megatron", attention_backend="unfused", dropout=0.1, dtype="fp16", tensor_parallel=tp
    )
    run = replace(run, sequence_parallel=sequence_parallel)
    sbh, scores = 2048.0 * 4 * GPT.hidden, 5 * GPT.heads * 2048 / GPT.hidden / tp
    outer = 8 / tp if sequence_parallel else 8
    assert layer_bytes(shard(GPT, run, 4, 2048)) == pytest.approx(sbh * (outer + 24 / tp + scores), rel=0.001)
    selective = shard(GPT, replace(run, recompute="selective"), 4, 2048)
    assert layer_bytes(selective) == pytest.approx(sbh * (outer + 24 / tp), rel=0.001)
    assert layer_transient_bytes(selective) >= kept_bytes(selective) == pytest.approx(sbh * scores)


def plan(**changes: Any) -> dict[str, Any]:
    tables: dict[str, Any] = {
        "workload": {"model": "gpt-22b", "sequence_length": 2048, "global_batch_size": 4, "micro_batch_size": 4},
        "cluster": {"gpu": "h100-sxm", "gpus": 8},
        "parallelism": {"tensor_model_parallel_size": 8, "sequence_parallel": True},
        "overlap": {"tp_comm": True},
        "implementation": {"framework": "megatron"},
    }
    return changed(tables, changes)


def test_a_plan_with_steps_is_faster_and_says_how_much_is_exposed():
    beside = forecast(plan_from_dict(plan()), must_fit=False)
    apart = forecast(plan_from_dict(plan(overlap__tp_comm=False)), must_fit=False)
    assert beside.time_s < 0.97 * apart.time_s
    assert beside.ranks[0].exposed_communication_s < apart.ranks[0].exposed_communication_s
    assert beside.ranks[0].overlapped_communication_s > apart.ranks[0].overlapped_communication_s


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"implementation__framework": "pytorch-eager"}, ("overlap.tp_comm", "torchtitan")),
        ({"parallelism__sequence_parallel": False}, ("overlap.tp_comm", "sequence_parallel = true")),
        ({"overlap__nanobatches": 2}, ("overlap.nanobatches", "tp_comm")),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], words: tuple[str, ...]):
    with pytest.raises(InputError) as error:
        plan_from_dict(plan(**changes))
    for word in words:
        assert word in str(error.value)
