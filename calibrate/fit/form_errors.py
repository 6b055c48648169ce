"""What a model's form gets wrong, as a standard deviation, from its errors on rows that no parameter was fitted to."""

from __future__ import annotations

import numpy as np

from joulecast.arrays import Array, Bool, Int
from joulecast.model.uncertainty import NINETY_PERCENT, UNKNOWN_DISCREPANCY

#: Least relative discrepancy: no two measurements of one kernel agree better.
LEAST_DISCREPANCY = 0.005
#: Degrees of freedom under which left-out rows of all families together are the likeliest, and the 95 % point then.
TAILS, TAILS_95 = 4.0, 2.132
#: Standard deviation between families of the logarithm of their scale.
FAMILIES_DIFFER = 1.0
#: Scales among which the likeliest is sought.
SCALES = np.geomspace(0.1 * LEAST_DISCREPANCY, 2.0, 1000)


def form_spread(errors: Array, spreads: Array) -> float:
    """Standard deviation of the form that, beside ``spreads``, makes 90 % intervals hold 90 % of the errors."""
    known = np.isfinite(errors)
    excess = (errors[known] / NINETY_PERCENT) ** 2 - spreads[known] ** 2
    wide = float(np.quantile(excess, 0.9, method="lower")) if len(excess) else UNKNOWN_DISCREPANCY**2
    return float(f"{max(wide, LEAST_DISCREPANCY**2) ** 0.5:.3g}")


def likely_form_spread(
    errors: Array,
    spreads: Array,
    kernel: Int,
    bound: Bool | None = None,
    usual: float | None = None,
) -> float:
    """The spread of a form such that 1.645 times it is the 95 % point of the form's error.

    Parameters
    ----------
    errors, spreads, kernel, bound, usual
        As :func:`likeliest_scale` has them.

    Returns
    -------
    float
        The likeliest scale with the tails of Student's distribution, and with what few kernels leave open of it
        (Abramowitz and Stegun 26.7.5); :data:`UNKNOWN_DISCREPANCY` without any row.
    """
    if not len(errors):
        return UNKNOWN_DISCREPANCY
    telling = kernel if bound is None else kernel[~bound]
    few = 1.0 + (NINETY_PERCENT**2 + 1.0) / (4.0 * max(len(set(telling.tolist())), 1))
    wide = likeliest_scale(errors, spreads, kernel, bound, usual) * few * TAILS_95 / NINETY_PERCENT
    return float(f"{max(wide, LEAST_DISCREPANCY):.3g}")


def likeliest_scale(
    errors: Array,
    spreads: Array,
    kernel: Int,
    bound: Bool | None = None,
    usual: float | None = None,
) -> float:
    """Scale of a form's errors under which errors beside known spreads are the likeliest.

    Errors x of kernels are taken to follow Student's distribution with :data:`TAILS` degrees of freedom and the squared
    scale s² + τ². A row whose own s is large says little about τ; counting how many rows intervals hold would let such
    rows, which any interval holds, stand in for those that none does. Rows of one kernel count as one together.

    Parameters
    ----------
    errors, spreads
        Logarithmic errors x, and what the parameters leave open of each, s; shape ``(n,)``.
    kernel
        Which kernel each is of, shape ``(n,)``.
    bound
        Where the error itself is not known but only that it is at most this, as behind a power limit: there its
        probability counts in place of its density (Tobin 1958, doi:10.2307/1907382); by default nowhere.
    usual
        Scale τ of all families: one of few kernels is taken to resemble the others, as far as those do each other.
    """
    _, place = np.unique(kernel, return_inverse=True)
    weight = 1.0 / np.bincount(place, minlength=1)[place]
    scale = np.hypot(spreads, SCALES[:, None])
    relative = errors / scale
    each = 0.5 * (TAILS + 1.0) * np.log1p(relative**2 / TAILS) + np.log(scale)
    if bound is not None:
        from scipy.special import stdtr

        each = np.where(bound, -np.log(stdtr(TAILS, relative)), each)
    surprise = each @ weight
    if usual is not None:
        surprise += 0.5 * (np.log(SCALES / usual) / FAMILIES_DIFFER) ** 2
    return float(SCALES[np.argmin(surprise)])
