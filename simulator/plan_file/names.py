"""What the names in a plan stand for: its GPU, its model and paths, with errors that say where they stand."""

from __future__ import annotations

from dataclasses import replace
from os.path import isdir, isfile
from pathlib import Path

from joulecast.errors import InputError, UnknownNameError
from joulecast.model.architecture.experts import Experts, LatentAttention
from joulecast.model.architecture.hf import hub_remedy, load_model, parse_config
from joulecast.model.architecture.hf_reader import shortest
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.architecture.state_space import MIXERS, StateSpace, expert_turns
from joulecast.model.hardware.catalogue import catalogue_name, load_gpu
from joulecast.model.hardware.description import GpuDescription
from joulecast.simulator.plan_file.schema import PlanFile
from joulecast.simulator.plan_file.schema_workload import ConfigModel, InlineModel, WorkloadTable
from joulecast.simulator.plan_file.source import Source

#: Keys that may name a file, and its ending.
FILES = {
    "workload.model": ".json",
    "workload.teacher": ".json",
    "workload.document_tokens": ".csv",
    "cluster.gpu": ".toml",
    "cluster.node": ".toml",
    "network.name": ".toml",
    "site.name": ".toml",
}


def named_gpu(parsed: PlanFile, source: Source) -> GpuDescription:
    """The GPU that the plan names."""
    try:
        return load_gpu(resolve_path(parsed.cluster.gpu, source, "cluster.gpu"))
    except UnknownNameError as error:
        raise place(error, source, "cluster.gpu") from None


def resolve_path(name: str, source: Source, key: str) -> str:
    """A path in a plan is meant relative to the plan's folder; a catalogue name stays as it is, a driver's becomes it.

    Raises
    ------
    InputError
        There is no such file, neither there nor in the current folder; names the plan and the key.
    """
    suffix = FILES[key]
    if not (name.endswith(suffix) or "/" in name or (suffix == ".json" and isdir(Path(name)))):
        return catalogue_name(name) if key == "cluster.gpu" else name
    for path in (source.folder / name, Path(name)):
        if isfile(path) or (suffix == ".json" and isfile(path / "config.json")):
            return str(path)
    remedy = (
        hub_remedy(name) if suffix == ".json" else None
    ) or "Check the path; it is looked for beside this file, then in the current folder."
    folder = name and any(isdir(path) for path in (source.folder / name, Path(name)))
    absent = ("is a folder without a config.json" if suffix == ".json" else "is a folder") if folder else "no such file"
    raise source.error(f"{name or repr(name)}: {absent}", key, remedy=remedy, kind=InputError)


def resolve_model(table: WorkloadTable, source: Source) -> ModelConfig:
    """The model of a plan from the catalogue, a ``config.json`` or the plan itself, shortened where asked."""
    model = _named_model(table, source)
    if table.layers is None:
        return model
    if table.layers > model.layers:
        raise source.error(
            f"{table.layers} layers, but the model has {model.layers}",
            "workload.layers",
            remedy=f"Use at most {model.layers}, or leave the key out.",
        )
    return replace(model, layers=table.layers)


def _named_model(table: WorkloadTable, source: Source) -> ModelConfig:
    if isinstance(table.model, InlineModel):
        return inline_model(table.model, source)
    if isinstance(table.model, ConfigModel):
        return _config_model(table.model, source)
    return _catalogued(table.model, "workload.model", source)


def _config_model(table: ConfigModel, source: Source) -> ModelConfig:
    """The model of a ``config.json`` whose content stands in the plan."""
    try:
        return parse_config(table.model_dump(), name="inline", file=source.file or "")
    except InputError as error:
        key = f"workload.model.{error.key}" if error.key else "workload.model"
        raise source.error(error.message, key, remedy=error.remedy, kind=type(error)) from None


def resolve_teacher(name: str, source: Source) -> ModelConfig:
    """The model that a distillation's learns from, from the catalogue or a ``config.json``."""
    return _catalogued(name, "workload.teacher", source)


