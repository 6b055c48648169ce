"""Plans of published training iterations: what the source says, and what is assumed where it does not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from joulecast.calibrate.published.generations import Generation, generation_of
from joulecast.calibrate.published.rows import PublishedRow
from joulecast.errors import DataError, InputError, nearest
from joulecast.model.cluster.links import usual_node
from joulecast.model.framework.vocabulary import padded_vocabulary
from joulecast.model.hardware.catalogue import gpu_names, load_gpu, load_node
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict
from joulecast.simulator.plan_file.stages import balanced_layers

#: Of attention in separate kernels: Megatron-LM's default, which sources of those years do not speak of. How likely a
#: value is dropped decides nothing here.
DROPOUT = 0.1
#: What notes say of torchtitan's recomputation of operators, which a plan knows of torchtitan's own modules.
OPERATORS = "every other matrix product"


@dataclass(frozen=True)
class PlannedRow:
    """A row with its plan.

    Attributes
    ----------
    assumptions
        What the source does not say and the plan takes for granted.
    """

    row: PublishedRow
    plan: Plan
    generation: Generation
    assumptions: tuple[str, ...]


def plan_row(row: PublishedRow) -> PlannedRow:
    """Plan of a row: that of its keys alone where these are a whole one, as of a job that was measured.

    Raises
    ------
    InputError
        The row cannot be planned; names file, line and column.
    """
    generation = generation_of(row)
    assumed = _Assumed([])
    tables = {} if row.is_plan else _tables(row, generation, assumed)
    try:
        plan = plan_from_dict(tables, row.file or None, [f"{key}={value}" for key, value in row.keys])
    except InputError as error:
        raise DataError(error.message, file=row.file, line=row.line, key=error.key, remedy=error.remedy) from None
    return PlannedRow(row, plan, generation, tuple(assumed.words))


@dataclass(frozen=True)
class _Assumed:
    words: list[str]

    def value(self, given: Any, default: Any, words: str) -> Any:
        """What is given, else the default, noted."""
        if given is not None:
            return given
        self.words.append(f"{words} (not stated)")
        return default


def _tables(row: PublishedRow, generation: Generation, assumed: _Assumed) -> dict[str, Any]:
    virtual = assumed.value(row.vpp, 1, "no interleaving") if row.pp > 1 else 1
    data = _data_parallel(row, row.cp or 1)
    micro = assumed.value(row.micro_batch, 1, "micro-batches of 1 sample")
    batch = assumed.value(row.global_batch, 2 * row.pp * micro * data, "two micro-batches a stage and replica")
    parallelism = _parallelism(row, virtual, assumed)
    overlap = _overlap(row, generation, parallelism, assumed, replicas=data * (row.cp or 1))
    network = re.search(r"(\d+) x (\d+) Gbit/s a node", row.notes)
    return {
        "workload": {
            "model": _model(row, generation, assumed),
            "sequence_length": row.seq_len,
            "micro_batch_size": micro,
            "global_batch_size": batch,
            "precision": row.dtype,
            **({"fp8_recipe": _recipe(row, generation)} if row.dtype == "fp8" else {}),
        },
        "network": {"nics_per_node": int(network[1]), "nic_gbit_per_s": float(network[2])} if network else {},
        "cluster": {"gpu": gpu_name(row), "gpus": row.num_gpus} | _gpus_per_node(row),
        "parallelism": parallelism,
        "schedule": {"name": _schedule(row.pp, virtual), **_recomputation(row, generation, assumed)},
        "overlap": overlap,
        "implementation": _implementation(row, generation, assumed),
    }


def _implementation(row: PublishedRow, generation: Generation, assumed: _Assumed) -> dict[str, Any]:
    """What the framework runs: Megatron's options, or those of PyTorch with FSDP's mixed precision."""
    found: dict[str, Any] = {
        "framework": generation.framework,
        "attention_backend": generation.attention_backend,
        "gradient_precision": "bf16" if "gradients in bf16" in row.notes else generation.gradient_precision,
    }
    if generation.framework == "megatron":
        return found | {
            "generation": generation.scalar or None,
            "fused_loss": generation.attention_backend != "unfused",
            "dropout": DROPOUT if generation.attention_backend == "unfused" else 0.0,
            "cuda_graphs": "CUDA graphs" in row.notes,
            "attention_precision": "fp8" if "attention in FP8" in row.notes else None,
            **dict(generation.options),
        }
    modules = generation.modules
    if row.dtype == "fp8" and modules != "joint" and OPERATORS not in row.notes:
        modules = assumed.value(None, "joint", "float8 layers as measured, in joint products")
    return found | {
        "modules": modules,
        "compile": "torch.compile" in row.notes,
        "parameter_precision": "fp32",
        "gradient_clipping": True,
        **dict(generation.options),
    }


def _recomputation(row: PublishedRow, generation: Generation, assumed: _Assumed) -> dict[str, Any]:
    """What is computed again; PyTorch recomputes whole layers, all or one in so many, or operators."""
    recompute = assumed.value(row.recompute, "none", "no recomputation")
    if generation.framework == "megatron":
        modules = re.search(r"recompute-modules (\S+)", row.notes)
        return {"recompute": recompute, **({"recompute_modules": modules[1].split("+")} if modules else {})}
    if recompute == "selective":
        if OPERATORS in row.notes:
            return {"recompute": "operators"}
        if "every other layer" in row.notes:
            return {"recompute": "full", "recompute_interval": 2}
        return {"recompute": assumed.value(None, "none", "selective recomputation of operators left out")}
    early = generation.recompute_stops_early or recompute != "full"
    return {"recompute": recompute, "recompute_stops_early": early}


def _parallelism(row: PublishedRow, virtual: int, assumed: _Assumed) -> dict[str, Any]:
    named = re.search(r"cp-comm (a2a|all_gather|p2p)", row.notes)
    sequence = row.tp > 1 and assumed.value(row.sequence_parallel, True, "sequence parallelism")
    found: dict[str, Any] = {
        "tensor_model_parallel_size": row.tp,
        "pipeline_model_parallel_size": row.pp,
        "virtual_pipeline_model_parallel_size": virtual,
        "sequence_parallel": bool(sequence),
        "context_parallel_size": row.cp or 1,
        "cp_comm_type": named[1] if named else "p2p",
        "expert_model_parallel_size": row.ep or 1,
    }
    if row.fsdp is not None:
        found |= {"fsdp": True, "fsdp_shard_size": row.fsdp}
    else:
        found["distributed_optimizer"] = assumed.value(row.distributed_optimizer, True, "distributed optimizer")
    if layers := stage_layers(row.num_layers, row.pp * virtual):
        found["stage_layers"] = list(layers)
    return found


def _overlap(
    row: PublishedRow, generation: Generation, parallelism: dict[str, Any], assumed: _Assumed, *, replicas: int
) -> dict[str, Any]:
    reduced = generation.overlapped and replicas > 1 and row.fsdp is None
    in_steps = parallelism["sequence_parallel"] and assumed.value(
        row.tp_comm_overlap, generation.overlapped, "tensor-parallel overlap"
    )
    return {
        "grad_reduce": "overlapped" if reduced else "after",
        "param_gather": "overlapped" if reduced and parallelism["distributed_optimizer"] else "after",
        "tp_comm": bool(in_steps),
    }


def _gpus_per_node(row: PublishedRow) -> dict[str, int]:
    """GPUs joined by fast links: the row's, unless it counts the trays of a rack whose links join them all."""
    usual = usual_node(load_gpu(gpu_name(row)))
    stated = row.gpus_per_node or 8
    return {} if usual is not None and load_node(usual)["gpus_per_node"] > stated else {"gpus_per_node": stated}


