"""What a host that launches slowly costs: stated, and where nothing is stated, in the interval."""

import math
from dataclasses import replace

import pytest
from launched import costs

import joulecast as jc
from joulecast.errors import InputError
from joulecast.model.architecture.hf import load_model
from joulecast.model.framework.launches import Launch, streaming
from joulecast.model.kernels.operators import Gemm
from joulecast.simulator.instructions.eager_launches import WHOLE, eager_launches
from joulecast.simulator.instructions.host import host_gaps, module_launches
from joulecast.simulator.instructions.program import plan_program
from joulecast.simulator.plan_file.plan import plan_from_dict
from joulecast.simulator.plan_file.training_loop import ASKED, LAUNCH_S


def plan(pace=None, tokens=1024, gpus=1, fsdp=False, batch=1, **more):
    work = {
        "model": "llama-3.2-1b",
        "sequence_length": tokens,
        "micro_batch_size": 1,
        "global_batch_size": batch * gpus,
    }
    run = {"framework": "pytorch-eager", "modules": "transformers", **more}
    if pace is not None:
        run["host_launch_us"] = pace
    split = {"fsdp": fsdp} if fsdp else {}
    cluster = {"gpu": "h200-sxm", "gpus": gpus}
    return plan_from_dict({"workload": work, "cluster": cluster, "implementation": run, "parallelism": split})


def forecast(*args, **kwargs):
    return jc.predict(plan(*args, **kwargs))


def test_a_slow_host_sets_the_pace():
    """Where launches take the host longer than the GPU, an iteration takes as long as they; but for the step, 4 ms."""
    found = forecast(100.0)
    assert found.time_s == pytest.approx(100e-6 * costs(plan())[0] + 4e-3, rel=0.01)


def test_a_quick_host_is_not_waited_for():
    free, quick = forecast(0.0), forecast(2.0)
    waited = ASKED * 2e-6
    assert quick.time_s == pytest.approx(free.time_s + waited, rel=3e-4)
    assert quick.time_s > free.time_s + 0.9 * waited
    assert quick.energy_j == pytest.approx(free.energy_j, rel=3e-3)


def test_long_kernels_hide_a_slow_host():
    free, slow = forecast(0.0, tokens=16384), forecast(45.0, tokens=16384)
    assert slow.time_s == pytest.approx(free.time_s, rel=0.01)


def test_a_waiting_gpu_draws_less():
    free, slow = forecast(0.0), forecast(100.0)
    assert slow.energy_j > free.energy_j
    assert slow.power_w < 0.6 * free.power_w


def test_every_micro_batch_waits():
    """The later ones longer, as they add their gradients; the optimizer runs once."""
    one, four = forecast(100.0), forecast(100.0, batch=4)
    assert 4.0 < four.time_s / one.time_s < 4.4


def test_what_is_not_known_of_a_host_widens_the_interval_upwards_alone():
    unknown, graphs = forecast(), forecast(cuda_graphs=True)
    assert unknown.time_s == pytest.approx(graphs.time_s + ASKED * LAUNCH_S, rel=1e-3)
    assert unknown.time_s_p05 / unknown.time_s == pytest.approx(graphs.time_s_p05 / graphs.time_s, rel=0.01)
    assert unknown.time_s_p95 > 1.5 * graphs.time_s_p95
    assert unknown.energy_j_p95 > 1.1 * graphs.energy_j_p95
    assert unknown.time_s_p95 == pytest.approx(forecast(57.0).time_s, rel=0.05)
    assert any("host_launch_us" in each for each in unknown.assumptions)


def test_every_gpu_that_waits_for_its_host_draws_meanwhile():
    """The upper end is the forecast of a slow host's plan, of its energy too, on one GPU as on four."""
    for gpus in (1, 4):
        unknown, slow = forecast(gpus=gpus), forecast(57.0, gpus=gpus)
        assert unknown.energy_j_p95 > 1.3 * unknown.energy_j
        assert unknown.energy_j_p95 == pytest.approx(slow.energy_j, rel=0.1)


def test_an_iteration_of_long_kernels_says_nothing_of_slow_hosts():
    found = forecast(tokens=16384)
    assert found.time_s_p95 == pytest.approx(forecast(0.0, tokens=16384).time_s_p95, rel=0.01)
    assert not any("host_launch_us" in each for each in found.assumptions)


def test_a_stated_pace_errs_to_both_sides():
    stated, exact = forecast(100.0), forecast(0.0)
    assert stated.time_s_p05 < 0.78 * stated.time_s
    assert stated.time_s_p95 > 1.25 * stated.time_s
    assert exact.time_s_p95 < 1.1 * exact.time_s


