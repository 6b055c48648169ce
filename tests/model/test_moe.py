"""Plans with a Mixture of Experts: groups, and what hides their communication."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from launched import flops
from plan_tables import changed

from joulecast.errors import InputError
from joulecast.model.architecture.model_flops import training_flops
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.operators import Attention, Collective
from joulecast.simulator.closed_form.forecast import closed_form
from joulecast.simulator.fluid.prepared import prepare
from joulecast.simulator.instructions.footprints import footprint_of
from joulecast.simulator.instructions.host import module_launches
from joulecast.simulator.instructions.program import plan_program, stage_parameters
from joulecast.simulator.instructions.replicas import summed_together
from joulecast.simulator.instructions.tables import instruction_table, kernels_of
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.gpu import gpu_of
from joulecast.simulator.plan_file.implementation import implementation_of
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict

#: A plan without what only Megatron has.
EAGER = {"implementation__framework": "pytorch-eager"}


def plan(**changes: Any) -> Plan:
    tables: dict[str, Any] = {
        "workload": {"model": "mixtral-8x7b", "sequence_length": 4096, "global_batch_size": 64},
        "cluster": {"gpu": "h100-sxm", "gpus": 32},
        "parallelism": {
            "tensor_model_parallel_size": 2,
            "sequence_parallel": True,
            "pipeline_model_parallel_size": 2,
            "expert_model_parallel_size": 8,
            "expert_tensor_parallel_size": 1,
            "distributed_optimizer": True,
        },
        "overlap": {},
        "implementation": {"framework": "megatron"},
    }
    return plan_from_dict(changed(tables, changes))


def test_groups_of_experts_are_folded_into_the_others():
    one = plan()
    assert (one.tp, one.dp, one.replicas, one.expert_replicas) == (2, 8, 8, 2)
    rest, experts = summed_together(one, stage_parameters(one, 0))
    assert (rest.replicas, experts.replicas) == (8, 2)
    model = one.workload.model
    assert 8 * sum(p.elements for p in experts.parameters) == 16 * 8 * 3 * model.hidden * 14336  # half of the layers
    tail = [x.operator for x in plan_program(one).ranks[0].types[-1] if isinstance(x.operator, Collective)]
    assert [(c.kind, c.gpus) for c in tail] == [(kind, n) for kind in ("reduce_scatter", "all_gather") for n in (8, 2)]
    assert plan(parallelism__expert_tensor_parallel_size=None).parallelism.expert_tensor_parallel_size == 2


def test_experts_of_more_ranks_than_a_node_has_cross_the_network():
    wide = plan(cluster__gpus=64, workload__model="qwen3-30b-a3b", parallelism__expert_model_parallel_size=32)
    near, far = implementation_of(plan()).expert_fabric, implementation_of(wide).expert_fabric
    assert near is not None and far is not None
    assert (near.domains, far.domains) == (1, 4)


def test_the_first_layers_of_deepseek_v3_have_no_experts():
    stages = {
        "workload__model": "deepseek-v3",
        "cluster__gpus": 256,
        "workload__global_batch_size": 256,
        "parallelism__pipeline_model_parallel_size": 8,
        "parallelism__stage_layers": [2, 8, 8, 8, 8, 9, 9, 9],
    }
    one = plan(**stages)
    assert [[count for _, count in one.stage_models(stage)] for stage in range(3)] == [[2], [1, 7], [8]]
    names = [{x.operator.name for x in rank.types[0]} for rank in plan_program(one).ranks[:2]]
    assert "router" not in names[0] and {"router", "up"} <= names[1]
    assert footprint_of(one, 0).parameters < 0.6 * footprint_of(one, 2).parameters


def test_split_experts_save_memory_and_balanced_ones_time():
    """With experts on eight ranks instead of one: an eighth of their parameters; a balanced load takes less time."""
    busy, balanced = plan(), plan(workload__moe_load_imbalance=1.0)
    alone = plan(parallelism__expert_model_parallel_size=1)
    assert footprint_of(busy, 0).parameters < 0.25 * footprint_of(alone, 0).parameters
    times = {name: forecast(p, must_fit=False) for name, p in (("busy", busy), ("balanced", balanced))}
    assert times["balanced"].time_s < times["busy"].time_s < 1.1 * times["balanced"].time_s
    assert any("1.1 times the mean" in words for words in times["busy"].assumptions)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            EAGER | {"workload__model": "deepseek-v3", "workload__layers": 60},
            ("implementation.framework", "latent attention", "megatron"),
        ),
        (EAGER | {"overlap__ep_comm": True}, ("overlap.ep_comm", "megatron", "false")),
        (
            EAGER | {"overlap__grad_reduce": "overlapped", "parallelism__distributed_optimizer": False},
            ("overlap.grad_reduce", "after"),
        ),
        ({"parallelism__expert_model_parallel_size": 3}, ("expert_model_parallel_size", "8 experts", "1, 2, 4, 8")),
        ({"parallelism__expert_tensor_parallel_size": 4}, ("expert_model_parallel_size", "16 GPUs", "one of 1, 2, 4.")),
        ({"parallelism__sequence_parallel": False}, ("sequence_parallel", "true")),
        ({"workload__model": "llama-3.1-8b"}, ("expert_model_parallel_size", "no experts")),
        (
            {"workload__moe_load_imbalance": 1.2, "workload__moe_expert_capacity_factor": 1.0},
            ("moe_load_imbalance", "one of"),
        ),
        ({"workload__moe_load_imbalance": 0.9}, ("moe_load_imbalance",)),
        ({"overlap__ep_comm": True, "parallelism__expert_model_parallel_size": 1}, ("overlap.ep_comm", "expert_model")),
        ({"overlap__ep_comm": True, "workload__global_batch_size": 8}, ("overlap.ep_comm", "global_batch_size")),
        ({"overlap__ep_comm": True, "overlap__tp_comm": True}, ("overlap.ep_comm", "tp_comm")),
        (
            {"overlap__ep_comm": True, "parallelism__fsdp": True, "parallelism__distributed_optimizer": False},
            ("overlap.ep_comm", "one after the other"),
        ),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], words: tuple[str, ...]):
    with pytest.raises(InputError) as error:
        plan(**changes)
    for word in words:
        assert word in str(error.value)


def test_a_dense_model_has_no_load():
    with pytest.raises(InputError, match="no experts"):
        plan(
            workload__model="llama-3.1-8b",
            workload__moe_expert_capacity_factor=1.0,
            parallelism__expert_model_parallel_size=1,
        )


def test_utilisation_counts_the_experts_that_a_token_meets():
    one = forecast(plan(), must_fit=False)
    model = one.plan.workload.model
    assert one.model_flops_per_s == training_flops(model, 4096, 64 * 4096) / one.time_s / 32
    assert one.mfu == pytest.approx(one.model_flops_per_s / 989.4e12)
    assert 0.1 < one.mfu < 0.6


def test_nano_batches_hide_the_communication_of_experts():
    options = {"parallelism__tensor_model_parallel_size": 1, "parallelism__sequence_parallel": False}
    options |= {"workload__micro_batch_size": 2}

    def forward(**more: Any) -> tuple[float, float]:
        """Communication of a stage's forward beside computation, and without."""
        gpu, clocks = gpu_model(load_gpu("h100-sxm")), np.array([1755.0])
        types = plan_program(plan(**options, **more)).ranks[0].types[:1]
        beside, alone, _ = instruction_table(types, kernels_of([types], clocks, gpu), gpu).communication_s[0, 0]
        return float(beside), float(alone)

    whole, cut = forward(), forward(overlap__nanobatches=2)
    assert whole[0] == 0 and cut[0] > 0.7 * whole[1] and cut[1] < 0.3 * whole[1]


