"""What recordings of other cards of one kind tell about a card before it is measured, and beside its own rows.

Cards of one kind share their kernels and the form of their power; they differ in the dynamic energy of the chip and of
the memory (:data:`joulecast.calibrate.fit.power.CARD_PARTS`). With the slopes H of the other cards' rows along the
parameters and along their own two factors, each in units of its prior standard deviation, and the rows' noise s,

    cov(z) = (1 + Hᵀ s⁻² H)⁻¹,

of which the parameters' block remains: it is certain about the kernels, and as uncertain about the energy of a further
card as cards differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.fit.device_priors import DevicePriors
from joulecast.calibrate.fit.priors import Prior
from joulecast.calibrate.measure.recording import FILE_NAME, Card, read_recording
from joulecast.calibrate.rows.measured import Row, recorded_folder
from joulecast.calibrate.sessions.update import estimate, is_read, residuals
from joulecast.errors import InputError
from joulecast.model.hardware.gpu_model import GpuModel

#: How folders of recordings are named that the project ships.
SHIPPED = "*_live"
#: Estimates, each from the last one, until the rows of others are met.
ROUNDS = 3


def labelled(row: Row, card: str) -> Row:
    """A row that names its card: cards of one kind differ, and a description is of one, or of their mean."""
    return replace(row, configuration={**row.configuration, "card": card})


def shipped_recordings(product: str) -> str | None:
    """Name of the shipped recordings of a kind of card; ``None`` without any."""
    for folder in sorted(recorded_folder().glob(SHIPPED)):
        first = min(folder.glob(f"card-*/{FILE_NAME}"), default=None)
        if first is not None and read_recording(first.parent).card.facts.name == product:
            return folder.name
    return None


def recorded_others(card: Card) -> tuple[Row, ...]:
    """Rows of the shipped recordings beside which a card was recorded, but for its own; single cards' are labelled.

    Raises
    ------
    InputError
        These recordings are not shipped any more.
    """
    name = card.how.get("others")
    if not name:
        return ()
    found: list[Row] = []
    for file in sorted((recorded_folder() / str(name)).glob(f"*-*/{FILE_NAME}")):
        recording, folder = read_recording(file.parent), file.parent.name
        if recording.card.started != card.started:
            single = folder.startswith("card-")
            found += [labelled(row, folder) for row in recording.rows] if single else recording.rows
    if not found:
        raise InputError(
            f"this version ships no recordings {name!r}, beside which these were made",
            key="--alone",
            remedy="Fit the recording alone, or use the version that made it.",
        )
    return tuple(found)


def learnt(rows: Sequence[Row], gpu: GpuModel, priors: DevicePriors) -> tuple[GpuModel, Array]:
    """What other cards' rows say about the parameters of a further card of their kind.

    Parameters
    ----------
    rows
        Of other cards, labelled.
    gpu
        Where the search starts: the priors.
    priors
        Of the card; their standard deviations are the units.

    Returns
    -------
    GpuModel
        The parameters.
    ndarray
        L with cov(z) = L·Lᵀ, shape ``(p, p)``.
    """
    for _ in range(ROUNDS):
        gpu = estimate(rows, gpu, priors)
    found = residuals([row for row in rows if is_read(row)], gpu, priors)
    slopes = found.slopes * [_spread(name, found.priors, gpu) / prior.sd for name, prior in found.priors.items()]
    shared = found.form[:, None] * (found.group[:, None] == np.unique(found.group))
    weighted = np.hstack([slopes, shared]) / found.noise[:, None]
    covariance = np.linalg.inv(weighted.T @ weighted + np.eye(weighted.shape[1]))
    own = sum(not name.startswith("card.") for name in found.priors)
    return gpu, np.asarray(np.linalg.cholesky(covariance[:own, :own]))


def _spread(name: str, priors: Mapping[str, Prior], gpu: GpuModel) -> float:
    """Prior standard deviation of a parameter; of a card's factor, how far the cards differ where that is more."""
    if not name.startswith("card."):
        return priors[name].sd
    alike = [gpu[other] for other in priors if other.startswith("card.") and other.endswith(name.rpartition(".")[2])]
    return max(priors[name].sd, float(np.std(alike, ddof=1)) if len(alike) > 1 else 0.0)
