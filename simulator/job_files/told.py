"""What readers of several tools say of a job that a plan cannot say."""

from __future__ import annotations

from collections.abc import Mapping

OFFLOADED = (
    "what is kept on the host or on disks and moved over PCIe is not forecast: the iteration would take much longer"
)
ADAPTERS = (
    "adapters beside frozen weights cannot be said in a plan, which would be of gradients and states of all weights"
)
QUANTISED = "weights in 4 or 8 bits are not known, but for bitsandbytes' 4 bits beside adapters"
PREFERENCES = (
    "training on preferences, rewards or own texts is known of DPO, ORPO, SimPO, KTO, reward models, GRPO and RLOO in "
    "transformers' layers: this runs other models, or texts, beside"
)
SPLIT = "splits of Hugging Face's layers over GPUs are not known"


def words(text: str) -> tuple[str, ...]:
    """Names that a text has with spaces between them.

    >>> words("temperature top_p")
    ('temperature', 'top_p')
    """
    return tuple(text.split())


def by_name(said: Mapping[str, str]) -> dict[str, str]:
    """What is said of each of some names, which a key holds with spaces between them.

    >>> by_name({"lora qlora": "adapters"})
    {'lora': 'adapters', 'qlora': 'adapters'}
    """
    return {name: what for names, what in said.items() for name in names.split()}


def other_optimizer(name: str, usual: str = "AdamW") -> str:
    """Why an optimizer is refused that a plan does not have."""
    return f"the step and the states of {name} are not known: time and memory would be those of {usual}"


def packed(key: str) -> str:
    """What packing changes."""
    return (
        f"{key}: attention is forecast over whole sequences; if it keeps the samples that fill them apart add --set "
        "workload.document_tokens=TOKENS, a number or a CSV of lengths, and document_packing=whole if none is cut"
    )


def unpacked(key: str, length: int) -> str:
    """What samples of different lengths change."""
    return (
        f"samples are not packed: all are forecast with {length} tokens ({key}), the most there may be; if they are "
        "shorter add --set workload.sequence_length=MEAN"
    )