def test_another_micro_batch_hides_the_communication_of_experts():
    """The same work and bytes, in shares that cost what the whole does; most communication beside computation."""
    options: dict[str, Any] = {"parallelism__tensor_model_parallel_size": 1, "parallelism__sequence_parallel": False}
    apart, beside = (plan_program(plan(**options, overlap__ep_comm=on)).ranks[0].types[0] for on in (False, True))
    assert flops(beside) == flops(apart) and flops(beside, kind=Attention) == flops(apart, kind=Attention)
    moved = [sum(x.operator.bytes for x in way if isinstance(x.operator, Collective)) for way in (apart, beside)]
    assert moved[1] == pytest.approx(moved[0])
    assert module_launches(beside) == pytest.approx(module_launches(apart))
    gpu, clocks = gpu_model(load_gpu("h100-sxm")), np.array([1755.0])
    table = instruction_table([apart, beside], kernels_of([[apart, beside]], clocks, gpu), gpu)
    assert table.duration_s[1, 0] < 0.98 * table.duration_s[0, 0]
    assert table.exposed_s[1, 0] < 0.5 * table.exposed_s[0, 0]
    hidden = table.duration_s[0, 0] - table.exposed_s[0, 0]
    assert table.duration_s[1, 0] - table.exposed_s[1, 0] == pytest.approx(hidden, rel=0.08)
    faster, slower = (forecast(plan(**options, overlap__ep_comm=on), must_fit=False) for on in (True, False))
    assert faster.time_s < slower.time_s