def _recipe(row: PublishedRow, generation: Generation) -> str:
    """Scaling of FP8: as the row's notes name it, else what the generation does by default."""
    named = re.search(r"precision (MXFP8|FP8-MX|FP8-CS)", row.notes)
    if named is None:
        return generation.fp8_recipe
    return "tensorwise" if named[1] == "FP8-CS" else "mxfp8"


def _schedule(stages: int, virtual: int) -> str:
    if stages == 1:
        return "none"
    return "interleaved-1f1b" if virtual > 1 else "1f1b"


def _model(row: PublishedRow, generation: Generation, assumed: _Assumed) -> dict[str, Any]:
    """The model as the plan's inline table: gated ones are Llama's kind, the others GPT's."""
    megatron = generation.framework == "megatron"
    gated = assumed.value(row.gated_mlp, row.kv_heads not in (None, row.heads), "kind of MLP")
    return {
        "hidden_size": row.hidden,
        "num_attention_heads": row.heads,
        "num_key_value_heads": row.kv_heads or row.heads,
        "head_dim": row.head_dim or row.hidden // row.heads,
        "intermediate_size": row.ffn_hidden,
        "vocab_size": padded_vocabulary(row.vocab, row.tp) if megatron else row.vocab,
        "num_hidden_layers": row.num_layers,
        "gated_mlp": gated,
        "bias": not gated,
        "norm": "rmsnorm" if gated else "layernorm",
        "activation": "silu" if gated else "gelu",
        "rotary": gated,
        # Megatron's table of positions is left out, as it was when its factors were fitted.
        "learned_positions": 0 if gated or megatron else row.seq_len,
        "tie_word_embeddings": not gated,
    }


def stage_layers(layers: int, stages: int) -> tuple[int, ...] | None:
    """Blocks of each stage where they do not divide: embedding and head count as one block each, else nearest to even.

    >>> stage_layers(126, 8)
    (15, 16, 16, 16, 16, 16, 16, 15)
    >>> stage_layers(7, 3)
    (2, 3, 2)
    """
    if layers % stages == 0:
        return None
    if (layers + 2) % stages == 0 and stages > 2:
        each = (layers + 2) // stages
        return (each - 1, *(each,) * (stages - 2), each - 1)
    return balanced_layers(layers, stages)


def _data_parallel(row: PublishedRow, context: int) -> int:
    """Data-parallel ranks, which the row must agree with."""
    product = row.tp * row.pp * context
    data, rest = divmod(row.num_gpus, product)
    if rest or row.dp not in (None, data):
        raise DataError(
            f"{row.num_gpus} GPUs are not tp {row.tp} x pp {row.pp} x cp {context} x dp {row.dp or '?'}",
            file=row.file,
            line=row.line,
            key="dp",
            remedy="The sizes must multiply to the number of GPUs.",
        )
    return data


#: GPUs that are other products by how many of them a node joins.
JOINED = {("gh200", 4): "gh200-120gb"}


def gpu_name(row: PublishedRow) -> str:
    """Catalogue name of the row's GPU: as it stands, without the form factor, or of what its nodes join."""
    name = row.gpu.strip().lower()
    name = JOINED.get((name, row.gpus_per_node or 0), name)
    for candidate in (name, name.removesuffix("-sxm"), f"{name}-sxm"):
        if candidate in gpu_names():
            return candidate
    raise DataError(
        f"GPU {row.gpu!r} is not in the catalogue",
        file=row.file,
        line=row.line,
        key="gpu",
        remedy=f"Nearest: {', '.join(nearest(name, gpu_names())) or 'none'}.",
    )