def _catalogued(name: str, key: str, source: Source) -> ModelConfig:
    try:
        return load_model(resolve_path(name, source, key))
    except UnknownNameError as error:
        raise place(error, source, key) from None


def inline_model(table: InlineModel, source: Source) -> ModelConfig:
    """The model that is written into a plan."""
    heads, kv_heads = table.num_attention_heads, table.num_key_value_heads or table.num_attention_heads
    if heads % kv_heads:
        raise source.error(
            f"{heads} attention heads cannot share {kv_heads} key-value heads evenly",
            "workload.model.num_key_value_heads",
            remedy="Use a divisor of num_attention_heads.",
        )
    latent = _inline_latent(table, source)
    if latent is None and table.head_dim is None and table.hidden_size % heads:
        raise source.error(
            f"a hidden size of {table.hidden_size} cannot be split over {heads} heads",
            "workload.model.num_attention_heads",
            remedy="Use a divisor of hidden_size, or give head_dim.",
        )
    mixers, experts = _inline_mixers(table, source), _inline_experts(table, source)
    if mixers:
        experts = _hybrid_experts(mixers, experts, source)
    return ModelConfig(
        name="inline",
        hidden=table.hidden_size,
        layers=table.num_hidden_layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_head_dim(table, latent),
        latent=latent,
        qk_norm=table.qk_norm,
        ffn=table.intermediate_size,
        vocab=table.vocab_size,
        tied_embeddings=table.tie_word_embeddings,
        gated_mlp=table.gated_mlp,
        activation="gelu" if table.activation == "gelu_new" else table.activation,
        gelu_formula=table.activation == "gelu_new",
        joint_projections=table.joint_projections,
        norm=table.norm,
        norm_bias=table.norm == "layernorm",
        qkv_bias=table.bias if table.qkv_bias is None else table.qkv_bias,
        output_bias=table.bias,
        mlp_bias=table.bias,
        rotary=table.rotary,
        learned_positions=table.learned_positions,
        experts=experts,
        mixers=mixers,
        state_space=_inline_state_space(table, mixers, source),
    )


def _head_dim(table: InlineModel, latent: LatentAttention | None) -> int:
    """Size of a head; of latent attention the mean of its key's and value's."""
    if latent is not None:
        return (latent.key_dim + latent.value_dim) // 2
    return table.head_dim or table.hidden_size // table.num_attention_heads


#: Sizes that only latent attention has.
_LATENT = ("q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def _inline_latent(table: InlineModel, source: Source) -> LatentAttention | None:
    if table.kv_lora_rank is None:
        for key in _LATENT:
            if key in table.model_fields_set:
                remedy = "Give kv_lora_rank, or leave this key out."
                raise source.error("this is a size of latent attention", f"workload.model.{key}", remedy=remedy)
        return None
    return LatentAttention(
        query_rank=table.q_lora_rank,
        kv_rank=table.kv_lora_rank,
        plain_dim=table.qk_nope_head_dim,
        rotary_dim=table.qk_rope_head_dim,
        value_dim=table.v_head_dim,
    )


PATTERN = "hybrid_override_pattern"
#: Sizes that only state spaces have.
_OF_STATE_SPACES = ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "mamba_n_groups", "mamba_chunk_size")


def _inline_mixers(table: InlineModel, source: Source) -> tuple[str, ...]:
    """What each layer of a hybrid is made of."""
    pattern, key = table.hybrid_override_pattern, f"workload.model.{PATTERN}"
    if pattern is None:
        for size in _OF_STATE_SPACES:
            if size in table.model_fields_set:
                remedy = f"Give {PATTERN}, or leave this key out."
                raise source.error("this is a size of state spaces", f"workload.model.{size}", remedy=remedy)
        return ()
    if not pattern or set(pattern) - set(MIXERS[:4]):
        raise source.error("not a pattern of layers", key, remedy=f"Write one of {' '.join(MIXERS[:4])} for each.")
    if len(pattern) != table.num_hidden_layers:
        what = f"the pattern has {len(pattern)} layers, the model {table.num_hidden_layers}"
        raise source.error(what, key, remedy="Write a letter for each.")
    return shortest(list(pattern))


