"""Adapters of a plan: which products have one, and what they are not known with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.errors import NotYetError
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.layer_shard import shard
from joulecast.model.framework.lora import Lora
from joulecast.model.transformer.linear import linears
from joulecast.simulator.plan_file.precisions import compute_dtype

if TYPE_CHECKING:
    from joulecast.model.architecture.model_config import ModelConfig
    from joulecast.simulator.plan_file.plan import Plan
    from joulecast.simulator.plan_file.schema import PlanFile
    from joulecast.simulator.plan_file.source import Source

KEY, TARGETS, PRECISION = "workload.lora", "workload.lora.target_modules", "workload.lora.precision"
BASE, DOUBLE = "workload.lora.base_precision", "workload.lora.double_quantisation"
PREPARED = "workload.lora.prepared"
#: PEFT's word for all products of a layer.
ALL = "all-linear"
#: Names of linear layers in transformers, and ours.
NAMES = {
    "q_proj": "query",
    "k_proj": "key",
    "v_proj": "value",
    "o_proj": "output",
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
    "qkv_proj": "qkv",
    "gate_up_proj": "up",
}
#: Names that families have for some of them in their own code, ``c_proj`` for two.
OTHER_NAMES = {
    "query_key_value": ("qkv",),
    "out_proj": ("output",),
    "dense": ("output",),
    **dict.fromkeys(("fc1", "c_fc", "dense_h_to_4h"), ("up",)),
    **dict.fromkeys(("fc2", "dense_4h_to_h"), ("down",)),
    "c_proj": ("output", "down"),
}


def read_lora(parsed: PlanFile, model: ModelConfig, source: Source) -> Lora | None:
    """The adapters that are trained in place of the model, if the plan has any."""
    table = parsed.workload.lora
    if table is None:
        return None
    narrow = compute_dtype(parsed)
    if table.precision not in ("fp32", narrow):
        raise source.error(
            f"adapters in {table.precision} beside a model in {narrow}", PRECISION, remedy=f'Use "fp32" or "{narrow}".'
        )
    if table.double_quantisation and table.base_precision is None:
        what = "only scales of weights in 4 bits are quantised"
        raise source.error(what, DOUBLE, remedy='Set workload.lora.base_precision = "nf4", or leave this key out.')
    if table.prepared and table.base_precision is None:
        what = "prepare_model_for_kbit_training is called on weights in 4 bits"
        raise source.error(what, PREPARED, remedy='Set workload.lora.base_precision = "nf4", or leave this key out.')
    targets = _targets(table.target_modules, model, source)
    base, double = table.base_precision or "", table.double_quantisation
    return Lora(table.rank, targets, table.dropout, table.precision, base, double, table.prepared)


def _targets(written: str | list[str], model: ModelConfig, source: Source) -> tuple[str, ...]:
    """Our names of products that have an adapter, in the layer's order."""
    own = module_names(model)
    if written == ALL:
        return tuple(own.values())
    names = [written] if isinstance(written, str) else written
    of_name: dict[str, tuple[str, ...]] = {name: (ours,) for name, ours in own.items()}
    if not model.gated_mlp:
        of_name |= {name: found for name, found in OTHER_NAMES.items() if set(found) <= set(own.values())}
    if unknown := [name for name in names if name not in of_name]:
        raise source.error(
            f"{', '.join(map(repr, unknown))}: no linear layer of {model.name}",
            TARGETS,
            remedy=f'Choose among {", ".join(own)}, or "{ALL}".',
        )
    if not names:
        raise source.error("no linear layer has an adapter", TARGETS, remedy=f'Name some, or "{ALL}".')
    named = {ours for name in names for ours in of_name[name]}
    return tuple(ours for ours in own.values() if ours in named)


def module_names(model: ModelConfig) -> dict[str, str]:
    """Names in transformers of a layer's products, each with ours, in the layer's order."""
    alone = shard(model, Implementation(modules="transformers"), 1, 1)
    products = [one.name for one in linears(alone)]
    joint_up = "up" in products and "gate" not in products and model.gated_mlp
    theirs = {ours: name for name, ours in NAMES.items() if (name == "gate_up_proj") == joint_up or ours != "up"}
    return {theirs[name]: name for name in products}