def test_sharding_costs_the_host_as_many_launches_a_unit():
    """Three communications of each layer and of what is around them, gathered twice but around them."""
    sharded = plan(gpus=2, fsdp=True)
    communications = sum(
        launch.stream == "communication"
        for i in plan_program(sharded).ranks[0].order
        for launch in plan_program(sharded).ranks[0].types[i]
    )
    layers = load_model("llama-3.2-1b").layers
    assert 3 * layers <= communications <= 3 * layers + 3
    # Beside these there are copies around them, and its parameters are stepped as DTensors.
    assert WHOLE * 27 * communications < costs(sharded)[0] - costs(plan())[0] < WHOLE * 32 * communications


def test_gaps_need_a_host():
    import numpy as np

    assert host_gaps(np.array([1.0, 1.0]), np.array([0.0, 3.0])) == pytest.approx([0.0, 2.0], abs=1e-3)


@pytest.mark.parametrize(("pace", "words"), [(math.inf, "Use a value of at most 1000000"), (-1.0, "of at least 0")])
def test_no_launch_takes_so_long(pace, words):
    with pytest.raises(InputError, match=rf"host_launch_us.*{words}"):
        plan(pace)


def megatron(model, **implementation):
    return jc.predict(
        {
            "workload": {"model": model, "layers": 2, "sequence_length": 4096, "global_batch_size": 8},
            "cluster": {"gpu": "h200-sxm", "gpus": 1},
            "implementation": {"framework": "megatron", "generation": "megatron-core", **implementation},
        }
    )


def test_experts_make_megatron_wait_for_its_host():
    """It chooses and sorts experts by many small operations and waits for their numbers, in every layer."""
    quick, slow = (megatron("qwen3-30b-a3b", host_launch_us=us) for us in (20.0, 400.0))
    assert slow.time_s > 1.2 * quick.time_s
    dense = [megatron("llama-3.1-8b", host_launch_us=us) for us in (20.0, 120.0)]
    assert dense[1].time_s < 1.01 * dense[0].time_s


def test_each_launch_costs_megatrons_host_what_it_is():
    """A product one, of its gradients a half; eight experts' products a loop's seven more, each weight's again."""
    product = Launch(Gemm(64, 64, 64, name="up"))
    assert module_launches([product]) == 1.0
    assert module_launches([product, product]) == 1.0  # steps of one product
    assert module_launches([replace(product, repeat=3)]) == pytest.approx(1.0 + 2 * 0.048)
    assert module_launches([Launch(Gemm(64, 64, 64, name="up.wgrad"))]) == 0.5
    experts = Launch(Gemm(64, 64, 64, name="experts.up.wgrad", batch=8, separate=True))
    assert module_launches([experts]) == pytest.approx(0.5 + 7 * 0.048)
    assert module_launches([replace(experts, completes="experts.up")]) == pytest.approx(0.5 + 2 * 7 * 0.048)
    casts = replace(streaming("copy", "experts.up.quantise", 1e6), repeat=8)
    assert module_launches([casts]) == pytest.approx(7 * 0.048)  # the first comes with its product


@pytest.mark.parametrize(
    "launch",
    [
        Launch(Gemm(64, 64, 64, name="up"), repeat=3),
        Launch(Gemm(64, 64, 64, name="experts.up.wgrad", batch=8, separate=True), completes="experts.up"),
        replace(streaming("copy", "experts.up.quantise", 1e6), repeat=8),
        replace(streaming("copy", "rotary.unfused.half", 1e6), repeat=2),
        streaming("copy", "router.choice", 1e6),
    ],
    ids=lambda launch: launch.operator.name,
)
def test_shares_of_a_launch_cost_the_host_their_parts_of_it(launch):
    whole = module_launches([launch])
    assert whole > 0.0
    assert module_launches([replace(launch, share=4)]) == pytest.approx(whole / 4)
    assert eager_launches(plan(), [replace(launch, share=4)]) == pytest.approx(eager_launches(plan(), [launch]) / 4)


def test_a_host_that_nobody_stated_widens_the_interval_of_experts():
    open_host = megatron("qwen3-30b-a3b")
    stated = megatron("qwen3-30b-a3b", host_launch_us=127.0)
    assert any("in layers of experts the GPU waits for it" in words for words in open_host.assumptions)
    assert not any("in layers of experts" in words for words in stated.assumptions)
    assert open_host.time_s_p95 / open_host.time_s > 1.05 * stated.time_s_p95 / stated.time_s
    assert open_host.time_s_p05 / open_host.time_s == pytest.approx(stated.time_s_p05 / stated.time_s, rel=0.03)
