"""What the published forms have in common: which cards they were measured on."""

from __future__ import annotations

from typing import Any

#: Names of cards in the published files, and the products that they mean.
PRODUCTS = {
    "a100": ("NVIDIA A100-SXM4-80GB",),
    "a100_sxm": ("NVIDIA A100-SXM4-80GB",),
    "a100_pcie": ("NVIDIA A100 80GB PCIe",),
    "a40": ("NVIDIA A40",),
    "h100": ("NVIDIA H100 80GB HBM3",),
    "h100_sxm": ("NVIDIA H100 80GB HBM3",),
    "h200": ("NVIDIA H200",),
    "b200": ("NVIDIA B200",),
    "mi210": ("AMD Instinct MI210",),
}


def measured_on(label: str) -> dict[str, Any]:
    """The fields of a row that say on which card it was measured; an unknown label stands for itself."""
    return {"card_label": label, "products": list(PRODUCTS.get(label, (label,)))}