def adapter_weights(plan: Plan) -> int | None:
    """Weights of all adapters; ``None`` without any."""
    lora, model = plan.workload.lora, plan.workload.model
    if lora is None:
        return None
    of_layer = linears(shard(model, Implementation(modules="transformers"), 1, 1))
    adapted = (one for one in of_layer if one.name in lora.targets)
    return model.layers * sum(sum(lora.elements(one.outputs, one.inputs)) for one in adapted)


def lora_assumptions(plan: Plan) -> tuple[str, ...]:
    """What is trained, and what adapters in fp32 run under."""
    weights, lora = adapter_weights(plan), plan.workload.lora
    if weights is None or lora is None:
        return ()
    all_of_them = plan.workload.model.parameters + weights
    precision, caster = plan.workload.dtype, "FSDP" if plan.parallelism.fsdp else "torch.autocast"
    cast = f", which {caster} casts to {precision}" if lora.dtype != precision else ""
    said = f"{weights:,} of {all_of_them:,} parameters are trained, in {lora.dtype}{cast}; the rest is frozen"
    if not lora.base:
        return (said,)
    outside = f"are in {precision}"
    if lora.prepared:
        outside = (
            "were cast to fp32 by prepare_model_for_kbit_training, so that linear layers give fp32 under torch.autocast"
        )
    return (
        f"{said}, linear layers of the model in 4 bits, which bitsandbytes writes out in {precision} before each "
        f"product; norms, embedding and head {outside}",
    )


def check_lora(plan: Plan, source: Source) -> None:
    """Adapters are known of dense models in modules whose products stand apart, whole on each GPU or sharded."""
    lora, run, model = plan.workload.lora, plan.implementation, plan.workload.model
    if lora is None:
        return
    one = "split the batch alone"
    problems = (
        (run.framework != "pytorch-eager", "in Megatron", 'Set implementation.framework = "pytorch-eager"'),
        (run.modules == "joint", "in joint products", 'Set implementation.modules = "transformers"'),
        (model.experts is not None, "beside experts", "Choose a dense model"),
        (model.latent is not None, "beside latent attention", "Choose another model"),
        (bool(model.own_code) or model.learned_positions > 0, f"in the code of {model.name}", "Choose another model"),
        (plan.workload.narrow is not None, "beside products in FP8", 'Set workload.precision = "bf16"'),
        (run.compile, "in compiled modules", "Set implementation.compile = false"),
        (plan.tp > 1 or plan.cp > 1 or plan.pp > 1, "of a model split over GPUs", f"Set the sizes to 1 and {one}"),
        (plan.overlap.nanobatches > 1, "in nano-batches", "Set overlap.nanobatches = 1"),
        (plan.schedule.recompute not in ("none", "full"), "recomputed in part", 'Set schedule.recompute = "full"'),
    )
    source.refuse(problems, KEY, what="adapters {} are not known", kind=NotYetError)
    _check_precision(plan, lora, source)


def _check_precision(plan: Plan, lora: Lora, source: Source) -> None:
    run, narrow = plan.implementation, plan.workload.dtype
    wide = run.parameter_precision != narrow
    problems = (
        (plan.parallelism.fsdp, "under FSDP", "Set parallelism.fsdp = false"),
        (run.modules != "transformers", "in other modules", 'Set implementation.modules = "transformers"'),
        (run.main_parameters, "with DeepSpeed's second copy", "Set implementation.main_parameters = false"),
        (wide, "beside parameters in fp32", "Leave implementation.parameter_precision out"),
        (narrow == "fp32", "written out in fp32", 'Set workload.precision = "bf16"'),
    )
    source.refuse(problems if lora.base else (), BASE, what="weights in 4 bits {} are not known", kind=NotYetError)
    own, way = run.attention_backend == "unfused", 'Set implementation.attention_backend = "cudnn"'
    prepared = (
        (own, "transformers' own attention", way),
        (plan.workload.model.paired_rotary, f"the rotation of {plan.workload.model.name}", "Choose another model"),
    )
    what = "{} on values in fp32 is not known"
    source.refuse(prepared if lora.prepared else (), PREPARED, what=what, kind=NotYetError)
    if wide and lora.dtype == narrow:
        raise source.error(
            "adapters are narrower than the frozen weights", PRECISION, remedy=f'Use "{run.parameter_precision}".'
        )
    if run.main_parameters and lora.dtype != narrow:
        raise source.error(
            "DeepSpeed keeps a second copy in fp32 of narrower adapters", PRECISION, remedy=f'Use "{narrow}".'
        )
