"""What each kernel of linear attention by the gated delta rule multiplies and moves, counted from its code.

A call over T tokens takes chunks of Q positions, in which H heads of V values work on states of K values a value; G
heads of queries and keys are shared by these. One Triton kernel of ``fla`` (flash-linear-attention) makes each of these
(``fla/ops/gated_delta_rule``, ``fla/ops/common``), all in the products' type but for decays:

    unit                 queries, or keys, over their length
    delta_cumsum         decays of each chunk, summed
    delta_solve          pairs of a chunk's keys, K·Kᵀ, of which 10 of 16 tiles are made,
                         and the inverse of the triangle that they make               1.25·T·Q·H·K operations
    delta_factors        that inverse times keys and values                           2·T·Q·H·(K + V)
    delta_states         states handed from chunk to chunk, one after the other, and
                         what each adds                                               4·T·H·K·V
    delta_result         what the state gives, and a chunk's earlier positions        2·T·H·(K·V + Q·(K + V))
    delta_values         gradients of values within a chunk                           2·T·Q·H·(K + V)
    delta_states_grad    gradients of states handed back                              6·T·H·K·V
    delta_keys           gradients of queries, keys and factors                       T·H·(6·K·V + Q·(4·K + 2·V))
    delta_factors_grad   gradients of the inverse and of what it multiplied           2·T·Q·H·(5·K + 2·V + 2·Q)
    unit_grad            as ``unit``

All products run at one pace and are counted as those with states. The kernels that hand states on run a block for 32
values of a head and sequence; an SM runs one at a time.

References
----------
Yang, Kautz and Hatamizadeh, Gated Delta Networks, arXiv 2412.06464, section 3.3; fla-core 0.6.0.
"""

from __future__ import annotations

from collections.abc import Callable

from joulecast.arrays import Array
from joulecast.model.kernels.scan_work import ScanSizes, ScanWork

#: Values of a head in a block of the kernels that hand states on.
BLOCK_VALUES = 32.0
#: Tiles of pairs that are made, of all: those not above the diagonal.
TRIANGLE = 10.0 / 16.0


def _keys(s: ScanSizes) -> Array:
    """Keys of a token, where every head has its own."""
    return s.heads * s.state


def _of_keys(s: ScanSizes) -> Array:
    """Operations of a product of pairs and keys."""
    return 2.0 * s.tokens * s.chunk * _keys(s)


def _of_values(s: ScanSizes) -> Array:
    """Operations of a product of pairs and values."""
    return 2.0 * s.tokens * s.chunk * s.inner


def _pairs(s: ScanSizes) -> Array:
    """Pairs of a token's chunk, of every head."""
    return s.heads * s.chunk


def _rounds(s: ScanSizes) -> Array:
    """Steps of all blocks that hand states on."""
    return s.tokens / s.chunk * s.inner / BLOCK_VALUES


def _solve(s: ScanSizes) -> ScanWork:
    return ScanWork(s.narrow(s.shared + s.heads + _pairs(s)) + s.wide(s.heads), states=TRIANGLE * _of_keys(s))


def _factors(s: ScanSizes) -> ScanWork:
    moved = s.narrow(s.shared + _pairs(s) + _keys(s) + 2.0 * s.inner + s.heads) + s.wide(s.heads)
    return ScanWork(moved, states=_of_keys(s) + _of_values(s))


def _states(s: ScanSizes) -> ScanWork:
    """Keys and factors; the values that are left, and the states at the start of each chunk."""
    moved = s.narrow(s.shared + _keys(s) + 2.0 * s.inner) + s.wide(s.heads) + s.size * s.states
    return ScanWork(moved, states=2.0 * s.into_state, steps=s.chunks, spread=_rounds(s))


def _result(s: ScanSizes) -> ScanWork:
    moved = s.narrow(2.0 * s.shared + 2.0 * s.inner) + s.wide(s.heads) + s.size * s.states
    return ScanWork(moved, states=s.into_state + _of_keys(s) + _of_values(s))


def _values(s: ScanSizes) -> ScanWork:
    moved = s.narrow(2.0 * s.shared + 2.0 * s.inner) + s.wide(s.heads)
    return ScanWork(moved, states=_of_keys(s) + _of_values(s))


def _states_grad(s: ScanSizes) -> ScanWork:
    moved = s.narrow(2.0 * s.shared + _keys(s) + 3.0 * s.inner) + s.wide(s.heads) + s.size * s.states
    return ScanWork(moved, states=3.0 * s.into_state, steps=s.chunks, spread=_rounds(s))


def _keys_grad(s: ScanSizes) -> ScanWork:
    """Queries, keys, values, their gradients and the result's; states and their gradients."""
    moved = s.narrow(2.0 * s.shared + 3.0 * s.inner + 3.0 * _keys(s)) + s.wide(2.0 * s.heads) + 2.0 * s.size * s.states
    return ScanWork(moved, states=3.0 * s.into_state + 2.0 * _of_keys(s) + _of_values(s))


def _factors_grad(s: ScanSizes) -> ScanWork:
    """Keys' gradients are written, read and written again."""
    moved = s.narrow(s.shared + 4.0 * _keys(s) + 3.0 * s.inner + _pairs(s) + 2.0 * s.heads) + s.wide(2.0 * s.heads)
    products = 5.0 * _of_keys(s) + 2.0 * _of_values(s) + 4.0 * s.tokens * s.chunk * _pairs(s)
    return ScanWork(moved, states=products)


#: Work of every kernel.
DELTA_WORK: dict[str, Callable[[ScanSizes], ScanWork]] = {
    "unit": lambda s: ScanWork(s.narrow(2.0 * s.shared) + s.wide(s.groups)),
    "delta_cumsum": lambda s: ScanWork(s.wide(2.0 * s.heads)),
    "delta_solve": _solve,
    "delta_factors": _factors,
    "delta_states": _states,
    "delta_result": _result,
    "delta_values": _values,
    "delta_states_grad": _states_grad,
    "delta_keys": _keys_grad,
    "delta_factors_grad": _factors_grad,
    "unit_grad": lambda s: ScanWork(s.narrow(3.0 * s.shared) + s.wide(s.groups)),
}
