"""Plans of measured training rows, from their configuration alone."""

from __future__ import annotations

import re
from typing import Any

from joulecast.calibrate.rows.fields import MOST, Configuration, flag, whole_number
from joulecast.errors import DataError
from joulecast.validate.megatron_rows import with_megatron

#: Documents that sequences were packed with and attention kept apart, and a loss that is no cross-entropy, of which
#: some take pairs of sequences: keys in the words of ``[workload]``.
AS_IN_WORKLOAD = (
    *("document_tokens", "document_packing"),
    *("objective", "reference", "completion_tokens", "teacher", "old_log_probabilities", "num_iterations"),
)
_REQUIRED = ("hidden", "heads", "vocab", "layers")


def plan_of_row(configuration: Configuration, gpu: str) -> dict[str, Any]:
    """Tables of a PLAN.toml that describe a row of op ``train_iter`` or ``train_step``.

    Raises
    ------
    DataError
        If a needed field is missing or a word is not understood.
    """
    if configuration.get("op") == "train_step":
        return _single_gpu_step(configuration, gpu)
    tables = _iteration(configuration, gpu)
    return with_megatron(tables, configuration) if configuration.get("framework") == "megatron" else tables


def inline_model(configuration: Configuration) -> dict[str, Any]:
    """The row's model as the plan's inline table."""
    hidden, heads, vocab, layers = (whole_number(configuration, key) for key in _REQUIRED)
    groups = whole_number(configuration, "kv_heads", heads)
    if hidden % heads or heads % groups:
        raise DataError(f"{heads} heads do not divide {hidden} columns, or {groups} key-value heads them", key="heads")
    return {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "intermediate_size": whole_number(configuration, "ffn", 4 * hidden),
        "vocab_size": vocab,
        "num_hidden_layers": layers,
        "gated_mlp": flag(configuration, "gated_mlp", True),
        "bias": flag(configuration, "bias"),
        "norm": _word(configuration, "norm", "rmsnorm", {"rmsnorm", "layernorm"}),
        "activation": _word(configuration, "activation", "silu", {"silu", "gelu", "gelu_new"}),
        "rotary": flag(configuration, "rotary"),
        **learned(configuration),
        "tie_word_embeddings": flag(configuration, "tied_embeddings"),
        **_experts(configuration),
    }


def workload_model(row: Configuration) -> dict[str, Any]:
    """The model of a row as a plan's workload has it: of the catalogue, shortened, where the row names one."""
    if row.get("catalogue") is None:
        return {"model": inline_model(row)}
    return {"model": str(row["catalogue"]), "layers": whole_number(row, "layers")}


def _experts(configuration: Configuration) -> dict[str, Any]:
    """Experts in place of the MLP: how many, how many each token is sent to, and the width of one."""
    if configuration.get("experts") is None:
        return {}
    shared = configuration.get("shared_ffn") is not None
    return {
        "num_experts": whole_number(configuration, "experts"),
        "num_experts_per_tok": whole_number(configuration, "experts_per_token"),
        "moe_intermediate_size": whole_number(configuration, "expert_ffn"),
        **({"shared_expert_intermediate_size": whole_number(configuration, "shared_ffn")} if shared else {}),
    }


def learned(configuration: Configuration) -> dict[str, Any]:
    """A learned table of positions, and products in front of attention that differ, where the row says it."""
    found: dict[str, Any] = {}
    if configuration.get("learned_positions") is not None:
        found["learned_positions"] = whole_number(configuration, "learned_positions")
    for key in ("joint_projections", "qkv_bias"):
        if configuration.get(key) is not None:
            found[key] = flag(configuration, key)
    return found


def _word(configuration: Configuration, key: str, default: str, known: set[str]) -> str:
    word = str(configuration.get(key) or default).lower()
    word = word if word in known else word.replace("_", "")
    if word not in known:
        raise DataError(f"{configuration.get(key)!r} is not a known {key}", key=key)
    return word


def _single_gpu_step(row: Configuration, gpu: str) -> dict[str, Any]:
    """One micro-batch on one GPU."""
    one = {"tp": 1, "pp": 1, "dp": 1, "gpus": 1, "microbatches": 1, "schedule": "none"}
    return _iteration({**row, **one, "micro_batch": row.get("B"), "seq": row.get("S")}, gpu)


