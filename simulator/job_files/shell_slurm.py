"""Variables that Slurm sets from the options that stand in a batch script."""

from __future__ import annotations

import re

_BATCH = re.compile(r"^#SBATCH[ \t]+(.*?)(?:[ \t]#.*)?$", re.M)
_OPTION = re.compile(r"(?<!\S)(?:--([\w-]+)|-(\w))[= \t]*([^\s-]\S*)")
#: Slurm's options, and the variables that it sets from them.
_SLURM = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "N": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "gres": ("SLURM_GPUS_ON_NODE",),
    "gpus": ("SLURM_GPUS",),
    "G": ("SLURM_GPUS",),
    "ntasks": ("SLURM_NTASKS",),
    "n": ("SLURM_NTASKS",),
}
#: GPUs of ``--gres``, among other things, with their type or without; and a number alone or behind a type.
_GRES = re.compile(r"(?:^|,)(?:gres/)?gpu(?::[\w.-]*[A-Za-z_][\w.-]*)?(?::(\d+))?(?=[(,]|$)")
_COUNT = re.compile(r"(?:.*[:-])?(\d+)")


def slurm_variables(text: str) -> dict[str, str]:
    """Variables that Slurm sets from a batch script's own options."""
    found = {}
    for long, short, value in (option for line in _BATCH.findall(text) for option in _OPTION.findall(line)):
        for name in _SLURM.get(long or short, ()):
            number = None if long == "gres" and "gpu" not in value else slurm_gpus(value)
            if number:
                found[name] = str(number)
    gpus, nodes = int(found.get("SLURM_GPUS", 0)), int(found.get("SLURM_NNODES", 1))
    if gpus and gpus % nodes == 0:
        found.setdefault("SLURM_GPUS_ON_NODE", str(gpus // nodes))
    if {"SLURM_NNODES", "SLURM_NTASKS_PER_NODE"} <= found.keys():
        found.setdefault("SLURM_NTASKS", str(nodes * int(found["SLURM_NTASKS_PER_NODE"])))
    return found


def slurm_gpus(value: str) -> int | None:
    """A number as Slurm's options have it.

    >>> [slurm_gpus(text) for text in ("8", "a100:4", "gpu:h100:4(S:0-1)", "gpu:2,nvme:1", "gpu", "nvme:1,gpu:v100:8")]
    [8, 4, 4, 2, 1, 8]
    """
    if found := _GRES.search(value):
        return int(found[1] or 1)
    match = _COUNT.fullmatch(value)
    return int(match[1]) if match else None
