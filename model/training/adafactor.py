"""Steps of transformers' ``Adafactor``: a second moment of rows and columns, and some thirty operators a parameter.

The Trainer has it without a first moment, its own rate and a scale by the parameter (``scale_parameter``,
``relative_step`` are false), so that nothing waits for the GPU. All of it runs in fp32: gradient and parameter in bf16
are copied first, so that four tensors of the parameter's size in fp32 are there at once.

Sources: Shazeer and Stern, arXiv 1804.04235; ``Adafactor.step`` in ``optimization.py`` of transformers 5.17.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch, column_sums, one_by_one, streaming
from joulecast.model.training.parameters import ParameterTensor
from joulecast.model.transformer.row_operators import rounded, widened
from joulecast.model.transformer.unfused_norm import SPREAD, by_row

NAME = "optimizer.adafactor"
#: Operators on a number, a row or a column of a parameter: of a matrix, of a vector.
SMALL, SMALL_OF_VECTOR = 12, 4
#: Tensors in fp32 of a parameter's size beside its gradient at once: of narrower ones, and of those in fp32. One more
#: is the update of the parameter before, which is dropped when the next one is made; what lies at the ends of a model
#: is much larger than what comes before it.
TEMPORARIES, TEMPORARIES_WIDE = 4, 2
AT_THE_ENDS = ("embedding.weight", "head.weight")


def adafactor_step(
    parameters: Sequence[ParameterTensor], implementation: Implementation, shards: int = 1
) -> tuple[Launch, ...]:
    """Launches of a step; ``shards`` is 1, as no rank holds a part of a parameter."""
    return tuple(launch for p in parameters for launch in _of_parameter(p, implementation))


def _of_parameter(p: ParameterTensor, run: Implementation) -> Iterator[Launch]:
    """Operators on one parameter, those on rows and columns as one launch that is repeated."""
    n, narrow = p.elements, run.trained_dtype != "fp32"
    if narrow:
        yield replace(widened(f"{NAME}.widen", n, run.trained_dtype), repeat=2)
    yield _reduced("rms", n)
    yield _of_values("square", n)
    yield _of_values("epsilon", n)
    if p.row_values:
        yield _reduced("rows", n)
        yield column_sums(f"{NAME}.columns", n // p.row_values, p.row_values, "fp32")
        yield one_by_one("unary", f"{NAME}.outer", n, SPREAD, reads=0, dtype="fp32")
    else:
        yield _of_values("moment.decay", n)
        yield streaming("add", f"{NAME}.moment", n, reads=2, dtype="fp32")
        yield _of_values("root", n)
    yield streaming("mul", f"{NAME}.update", n, reads=2, dtype="fp32")
    yield _reduced("update.rms", n)
    yield by_row(f"{NAME}.clip", n)
    yield _of_values("rate", n)
    yield _of_values("negate", n)
    yield streaming("add", f"{NAME}.add", n, reads=2, dtype="fp32")
    if narrow:
        yield rounded(f"{NAME}.round", n)
    small = streaming("unary", f"{NAME}.small", n / p.row_values if p.row_values else 1, dtype="fp32")
    yield replace(small, repeat=SMALL if p.row_values else SMALL_OF_VECTOR)


def _of_values(name: str, values: int) -> Launch:
    return streaming("unary", f"{NAME}.{name}", values, dtype="fp32")


def _reduced(name: str, values: int) -> Launch:
    return streaming("reduce", f"{NAME}.{name}", values, writes=0, dtype="fp32")


def adafactor_state_bytes(parameter: ParameterTensor, implementation: Implementation) -> float:
    """Bytes of a parameter's second moment, of rows and columns or of a vector's values, and of its size (RMS)."""
    if not parameter.row_values:
        return 4.0 * (parameter.elements + 1)
    return 4.0 * (parameter.elements / parameter.row_values + parameter.tensors * parameter.row_values + 1)


def adafactor_temporary_bytes(parameter: ParameterTensor, implementation: Implementation) -> float:
    """Bytes that a parameter's step needs for the moment."""
    tensors = TEMPORARIES_WIDE if implementation.trained_dtype == "fp32" else TEMPORARIES
    return 4.0 * parameter.elements * (tensors + (parameter.name not in AT_THE_ENDS))