def test_experts_alone_may_have_replicas():
    """One replica of everything but the experts: their gradients' sums are forecast in closed form, too."""
    sizes = {"parallelism__tensor_model_parallel_size": 8, "parallelism__pipeline_model_parallel_size": 1}
    sizes |= {"parallelism__expert_model_parallel_size": 4, "cluster__gpus": 8, "workload__global_batch_size": 8}
    one = plan(**sizes, parallelism__distributed_optimizer=False, overlap__grad_reduce="overlapped")
    assert (one.replicas, one.expert_replicas) == (1, 2)
    simulated = forecast(one, must_fit=False)
    assert simulated.ranks[0].overlapped_communication_s > 0
    assert closed_form([one]).time_s[0] == pytest.approx(simulated.time_s, rel=0.01)


@pytest.mark.parametrize(
    ("gpu", "ranks", "dispatcher", "published_us"),
    [
        ("gb200", 8, "flex", 391),
        ("gb200", 64, "flex", 675),
        ("h100-sxm", 16, "flex", 1485),
        ("h100-sxm", 64, "flex", 4626),
        ("h100-sxm", 16, "alltoall", 5774),
        ("h100-sxm", 64, "alltoall", 9164),
    ],
)
def test_exchanges_of_tokens_take_what_was_published(gpu: str, ranks: int, dispatcher: str, published_us: float):
    """HybridEP's and NCCL's, of 4,096 tokens of DeepSeek-V3: arXiv 2603.07685, table 7.

    Nothing is permuted before HybridEP's. NCCL's within a domain of GB200 are forecast a quarter too long.
    """
    one = plan(
        workload__model="deepseek-v3",
        workload__layers=8,
        workload__moe_load_imbalance=1.0,
        cluster__gpu=gpu,
        cluster__gpus=64,
        cluster__gpus_per_node=64 if gpu == "gb200" else 8,
        parallelism__tensor_model_parallel_size=1,
        parallelism__pipeline_model_parallel_size=1,
        parallelism__sequence_parallel=False,
        parallelism__expert_model_parallel_size=ranks,
        implementation__moe_token_dispatcher_type=dispatcher,
    )
    launched = {x.operator.name: x.operator for x in plan_program(one).ranks[0].types[0]}
    assert ("permute" in launched, "unpermute" in launched) == (dispatcher == "alltoall",) * 2
    assert "dispatch.sort" in launched
    times = prepare(one, gpu_model(gpu_of(one))).kernels[0]
    time_s = times.times.time_s[-1, times.operators.index(launched["dispatch.all_to_all"])]
    assert 1e6 * time_s == pytest.approx(published_us, rel=0.11)


def test_graphs_of_parts_leave_the_experts_to_the_host():
    """Layers of experts wait for a slow host; graphs of attention and router take most of its launches."""
    scopes = ["attn", "moe_router", "moe_preprocess"]
    forward = plan_program(plan()).ranks[0].types[0]
    without, parts = module_launches(forward), module_launches(forward, scopes)
    assert 0.3 * without < parts < 0.7 * without
    times = [
        forecast(plan(implementation__cuda_graphs=graphs, implementation__host_launch_us=400.0), must_fit=False).time_s
        for graphs in (False, scopes, True)
    ]
    assert times[0] > 1.1 * times[1] > 1.1 * times[2]
    with pytest.raises(InputError, match=r"implementation\.cuda_graphs.*\battn\b"):
        plan(implementation__cuda_graphs=["attnn"])
    with pytest.raises(InputError, match=r"implementation\.cuda_graphs.*Megatron's"):
        plan(**EAGER, implementation__cuda_graphs=scopes)


def test_products_with_the_activation_in_them_launch_less():
    """Experts' activation, the casts of its results and the gradient of the router's weights are in the products."""
    mx: dict[str, Any] = {"cluster__gpu": "b200", "workload__precision": "fp8", "workload__fp8_recipe": "mxfp8"}
    apart, fused = (
        {
            x.operator.name
            for way in plan_program(plan(**mx, implementation__moe_fused_mlp=on)).ranks[0].types
            for x in way
        }
        for on in (False, True)
    )
    gone = {"gate.silu", "gate.silu.grad", "experts.weights.grad", "experts.down.input.quantise"}
    assert apart - fused == gone | {"experts.up.grad.quantise"}
    assert fused < apart
    with pytest.raises(InputError, match=r"moe_fused_mlp.*MXFP8"):
        plan(implementation__moe_fused_mlp=True)
