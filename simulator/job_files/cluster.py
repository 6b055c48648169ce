"""Where a job runs: what it says of its GPUs, and what the user adds."""

from __future__ import annotations

from joulecast.model.cluster.links import usual_node
from joulecast.model.hardware.catalogue import catalogue_name, load_gpu, load_node
from joulecast.simulator.job_files.asked import Asked
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.launcher import Launch
from joulecast.simulator.job_files.settings_file import SettingsFile

#: GPUs of a node where the node type is not known, as plans have it.
USUAL = 8
GPU, GPUS = "cluster.gpu", "cluster.gpus"


def put_cluster(draft: Draft, asked: Asked, launch: Launch) -> str | None:
    """Put GPUs, their number and the power limit into the plan; the GPU's architecture if it is known.

    Raises
    ------
    InputError
        No such GPU.
    """
    if asked.gpu is None:
        draft.missing[GPU] = "the GPU, a name of `joulecast gpus` or the path of a description (--gpu)"
    else:
        draft.put(GPU, catalogue_name(asked.gpu), "--gpu")
    gpus = asked.gpus or launch.gpus
    if gpus is None:
        draft.missing[GPUS] = "how many GPUs there are (--gpus)"
    else:
        source, line = (asked.counted, None) if asked.gpus else (launch.source, launch.line)
        draft.put(GPUS, gpus, source, line)
    description = None if asked.gpu is None else load_gpu(asked.gpu)
    node = None if description is None else usual_node(description)
    joined = int(load_node(node)["gpus_per_node"]) if node else USUAL
    per_node = launch.gpus_per_node
    if per_node and gpus and per_node < min(joined, gpus) and joined <= USUAL and gpus % per_node == 0:
        draft.put("cluster.gpus_per_node", per_node, launch.source, launch.line)
    draft.put("power.power_limit_w", asked.power_limit_w, "--power-limit")
    return None if description is None else description.text("architecture")


def data_parallel_ranks(config: SettingsFile, draft: Draft, product: int, key: str, others: str) -> int | None:
    """Ranks beside tensor, pipeline and context parallelism; ``None`` where the number of GPUs is missing.

    Parameters
    ----------
    product
        Of the sizes of these three.
    key, others
        Where they stand, and the tool's word for them.

    Raises
    ------
    InputError
        The GPUs cannot be split so.
    """
    gpus = draft.value(GPUS)
    if gpus is None:
        return None
    if gpus % product:
        what = f"{gpus} GPUs cannot be split into tensor x pipeline x context = {product}"
        raise config.error(what, key, f"Use a multiple of {product} GPUs (--gpus), or other {others}.")
    return int(gpus // product)
