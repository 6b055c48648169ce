"""Rows of published tables hold several cards: those of the card that is asked for, and the others by card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from joulecast.calibrate.rows.measured import Row
from joulecast.calibrate.rows.measured import of_card as own_rows
from joulecast.model.hardware.description import GpuDescription


def of_card(rows: Sequence[Row], gpu: GpuDescription) -> tuple[list[Row], list[tuple[str, str]]]:
    """Rows that this card (or nobody says which) measured; the others counted by file and card, with the reason."""
    if not any("products" in row.configuration for row in rows):
        return list(rows), []
    mine = own_rows(rows, gpu.device)
    kept = {id(row) for row in mine}
    others = Counter(
        (Path(row.file).name, str(row.configuration["card_label"]), " or ".join(row.configuration["products"]))
        for row in rows
        if id(row) not in kept
    )
    product = gpu.device["product"].value if "product" in gpu.device else gpu.name
    return mine, [
        (f"{file}: {count} rows of {label}", f"measured on {products}, not on {product}")
        for (file, label, products), count in others.items()
    ]
