"""Variables that Slurm sets from the options that stand in a batch script."""

from __future__ import annotations

import re

_BATCH = re.compile(r"^#SBATCH[ \t]+(?:--([\w-]+)|-(\w))[= \t]*(\S*)", re.M)
#: Slurm's options, and the variables that it sets from them.
_SLURM = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "N": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "gres": ("SLURM_GPUS_ON_NODE",),
    "ntasks": ("SLURM_NTASKS",),
    "n": ("SLURM_NTASKS",),
}


def slurm_variables(text: str) -> dict[str, str]:
    """Variables that Slurm sets from a batch script's own options."""
    found = {}
    for long, short, value in _BATCH.findall(text):
        for name in _SLURM.get(long or short, ()):
            number = re.search(r"(\d+)$", value)
            if number:
                found[name] = number[1]
    return found
