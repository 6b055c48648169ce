"""The kernel that a word of the command line names, by its shape or by its name in the catalogue."""

from __future__ import annotations

from collections.abc import Sequence

from joulecast.calibrate.microbenchmarks import row_forms as forms
from joulecast.calibrate.microbenchmarks.catalogue import single_gpu
from joulecast.calibrate.microbenchmarks.protocol import Microbenchmark
from joulecast.errors import InputError, UnknownNameError
from joulecast.model.kernels.operators import DTYPE_BYTES

#: Rows that are no single kernel.
COMPOSITE = ("duty", "interleave", "idle", "pulse")
_EXAMPLES = "For instance gemm:8192x8192x8192:bf16 or attention:2x32x8x4096x128:cudnn:backward."
#: Options of attention of which one can be given.
_CHOICES = (("cudnn", "flash-attention-2"), ("full", "causal"), ("forward", "backward"))
_BACKENDS = {"cudnn": "cudnn-attention", "flash-attention-2": "flash-attention"}


def kernel_benchmark(word: str) -> Microbenchmark:
    """A kernel by its shape or by its name in the catalogue of microbenchmarks.

    Parameters
    ----------
    word
        ``gemm:MxNxK[:DTYPE][:DATA]``, ``attention:BATCHxHEADSxKVHEADSxSEQUENCExDIMENSION[:OPTION…]`` with the options
        ``cudnn`` (default) or ``flash-attention-2``, ``full`` (default: causal), ``backward``, or a name.

    Raises
    ------
    InputError
        A shape or option that cannot be read, or a benchmark that is no single kernel.
    UnknownNameError
        No such microbenchmark.
    """
    kind, _, rest = word.partition(":")
    if kind == "gemm":
        return _gemm(word, rest.split(":"))
    if kind == "attention":
        return _attention(word, rest.split(":"))
    known = {benchmark.name: benchmark for benchmark in single_gpu()}
    if word not in known:
        raise UnknownNameError("kernel", word, known, key="KERNEL")
    if known[word].row["op"] in COMPOSITE or known[word].row.get("companion"):
        raise InputError(f"{word} is no single kernel", key="KERNEL", remedy="Give the kernels that it is made of.")
    return known[word]


def _gemm(word: str, parts: Sequence[str]) -> Microbenchmark:
    m, n, k = _sizes(word, parts[0], 3)
    dtype = parts[1] if len(parts) > 1 else "bf16"
    data = parts[2] if len(parts) > 2 else "randn"
    if dtype not in DTYPE_BYTES:
        raise UnknownNameError("data type", dtype, DTYPE_BYTES, key="KERNEL")
    if len(parts) > 3:
        raise InputError(f"{word!r} says more than sizes, data type and data", key="KERNEL", remedy=_EXAMPLES)
    name = f"gemm_{dtype}_{m}x{n}x{k}_{data}"
    row = {"name": name, **forms.gemm_row(m, n, k, dtype, data=data)}
    return Microbenchmark(name, row, f"gemm.{dtype}", ("fp8",) if dtype == "fp8" else ())


def _attention(word: str, parts: Sequence[str]) -> Microbenchmark:
    sizes = _sizes(word, parts[0], 5)
    options = set(parts[1:])
    known = [option for pair in _CHOICES for option in pair]
    for option in parts[1:]:
        if option not in known:
            raise UnknownNameError("option of attention", option, known, key="KERNEL")
    for pair in _CHOICES:
        if options.issuperset(pair):
            raise InputError(f"{' and '.join(pair)} exclude each other", key="KERNEL", remedy="Give one of them.")
    if sizes[1] % sizes[2]:
        wrong = f"{sizes[1]} heads cannot share {sizes[2]} key-value heads"
        raise InputError(wrong, key="KERNEL", remedy="The former are a multiple of the latter.")
    backend = "flash-attention-2" if "flash-attention-2" in options else "cudnn"
    backward = "backward" in options
    row = forms.attention_row(*sizes, causal="full" not in options, backend=backend, backward=backward)
    name = "_".join(["attn", str(row["direction"]), str(row["backend"]), *(str(size) for size in sizes)])
    stratum = f"attention.{'backward' if backward else 'forward'}"
    return Microbenchmark(name, {"name": name, **row}, stratum, (_BACKENDS[backend],))


def _sizes(word: str, text: str, count: int) -> tuple[int, ...]:
    sizes = text.split("x")
    if len(sizes) != count or not all(size.isascii() and size.isdecimal() and int(size) > 0 for size in sizes):
        raise InputError(f"{word!r} needs {count} sizes above 0, joined by x", key="KERNEL", remedy=_EXAMPLES)
    return tuple(int(size) for size in sizes)
