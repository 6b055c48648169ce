"""Rows of published tables hold several cards: those of the card that is asked for, and the others by card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from joulecast.calibrate.rows import Row
from joulecast.model.description import GpuDescription


def of_card(rows: Sequence[Row], gpu: GpuDescription) -> tuple[list[Row], list[tuple[str, str]]]:
    """Rows that this card (or nobody says which) measured; the others counted by file and card, with the reason."""
    product = str(gpu.device["product"].value) if "product" in gpu.device else ""
    mine = [row for row in rows if product in row.configuration.get("products", (product,))]
    others = Counter(
        (Path(row.file).name, str(row.configuration["card_label"]), " or ".join(row.configuration["products"]))
        for row in rows
        if product not in row.configuration.get("products", (product,))
    )
    return mine, [
        (f"{file}: {count} rows of {label}", f"measured on {products}, not on {product or gpu.name}")
        for (file, label, products), count in others.items()
    ]
