"""Processes that a trainer's command starts, one for each GPU: its launcher's, or those of its tool's environment."""

from __future__ import annotations

import re
from dataclasses import replace

from joulecast.files import is_whole
from joulecast.simulator.job_files.cluster import GPUS
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.launcher import Launch, read_launch
from joulecast.simulator.job_files.shell import Command

#: LLaMA-Factory's commands.
FACTORY = ("llamafactory-cli", "lmf")
#: What says how many GPUs there are, not how many processes; and what starts several with a script.
_NO_LAUNCHER = ("--gpus", "CUDA_VISIBLE_DEVICES")
_STARTING = {"-m", "srun", "mpirun", "mpiexec", "torchrun", "accelerate", "deepspeed"}


def processes(command: Command, place: int, tool: str, *, otherwise: bool) -> Launch:
    """The GPUs of a command whose script, or ``tool``, is its word at ``place``.

    ``otherwise``: where its launcher does not say them, something else does.
    """
    if tool == "swift":
        return _of_swift(command)
    if tool in FACTORY:
        return _of_factory(command)
    launch = read_launch(command.words[:place], command.environment)
    if launch.gpus is None and not otherwise:
        return seen_gpus(command) or launch
    return launch


def tell_processes(command: Command, place: int, tool: str, draft: Draft) -> None:
    """Tell of one process that has several GPUs, of which the forecast is not."""
    seen, gpus = seen_gpus(command), draft.settings.get(GPUS)
    if gpus is None:
        return
    if tool == "swift" and gpus.value == 1 and seen is not None and (seen.gpus or 1) > 1:
        draft.warn(
            f"{seen.source}: one process spreads layers over {seen.gpus} GPUs, which work in turn; the forecast is of "
            "one GPU, for a process on each set NPROC_PER_NODE"
        )
    elif tool.endswith(".py") and gpus.value > 1 and gpus.source in _NO_LAUNCHER and _is_plain(command, place):
        sharded = draft.value("parallelism.fsdp") or draft.value("parallelism.distributed_optimizer")
        copied = (
            f"in which the Trainer copies the model to {gpus.value} GPUs in every step (DataParallel), slower than "
        )
        alone = "which works on one GPU alone" if sharded else f"{copied}forecast, and TRL's fail"
        draft.warn(
            f"{gpus.source}: python starts one process, {alone}; the forecast is of torchrun with a process on each"
        )


def _of_swift(command: Command) -> Launch:
    """Processes that ms-swift starts by two variables of its environment, by default one."""
    names = ("NPROC_PER_NODE", "NNODES")
    if not any(name in command.environment for name in names):
        return Launch(1, None, "default without NPROC_PER_NODE")
    each, nodes = (command.environment.get(name, "1") for name in names)
    if not (is_whole(each) and is_whole(nodes)):
        return Launch()
    return Launch(int(each) * int(nodes), int(each), "NPROC_PER_NODE", command.line)


def _of_factory(command: Command) -> Launch:
    """Processes that LLaMA-Factory starts with torchrun: on each node ``NPROC_PER_NODE``, or the GPUs in sight."""
    nodes, each = (command.environment.get(name, "1") for name in ("NNODES", "NPROC_PER_NODE"))
    seen = seen_gpus(command) or Launch()
    if "NPROC_PER_NODE" in command.environment:
        seen = Launch(int(each) if is_whole(each) else None, None, "NPROC_PER_NODE", command.line)
    if not is_whole(nodes) or seen.gpus is None:
        return Launch()
    if nodes == "1":
        return replace(seen, gpus_per_node=None)
    return replace(seen, gpus=seen.gpus * int(nodes), gpus_per_node=seen.gpus, source=f"NNODES, {seen.source}")


def _is_plain(command: Command, place: int) -> bool:
    """Whether a script is started by Python alone."""
    names = [word.text.rpartition("/")[2] for word in command.words[:place]]
    return any(name.startswith("python") for name in names) and not _STARTING & set(names)


def seen_gpus(command: Command) -> Launch | None:
    """GPUs of one node by those that the job may see, where its launcher takes all."""
    listed = command.environment.get("CUDA_VISIBLE_DEVICES", "")
    words = [word.text for word in command.words]
    excludes = "deepspeed" in words and any(text.startswith("--exclude") for text in words)
    if re.fullmatch(r"\d+(,\d+)*", listed) and not excludes:
        return Launch(listed.count(",") + 1, None, "CUDA_VISIBLE_DEVICES", command.line)
    return None
