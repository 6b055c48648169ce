"""Which optimizer a Megatron job trains with: Adam, or Muon for matrices and Adam for all else."""

from __future__ import annotations

from typing import get_args

from joulecast.model.framework.muon import TensorMode
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.flags import Flags
from joulecast.simulator.job_files.told import other_optimizer

FLAG = "--optimizer"
#: Megatron-Core's names; ``dist_muon`` is ``muon`` with the layer-wise distributed optimizer, since 2026 an old name.
_OPTIMIZERS = ("adam", "adamw", "sgd", "muon", "dist_muon", "adaptive_muon", "lion", "soap")
_LAYER_WISE = "dist_muon"
MUONS = ("muon", _LAYER_WISE)


def optimizer_of(flags: Flags) -> str:
    """Megatron's name of it."""
    return flags.text(FLAG, _OPTIMIZERS) or "adam"


def is_layer_wise(flags: Flags) -> bool:
    """Whether its name alone says that the states are split over the replicas."""
    return optimizer_of(flags) == _LAYER_WISE


def read_optimizer(flags: Flags, draft: Draft) -> None:
    """The optimizer, and Muon's options.

    Raises
    ------
    InputError
        Another optimizer, whose step and states are not known.
    """
    name = optimizer_of(flags)
    if name in ("adam", "adamw"):
        return
    if name not in MUONS:
        raise flags.error(other_optimizer(name, "Adam"), FLAG, "Set it to adam to forecast that instead.")
    put, line = draft.put, flags.line
    put("implementation.optimizer", "muon", f"{FLAG} {name}", line(FLAG))
    steps, mode = flags.whole("--muon-num-ns-steps"), flags.text("--muon-tp-mode", get_args(TensorMode))
    precision = flags.text("--muon-fp32-matmul-prec", ("medium", "high"))
    for key, flag, value in (
        ("muon_num_ns_steps", "--muon-num-ns-steps", steps),
        ("muon_tp_mode", "--muon-tp-mode", mode),
        ("muon_fp32_matmul_prec", "--muon-fp32-matmul-prec", precision),
    ):
        if value is not None:
            put(f"implementation.{key}", value, flag, line(flag))
    for flag in ("--muon-use-nesterov", "--muon-nesterov"):
        if flags.on(flag):
            put("implementation.muon_nesterov", True, flag, line(flag))
    if flags.on("--muon-no-split-qkv"):
        put("implementation.muon_split_qkv", False, "--muon-no-split-qkv", line("--muon-no-split-qkv"))
    scalar = "--muon-scalar-optimizer"
    if flags.text(scalar, ("adam", "lion")) == "lion":
        raise flags.error(other_optimizer("lion", "Adam"), scalar, "Set it to adam to forecast that instead.")
    if name == _LAYER_WISE:
        draft.warn(
            f"{FLAG} {name}: gradients are forecast scattered to the replicas that step them, as later releases of "
            "Megatron-Core do with --optimizer muon --use-distributed-optimizer; 0.15 and 0.16 sum them on every "
            "replica, which moves up to twice the bytes"
        )
