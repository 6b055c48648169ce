"""Micro-batches of so many samples, or of so many tokens, as tools have them that learn from completions."""

from __future__ import annotations

from joulecast.errors import counted
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.settings_file import SettingsFile


def put_micro_batch(
    config: SettingsFile,
    draft: Draft,
    keys: tuple[str, ...],
    dynamic: tuple[str, bool],
    most: tuple[str, int],
    total: int,
) -> int | None:
    """Put the samples of a micro-batch: as many as the job says, or as its tokens hold of the longest.

    Parameters
    ----------
    keys
        Settings of a number for each GPU; the last is of all GPUs.
    dynamic, most
        The switch of micro-batches of so many tokens, and that number, with their defaults.
    total
        Samples of an optimizer's step on one GPU.

    Raises
    ------
    InputError
        The samples cannot be split so.
    """
    config.know((*keys, most[0]))
    length = draft.value("workload.sequence_length")
    if not config.value(dynamic[0], bool, dynamic[1]):
        key = config.first(keys)
        found = config.whole(key)
        if found is not None and key == keys[-1] and len(keys) > 1:
            found = max(1, found // draft.value("cluster.gpus"))
        if found is not None and total % found:
            what = f"the {total} samples of a step on each GPU are not split into {found}"
            raise config.error(what, key, f"Use a divisor of {total}.")
        if found is None:
            draft.missing["workload.micro_batch_size"] = f"samples of a micro-batch on each GPU ({keys[0]})"
        draft.put("workload.micro_batch_size", found, *config.source(key))
        return found
    tokens = config.whole(most[0], most[1]) or most[1]
    if length is None:
        return None
    if tokens < length:
        what = f"a micro-batch of {tokens} tokens does not hold a sample of {length}"
        raise config.error(what, most[0], f"Use at least {length}, or shorter samples.")
    found = max(size for size in range(1, min(total, tokens // length) + 1) if total % size == 0)
    draft.put("workload.micro_batch_size", found, *config.source(most[0]))
    held = f"{counted(found, 'sample')}, as {tokens} tokens hold of the longest"
    draft.warn(
        f"{config.own(dynamic[0])}: micro-batches are forecast of {held}; where samples are shorter add --set "
        "workload.micro_batch_size=MEAN"
    )
    return found
