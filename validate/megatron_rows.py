"""Plans of training rows that Megatron-Core ran (``framework``: ``megatron``): what differs from PyTorch's."""

from __future__ import annotations

from typing import Any

from joulecast.calibrate.rows.fields import Configuration, flag
from joulecast.errors import DataError

#: What a plan calls the loss that a row names: fused by Transformer Engine, by Megatron itself, or not.
LOSSES = {"te": True, "native": "native", None: False}


def with_megatron(tables: dict[str, Any], row: Configuration) -> dict[str, Any]:
    """Tables of a plan for Megatron-Core from those that PyTorch would run.

    Raises
    ------
    DataError
        If the row names a loss that is not known, or a field is neither true nor false.
    """
    parallel = tables["parallelism"]
    virtual = parallel["virtual_pipeline_model_parallel_size"] > 1
    replicas = parallel["data_parallel_size"] * parallel["context_parallel_size"] > 1
    distributed = flag(row, "distributed_optimizer")
    return {
        **tables,
        "workload": {**tables["workload"], **_precision(row)},
        "parallelism": {**parallel, "distributed_optimizer": distributed},
        "schedule": tables["schedule"] | ({"name": "interleaved-1f1b"} if virtual else {}),
        "overlap": _reduction(row, replicas, distributed),
        "implementation": _implementation(row),
    }


def _implementation(row: Configuration) -> dict[str, Any]:
    loss = row.get("fused_loss")
    if loss not in LOSSES:
        raise DataError(f"{loss!r} is not a known loss", key="fused_loss", remedy='Use "te" or "native".')
    router = {"moe_router_dtype": row["router_dtype"]} if row.get("router_dtype") is not None else {}
    return {
        "framework": "megatron",
        "generation": str(row.get("generation") or "megatron-core"),
        "attention_backend": str(row.get("attention_backend") or "cudnn"),
        "fused_loss": LOSSES[loss],
        "gradient_precision": row.get("gradient_precision"),
        "host_launch_us": row.get("host_launch_us"),
        **router,
    }


def _precision(row: Configuration) -> dict[str, Any]:
    if row.get("fp8") is None:
        return {}
    kept = {"fp8_param_gather": True} if flag(row, "fp8_parameters") else {}
    return {"precision": "fp8", "fp8_recipe": str(row["fp8"]), **kept}


def _reduction(row: Configuration, replicas: bool, distributed: bool) -> dict[str, Any]:
    """When gradients are reduced and parameters gathered, among replicas that are there."""
    if not replicas:
        return {}
    when = {key: "overlapped" if flag(row, f"overlap_{key}") else "after" for key in ("grad_reduce", "param_gather")}
    return when if distributed else {"grad_reduce": when["grad_reduce"]}