def _iteration(row: Configuration, gpu: str) -> dict[str, Any]:
    tp, pp, cp, dp = (whole_number(row, key, 1) for key in ("tp", "pp", "cp", "dp"))
    micro_batch, microbatches = whole_number(row, "micro_batch", 1), whole_number(row, "microbatches", 1)
    virtual = whole_number(row, "virtual_stages_per_rank", 1) if pp > 1 else 1
    return {
        "workload": {
            **workload_model(row),
            "sequence_length": whole_number(row, "seq"),
            "micro_batch_size": micro_batch,
            "global_batch_size": micro_batch * microbatches * dp,
            **precision(row),
            **expert_load(row),
            **adapters(row),
            **{key: row[key] for key in AS_IN_WORKLOAD if row.get(key) is not None},
        },
        "cluster": {"gpu": gpu, "gpus": tp * pp * cp * dp},
        "parallelism": {
            "tensor_model_parallel_size": tp,
            "pipeline_model_parallel_size": pp,
            "virtual_pipeline_model_parallel_size": virtual,
            "data_parallel_size": dp,
            "sequence_parallel": flag(row, "sequence_parallel"),
            "context_parallel_size": cp,
            "cp_comm_type": str(row.get("cp_comm_type") or "p2p"),
            "expert_model_parallel_size": whole_number(row, "ep", 1),
            **sharding(row),
        },
        # With one stage the schedule means nothing: the micro-batches run in a loop.
        "schedule": {
            "name": str(row.get("schedule") or "1f1b") if pp > 1 else "none",
            **recomputation(row),
        },
        "overlap": communication_beside(row),
        "implementation": {
            "framework": "pytorch-eager",
            "attention_backend": str(row.get("attention_backend") or "cudnn"),
            "shard_head": head_is_sharded(row.get("head")),
            "compile": flag(row, "compiled"),
            "zero_grad_set_to_none": flag(row, "zero_grad_set_to_none") if "zero_grad_set_to_none" in row else None,
            "gradient_clipping": flag(row, "gradient_clipping"),
            "parameter_precision": row.get("parameter_precision"),
            "gradient_precision": row.get("gradient_precision"),
            "host_launch_us": row.get("host_launch_us"),
            "optimizer": str(row.get("plan_optimizer") or "adamw"),  # ``optimizer`` describes AdamW in words
            **modules(row),
            **permutation(row),
        },
    }


def precision(row: Configuration) -> dict[str, Any]:
    """Data type, or how linear layers run in FP8."""
    if row.get("float8") is not None:
        return {"precision": "fp8", "fp8_recipe": str(row["float8"])}
    return {"precision": str(row.get("dtype") or "bf16")}


def modules(row: Configuration) -> dict[str, Any]:
    """Whose modules ran, with what dropout, where the row says it."""
    words = {key: str(row[key]) for key in ("modules", "log_probabilities") if row.get(key) is not None}
    return words | {key: row[key] for key in ("dropout", "liger_kernel") if row.get(key)}


def adapters(row: Configuration) -> dict[str, Any]:
    """Adapters that were trained in place of the model, in the words of ``[workload.lora]``."""
    found = row.get("lora")
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise DataError("field 'lora' is not a table", key="lora")
    return {"lora": found}


def permutation(row: Configuration) -> dict[str, Any]:
    """Which kernels sort and sum the experts' rows, where the row says it."""
    if row.get("permute_fusion") is None:
        return {}
    fused, operator = flag(row, "permute_fusion"), row.get("row_operator")
    return {"moe_permute_fusion": fused, **({} if operator is None else {"moe_row_operator": str(operator)})}


def expert_load(row: Configuration) -> dict[str, Any]:
    """Rows of the busiest rank's experts over the mean, where the row says it."""
    load = row.get("expert_load")
    if load is None:
        return {}
    if isinstance(load, bool) or not isinstance(load, int | float) or not 1 <= load <= MOST:
        raise DataError("field 'expert_load' is not a number of at least 1", key="expert_load")
    return {"moe_load_imbalance": float(load)}


def sharding(row: Configuration) -> dict[str, Any]:
    """Parameters sharded by ``fully_shard``, over all ranks or over ``fsdp_shard_size`` of them."""
    if not flag(row, "fsdp"):
        return {}
    return {"fsdp": True, "fsdp_shard_size": whole_number(row, "fsdp_shard_size", whole_number(row, "dp", 1))}


def communication_beside(row: Configuration) -> dict[str, Any]:
    """What of the replicas' communication runs beside computation: gathering of shards, or reduction of gradients."""
    if flag(row, "fsdp"):
        return {"fsdp_prefetch": flag(row, "fsdp_prefetch", True)}
    return gradient_reduction(row)


def gradient_reduction(row: Configuration) -> dict[str, Any]:
    """After the last backward, one collective per parameter; or DDP's buckets beside the last backward."""
    words = str(row.get("grad_allreduce") or "not overlapped").lower()
    negated = re.search(r"\b(not|non|no|without)[ -]+(overlap|ddp)|unoverlapped", words)
    if negated or not re.search(r"overlap|\bddp\b", words):
        return {"grad_reduce": "after"}
    size = re.search(r"(\d+(?:\.\d+)?)\s*mi?b\b", words)
    return {"grad_reduce": "overlapped"} | ({"grad_bucket_mb": float(size[1])} if size else {})


def head_is_sharded(value: object) -> bool:
    """Whether the output head is split over the tensor-parallel ranks; by default it is not."""
    if isinstance(value, bool):
        return value
    words = str(value or "").lower()
    negated = re.search(r"\b(not|no|un|full|whole|replicated|false|none)", words)
    return bool(re.search(r"shard|parallel|split|true|yes", words)) and not negated


def recomputation(row: Configuration) -> dict[str, Any]:
    """What is computed again in the backward: ``full`` in any wording that begins so, or modules joined by ``+``."""
    value = row.get("recompute")
    if isinstance(value, bool):
        return {"recompute": "full" if value else "none"}
    words = str(value or "none").lower()
    words = "full" if re.match(r"full\b", words) else words
    if row.get("framework") == "megatron" and words not in ("none", "full"):
        return {"recompute": "selective", "recompute_modules": words.split("+")}
    return {"recompute": words}
