"""Plans of published training iterations: what the source says, and what is assumed where it does not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from joulecast.calibrate.published.rows import PublishedRow
from joulecast.errors import DataError, InputError, nearest
from joulecast.model.cluster.links import usual_node
from joulecast.model.hardware.catalogue import gpu_names, load_gpu, load_node
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict


@dataclass(frozen=True)
class Generation:
    """A generation of training frameworks: what its runs have in common and publications do not repeat.

    Attributes
    ----------
    name
        As plans call it; empty for one without a factor of its own.
    sources
        Pattern that the row's ``source`` matches.
    attention_backend
        Kernels of attention; ``unfused`` are separate products and a softmax kernel. NVIDIA's launcher of NeMo 1 kept
        Transformer Engine from cuDNN's until they were tested more (``NVTE_FUSED_ATTN: 0`` in its ``conf/config.yaml``,
        commit 01d07738), so that FlashAttention-2's ran; dgxc-benchmarking v25.02 does so for GPT-3 and Nemotron-4
        340B (``configure.sh`` of its ``nemo_megatron`` and ``nemotron``), but not for Llama 3.1 and Nemotron-4 15B.
    overlapped
        Whether communication runs beside computation: of gradients, and of tensor parallelism where nothing is said.
    fp8_recipe
        Scaling of FP8 where the source names none.
    gradient_precision
        Data type in which gradients are kept and reduced; ``None``: Megatron's default, fp32. NeMo 2's recipes, which
        dgxc-benchmarking runs from v25.04 on, and Megatron-Bridge's for Llama set ``grad_reduce_in_fp32 = False``;
        those of NeMo 1 for GPT-3 175B and Nemotron-4 340B, and MLPerf's for GPT-3, ``grad_sync_dtype: bf16``, the type
        of the buffer that Apex's optimizer has products add to.
    recipes
        Pattern of where the row stands, or of its model, besides.
    alone
        Whether the generation's factor is found while all others stand, see :mod:`joulecast.calibrate.published.alone`.
    """

    name: str
    sources: str
    attention_backend: str
    overlapped: bool
    fp8_recipe: str = "delayed"
    gradient_precision: str | None = None
    recipes: str = ""
    alone: bool = False


#: Frameworks by generation, the first match counts; the last stands for all others.
GENERATIONS = (
    Generation("megatron-lm-2021", r"SC'21|Narayanan|Korthikanti|2205\.05198|2104\.04473", "unfused", False),
    Generation("nemo-2024", r"dgxc-benchmarking v25\.0[4-9]", "cudnn", True, gradient_precision="bf16"),
    Generation(
        "nemo-2024", r"NeMo performance summary", "flash-attn-2", True, gradient_precision="bf16", recipes=r"175B"
    ),
    Generation("nemo-2024", r"NeMo performance summary", "flash-attn-2", True),
    Generation("nemo-2024", r"dgxc", "flash-attn-2", True, gradient_precision="bf16", recipes=r"nemo_megatron/|340b"),
    Generation("nemo-2024", r"MLPerf", "cudnn", True, gradient_precision="bf16", recipes=r"gpt3"),
    Generation("nemo-2024", r"NeMo|dgxc|MLPerf", "cudnn", True),
    Generation("megatron-bridge-2025", r"Megatron-Bridge", "cudnn", True, "tensorwise", "bf16"),
    Generation("megatron-core", r"SimuMax", "cudnn", False),
    # Megatron-LM's layers of 2021 in DeepSpeed's pipeline, gradients reduced after it; the first with FlashAttention-2.
    Generation("deepspeed", r"FlagPerf.*DeepSpeed", "flash-attn-2", False, alone=True),
    Generation("deepspeed", r"DeepSpeed|MT-NLG", "unfused", False, alone=True),
    # No scalar of its own: scripts of Megatron that ask for FlashAttention, and for nothing beside anything.
    Generation("", r"FlagPerf", "flash-attn-2", False),
    # No scalar of its own. Gradients are reduced beside backwards; attention is FlashAttention's own package.
    Generation("", r"InternEvo", "flash-attn-2", True),
    # No scalar of its own. Products and one kernel of scale, mask, softmax and dropout.
    Generation("", r"OneFlow", "unfused", True),
    # No scalar of its own. What llm-foundry's benchmarks run, to add ALiBi's bias, is FlashAttention in Triton.
    Generation("", r"llm-foundry|Composer", "flash-attention-1", True, "tensorwise", "bf16"),
    # No scalar of its own. What PyTorch's own attention runs is FlashAttention-2.
    Generation("", r"torchtitan|PyTorch", "flash-attention-2", True, "tensorwise", "bf16"),
    Generation("", r"", "cudnn", True),
)


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


def generation_of(row: PublishedRow) -> Generation:
    """Framework generation of a row, by what its source says that it ran."""
    recipe = f"{row.source_url_or_repo_path} {row.model}"
    return next(
        g
        for g in GENERATIONS
        if re.search(g.sources, row.source, re.IGNORECASE) and re.search(g.recipes, recipe, re.IGNORECASE)
    )


def plan_row(row: PublishedRow) -> PlannedRow:
    """Plan of a row.

    Raises
    ------
    InputError
        The row cannot be planned; names file, line and column.
    """
    generation = generation_of(row)
    assumed = _Assumed([])
    tables = _tables(row, generation, assumed)
    try:
        plan = plan_from_dict(tables)
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
    recompute = assumed.value(row.recompute, "none", "no recomputation")
    parallelism = _parallelism(row, virtual, assumed)
    overlap = _overlap(row, generation, parallelism, assumed, replicas=data * (row.cp or 1))
    network = re.search(r"(\d+) x (\d+) Gbit/s a node", row.notes)
    modules = re.search(r"recompute-modules (\S+)", row.notes)
    return {
        "workload": {
            "model": _model(row, assumed),
            "sequence_length": row.seq_len,
            "micro_batch_size": micro,
            "global_batch_size": batch,
            "precision": row.dtype,
            **({"fp8_recipe": _recipe(row, generation)} if row.dtype == "fp8" else {}),
        },
        "network": {"nics_per_node": int(network[1]), "nic_gbit_per_s": float(network[2])} if network else {},
        "cluster": {"gpu": gpu_name(row), "gpus": row.num_gpus} | _gpus_per_node(row),
        "parallelism": parallelism,
        "schedule": {"name": _schedule(row.pp, virtual), "recompute": recompute}
        | ({"recompute_modules": modules[1].split("+")} if modules else {}),
        "overlap": overlap,
        "implementation": {
            "framework": "megatron",
            "generation": generation.name or None,
            "attention_backend": generation.attention_backend,
            "fused_loss": generation.attention_backend != "unfused",
            "cuda_graphs": "CUDA graphs" in row.notes,
            "gradient_precision": generation.gradient_precision,
        },
    }


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


def _model(row: PublishedRow, assumed: _Assumed) -> dict[str, Any]:
    """The model as the plan's inline table: gated ones are Llama's kind, the others GPT's."""
    gated = assumed.value(row.gated_mlp, row.kv_heads not in (None, row.heads), "kind of MLP")
    return {
        "hidden_size": row.hidden,
        "num_attention_heads": row.heads,
        "num_key_value_heads": row.kv_heads or row.heads,
        "head_dim": row.head_dim or row.hidden // row.heads,
        "intermediate_size": row.ffn_hidden,
        "vocab_size": padded_vocabulary(row.vocab, row.tp),
        "num_hidden_layers": row.num_layers,
        "gated_mlp": gated,
        "bias": not gated,
        "norm": "rmsnorm" if gated else "layernorm",
        "activation": "silu" if gated else "gelu",
        "rotary": gated,
        "tie_word_embeddings": not gated,
    }


def padded_vocabulary(size: int, tensor_parallel: int) -> int:
    """Megatron's table of tokens: a multiple of 128 rows on every tensor-parallel rank.

    >>> padded_vocabulary(50257, 4)
    50688
    """
    step = 128 * tensor_parallel
    return -(-size // step) * step


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
    base, more = divmod(layers, stages)
    first = (stages - more) // 2
    return tuple(base + (first <= stage < first + more) for stage in range(stages))


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


def gpu_name(row: PublishedRow) -> str:
    """Catalogue name of the row's GPU: as it stands, or without the form factor."""
    name = row.gpu.strip().lower()
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
