"""Muon in a plan: its options, what it is not known with, and what a forecast takes for granted of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.errors import NotYetError
from joulecast.model.framework.muon import PRODUCTS, Muon

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.plan import Plan
    from joulecast.simulator.plan_file.schema_implementation import ImplementationTable
    from joulecast.simulator.plan_file.source import Problem, Source

KEY, NAME = "implementation.optimizer", "muon"
#: Keys of Megatron's alone, and what PyTorch's does in their place.
MEGATRONS = {
    "muon_tp_mode": "steps matrices that a rank has whole",
    "muon_split_qkv": "takes each parameter as it is",
    "muon_fp32_matmul_prec": "multiplies in bf16",
}
_ADAMW = 'or set implementation.optimizer = "adamw"'


def read_muon(table: ImplementationTable, source: Source) -> Muon | None:
    """Its options, with the framework's defaults: PyTorch's moves gradients towards their momentum, Megatron's not."""
    if table.optimizer != NAME:
        return None
    megatron = table.framework == "megatron"
    for key, instead in {} if megatron else MEGATRONS.items():
        if getattr(table, key) != type(table).model_fields[key].default:
            what = f"torch.optim.Muon has no such option: it {instead}"
            remedy = 'Leave the key out, or set implementation.framework = "megatron".'
            raise source.error(what, f"implementation.{key}", remedy=remedy)
    return Muon(
        steps=table.muon_num_ns_steps,
        nesterov=not megatron if table.muon_nesterov is None else table.muon_nesterov,
        tensor_mode=table.muon_tp_mode,
        split_qkv=megatron and table.muon_split_qkv,
        products=PRODUCTS[table.muon_fp32_matmul_prec],
    )


def check_muon(plan: Plan, source: Source) -> None:
    """Refuse what neither code runs, or runs in kernels that nobody counted."""
    run, split, work = plan.implementation, plan.parallelism, plan.workload
    if run.muon is None:
        return
    megatron = run.framework == "megatron"
    problems = (
        (
            split.fsdp,
            "Muon of parameters that FSDP shards is not known: torch.optim.Muon communicates for every product of "
            "DTensors, and Megatron refuses it",
            "Set it to false",
            "parallelism.fsdp",
        ),
        (work.lora is not None, "Muon of adapters is not known", "Leave it out", "workload.lora"),
        (
            work.precision == "fp16",
            "Muon beside gradients in fp16, which are scaled, is not known",
            'Set it to "bf16"',
            "workload.precision",
        ),
        (
            work.narrow is not None and work.narrow.parameters,
            "Muon of weights that are kept in FP8 or FP4 is not known",
            "Set it to false",
            f"workload.{work.precision}_param_gather",
        ),
        (
            megatron and run.optimizer_precision != "fp32",
            "Muon's momentum is known in fp32",
            "Leave the key out",
            "implementation.optimizer_precision",
        ),
        *(() if megatron else _of_pytorch(plan)),
    )
    source.refuse(problems, remedy=f"{{}}, {_ADAMW}.", kind=NotYetError)


def _of_pytorch(plan: Plan) -> tuple[Problem, ...]:
    """What ``torch.optim.Muon`` does not do, or nobody does with it."""
    return (
        (
            plan.workload.model.experts is not None,
            "torch.optim.Muon refuses experts, whose weights PyTorch keeps in one tensor of three dimensions",
            'Set implementation.framework = "megatron"',
            KEY,
        ),
        (
            plan.tp > 1,
            "torch.optim.Muon is known of matrices that a rank has whole",
            "Set it to 1",
            "parallelism.tensor_model_parallel_size",
        ),
        (
            plan.parallelism.distributed_optimizer,
            "torch.optim.Muon is known of states that a rank has whole",
            "Set it to false",
            "parallelism.distributed_optimizer",
        ),
    )


def muon_assumptions(plan: Plan) -> tuple[str, ...]:
    """What Muon is taken to do."""
    if plan.implementation.muon is None:
        return ()
    which = "Muon steps the weights of layers' linear layers, AdamW embedding, head, norms and biases"
    if plan.implementation.framework != "megatron":
        return (which,)
    counted = "Megatron's kernels of it are counted from its code, none was measured"
    if plan.parallelism.distributed_optimizer and plan.summing > 1:
        return (
            f"{which}; {counted}; of the replicas, which share whole matrices, all wait for the one with most to do",
        )
    return (f"{which}; {counted}",)