def _hybrid_experts(mixers: tuple[str, ...], experts: Experts | None, source: Source) -> Experts | None:
    """Experts in the layers that a hybrid's pattern says."""
    if (experts is None) == ("E" in mixers):
        what = "experts in no layer of the pattern" if experts is not None else "layers of experts without their sizes"
        remedy = "Leave num_experts out." if experts is not None else "Give num_experts and what belongs to it."
        raise source.error(what, f"workload.model.{PATTERN}", remedy=remedy)
    if experts is None:
        return None
    if experts.dense_layers or experts.turns:
        what, remedy = "a hybrid's pattern says which layers have experts", "Leave the others' keys out."
        raise source.error(what, f"workload.model.{PATTERN}", remedy=remedy)
    return replace(experts, turns=expert_turns(mixers))


def _inline_state_space(table: InlineModel, mixers: tuple[str, ...], source: Source) -> StateSpace | None:
    if "M" not in mixers:
        return None
    heads, groups = table.mamba_num_heads or 2 * table.hidden_size // table.mamba_head_dim, table.mamba_n_groups
    if heads % groups:
        what = f"{heads} heads of state spaces are not divisible by {groups} groups"
        raise source.error(what, "workload.model.mamba_n_groups", remedy="Use a divisor of mamba_num_heads.")
    return StateSpace(heads, table.mamba_head_dim, table.ssm_state_size, groups, chunk=table.mamba_chunk_size)


#: Keys that only say something of experts.
_OF_EXPERTS = (
    *("shared_expert_intermediate_size", "first_k_dense_replace", "moe_layer_freq"),
    *("n_group", "topk_group", "moe_router_score_function"),
)


def _inline_experts(table: InlineModel, source: Source) -> Experts | None:
    sizes = {key: getattr(table, key) for key in ("num_experts", "num_experts_per_tok", "moe_intermediate_size")}
    given = [key for key in (*sizes, *_OF_EXPERTS) if getattr(table, key) != InlineModel.model_fields[key].default]
    if not given:
        return None
    for key, size in sizes.items():
        if size is None:
            raise source.error(
                "experts have no such size", f"workload.model.{key}", remedy=f"Give it, or leave {given[0]} out."
            )
    count, active, width = sizes.values()
    if active > count:
        raise source.error(
            f"a token cannot be sent to {active} of {count} experts",
            "workload.model.num_experts_per_tok",
            remedy="Use at most num_experts.",
        )
    if count % table.n_group or table.topk_group > table.n_group:
        raise source.error(
            f"{count} experts cannot be in {table.n_group} groups, {table.topk_group} of which a token may choose from",
            "workload.model.n_group",
            remedy="Use groups of as many experts, and at most all of them.",
        )
    every = table.moe_layer_freq
    return Experts(
        count,
        active,
        width,
        shared_ffn=table.shared_expert_intermediate_size or 0,
        router=_inline_router(table),
        dense_layers=table.first_k_dense_replace,
        groups=table.n_group,
        chosen_groups=table.topk_group,
        turns=() if every == 1 else (True, *(False,) * (every - 1)),
    )


def _inline_router(table: InlineModel) -> str:
    score = table.moe_router_score_function
    return f"grouped {score}" if score == "sigmoid" and "n_group" in table.model_fields_set else score


def place(error: InputError, source: Source, key: str) -> InputError:
    """The same error, naming the place in this input; one that names a file of its own stays as it is."""
    if error.file is not None:
        return error
    return source.error(error.message, key, remedy=error.remedy, kind=InputError)
