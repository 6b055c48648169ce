"""Kernels of Muon: momentum, Newton-Schulz iterations of each matrix, and its update, one matrix after another.

A matrix of ``s × l`` values, the shorter side first, is brought near its polar factor by a few iterations of

    A = X·Xᵀ,   B = b·A + c·A·A,   X ← a·X + B·X

in bf16: 4·s²·l + 2·s³ operations each. ``addmm`` copies what it adds into its result before the product adds to it,
so that each iteration is three products and two copies. A matrix with more outputs than inputs is taken transposed as
it lies in memory, until the first iteration has written it in order; its update is read across its rows.

Sources: as :class:`joulecast.model.framework.muon.Muon` has them, and ``addmm_out_cuda_impl`` in
``aten/src/ATen/native/cuda/Blas.cpp`` of PyTorch 2.11.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import REORDERED, Launch, collective, one_by_one, streaming
from joulecast.model.framework.muon import Muon
from joulecast.model.kernels.operators import DTYPE_BYTES, Gemm, Streaming
from joulecast.model.training.matrix import Matrix
from joulecast.model.training.parameters import ParameterTensor

#: How names of all these kernels begin.
NAME = "optimizer.muon"
#: Cycles of an SM for a value that PyTorch reads across rows and writes along them, or adds so, and how often it is
#: read from memory: sectors of 32 bytes do not stay for all of their values. Twelve kernels on tall matrices on an H100
#: and an H200, whose memory is faster (`validate/recorded/muon`), are met within 17 %, 7 % (rms) [+-10 %, +-25 %].
ACROSS, READ_ACROSS = 1.09, 7.2


def counted(parameters: Iterable[ParameterTensor]) -> Counter[Matrix]:
    """How many matrices of each shape tensors stand for."""
    found: Counter[Matrix] = Counter()
    for one in parameters:
        if one.matrix is not None:
            found[one.matrix] += one.tensors
    return found


def muon_step(matrices: Mapping[Matrix, int], run: Implementation) -> tuple[Launch, ...]:
    """Launches that step so many matrices of each shape on one rank.

    ``pytorch-eager``: ``torch.optim.Muon`` on parameters, gradients and momenta of the parameters' type. ``megatron``:
    ``TensorParallelMuon`` on fp32 weights, gradients and momenta.
    """
    if run.muon is None:
        return ()
    step = _megatron if run.megatron else _pytorch
    return tuple(launch for matrix, count in matrices.items() for launch in step(matrix, count, run, run.muon))


def work(matrix: Matrix, run: Implementation) -> float:
    """Operations of a matrix's products on one rank, by which ranks' shares compare."""
    launches = muon_step({matrix: 1}, run)
    return sum(one.operator.flops * one.repeat for one in launches if isinstance(one.operator, Gemm))


@dataclass(frozen=True, slots=True)
class _Iterations:
    """Newton-Schulz iterations on ``short × long`` values, which lie ``across`` at first, in ``dtype``.

    ``summed`` adds up A over ranks that have a part of the longer side each.
    """

    short: int
    long: int
    across: bool
    dtype: str
    steps: int
    summed: tuple[Launch, ...] = ()

    @property
    def footprint_bytes(self) -> float:
        """What one of them touches: X before and after it, A and B."""
        return 2.0 * (self.short * self.long + self.short**2) * DTYPE_BYTES[self.dtype]

    def launches(self) -> Iterator[Launch]:
        """Of all of them, the first apart where X lies across."""
        again = self.steps - self.across
        for across, repeat in ((True, 1), (False, again)) if self.across else ((False, again),):
            if repeat:
                yield from (replace(one, repeat=repeat) for one in self._once(across=across))

    def _once(self, *, across: bool) -> tuple[Launch, ...]:
        short, values = self.short, float(self.short * self.long)
        ordered = one_by_one("copy", f"{NAME}.reorder", values, ACROSS, reads=READ_ACROSS, dtype=self.dtype)
        return (
            self._product("gram", short, self.long, "nt" if across else "tn"),
            *self.summed,
            self._copy(float(short**2)),
            self._product("square", short, short, "nn", adds=True),
            ordered if across else self._copy(values),
            self._product("update", self.long, short, "tn" if across else "nn", adds=True),
        )

    def _copy(self, values: float) -> Launch:
        return _near(streaming("copy", f"{NAME}.copy", values, dtype=self.dtype), self.footprint_bytes)

    def _product(self, name: str, n: int, k: int, layout: str, *, adds: bool = False) -> Launch:
        return Launch(
            Gemm(
                self.short,
                n,
                k,
                dtype=self.dtype,
                layout=layout,
                accumulate=adds,
                footprint_bytes=self.footprint_bytes,
                name=f"{NAME}.{name}",
            )
        )


def _near(launch: Launch, footprint_bytes: float) -> Launch:
    """A kernel on data that were touched so many bytes ago."""
    if not isinstance(launch.operator, Streaming):
        return launch
    return replace(launch, operator=replace(launch.operator, footprint_bytes=footprint_bytes))


def _pytorch(matrix: Matrix, count: int, run: Implementation, muon: Muon) -> Iterator[Launch]:
    """``_single_tensor_muon`` on parameters that are whole."""
    rows, columns = sum(matrix.rows), matrix.columns
    values, kept, tall = float(matrix.elements), run.trained_dtype, rows > columns
    near = 3.0 * values * DTYPE_BYTES[kept]  # parameter or momentum, gradient and what becomes of them
    iterations = _Iterations(min(rows, columns), max(rows, columns), tall, muon.products, muon.steps)
    narrow = DTYPE_BYTES[muon.products] / DTYPE_BYTES[kept]
    launches = (
        streaming("add", f"{NAME}.momentum", values, reads=2, dtype=kept),
        *((_near(streaming("add", f"{NAME}.nesterov", values, reads=2, dtype=kept), near),) if muon.nesterov else ()),
        *((_near(streaming("copy", f"{NAME}.cast", values, writes=narrow, dtype=kept), near),) if narrow != 1 else ()),
        _near(streaming("reduce", f"{NAME}.norm", values, writes=0, dtype=muon.products), near),
        streaming("unary", f"{NAME}.clamp", 1.0, dtype=muon.products),
        _near(_scaled(values, muon.products), near),
        *iterations.launches(),
        streaming("unary", f"{NAME}.decay", values, dtype=kept),
        _near(_updated(values, narrow, kept, across=tall), near),
    )
    yield from (replace(one, repeat=one.repeat * count) for one in launches)


def _scaled(values: float, dtype: str) -> Launch:
    """Quotient of a matrix and its norm, which lies on the GPU: PyTorch then takes values one by one."""
    return one_by_one("unary", f"{NAME}.scale", values, REORDERED, dtype=dtype)


def _updated(values: float, width: float, dtype: str, *, across: bool) -> Launch:
    """Addition of a matrix of so much of the width of ``dtype``, which may lie across."""
    if not across:
        return streaming("add", f"{NAME}.add", values, reads=1.0 + width, dtype=dtype)
    return one_by_one("add", f"{NAME}.add_across", values, ACROSS, reads=1.0 + READ_ACROSS * width, dtype=dtype)


def _megatron(matrix: Matrix, count: int, run: Implementation, muon: Muon) -> Iterator[Launch]:
    """``OrthogonalizedOptimizer.step`` on one rank's part of a matrix, or on queries, keys and values one by one."""
    values, parts = float(matrix.elements), matrix.rows if muon.split_qkv else (sum(matrix.rows),)
    launches = [
        streaming("unary", f"{NAME}.decay", values, dtype="fp32"),
        streaming("add", f"{NAME}.momentum", values, reads=2, dtype="fp32"),
    ]
    if muon.nesterov:
        launches.append(streaming("add", f"{NAME}.nesterov", values, reads=2, dtype="fp32"))
    for rows in parts:
        if len(parts) > 1:
            launches.append(streaming("copy", f"{NAME}.part", float(rows * matrix.columns), dtype="fp32"))
        launches += _orthogonalised(replace(matrix, rows=(rows,)), run, muon)
    if len(parts) > 1:
        launches.append(streaming("cat", f"{NAME}.joined", values, dtype="fp32"))
    launches.append(_updated(values, 1.0, "fp32", across=len(parts) == 1 and parts[0] > matrix.columns))
    yield from (replace(one, repeat=one.repeat * count) for one in launches)


def _orthogonalised(matrix: Matrix, run: Implementation, muon: Muon) -> Iterator[Launch]:
    """``newton_schulz_tp`` of a matrix in fp32, whose result is scaled."""
    ranks = (run.expert_tensor_parallel if matrix.expert else run.tensor_parallel) if matrix.split else 1
    rows, columns, local = matrix.rows[0], matrix.columns, float(matrix.elements)
    together = muon.tensor_mode == "distributed" and ranks > 1
    across = matrix.split == "rows" if together else rows > columns
    if muon.tensor_mode == "duplicated" and ranks > 1:
        yield _among(matrix, "all_gather", f"{NAME}.gather", 4.0 * local * ranks, run)
        yield streaming("cat", f"{NAME}.gathered", local * ranks, dtype="fp32")
        rows, columns = (rows * ranks, columns) if matrix.split == "rows" else (rows, columns * ranks)
        across = rows > columns
    values = float(rows * columns)
    if together:
        yield streaming("mul", f"{NAME}.norm.square", values, dtype="fp32")
    yield streaming("reduce", f"{NAME}.norm", values, writes=0, dtype="fp32")
    if together:
        yield _among(matrix, "all_reduce", f"{NAME}.norm.all_reduce", 4.0, run)
    yield _scaled(values, "fp32")
    short, long = (columns, rows) if across else (rows, columns)
    squares = DTYPE_BYTES[muon.products] * float(short**2)
    summed = (_among(matrix, "all_reduce", f"{NAME}.gram.all_reduce", squares, run),) if together else ()
    width = DTYPE_BYTES[muon.products] / DTYPE_BYTES["fp32"]
    if width != 1:
        yield streaming("copy", f"{NAME}.cast", values, writes=width, dtype="fp32")
    yield from _Iterations(short, long, across, muon.products, muon.steps, summed).launches()
    if width != 1:
        yield streaming("copy", f"{NAME}.cast", values, reads=width, dtype="fp32")
    yield streaming("unary", f"{NAME}.size", local, dtype="fp32")


def _among(matrix: Matrix, kind: str, name: str, size_bytes: float, run: Implementation) -> Launch:
    """A collective among the ranks that share a matrix."""
    if not matrix.expert:
        return collective(kind, name, size_bytes, run)
    return collective(kind, name, size_bytes, run, ranks=run.expert_tensor_parallel, fabric=run.expert_tensor_fabric)


def step_bytes(matrix: Matrix, run: Implementation, muon: Muon) -> float:
    """Temporary results of one matrix: in PyTorch what is orthogonalised, X before and after, A and B.

    Megatron's are in fp32 before and after the iterations, and where ranks gather the whole matrix there are its shards
    and a copy of all [estimate from the code].
    """
    rows, columns = sum(matrix.rows), matrix.columns
    values, squares = float(rows * columns), float(min(rows, columns) ** 2)
    if not run.megatron:
        width = DTYPE_BYTES[muon.products]
        moved = muon.nesterov * DTYPE_BYTES[run.trained_dtype] * values
        return moved + 2.0 * width * (values + squares)
    ranks = run.expert_tensor_parallel if matrix.expert else run.tensor_parallel
    gathered = ranks if matrix.split and muon.tensor_mode == "duplicated" and ranks > 1 else 0
    whole, width = values * max(1, gathered), DTYPE_BYTES[muon.products]
    at_work = max(8.0 * whole, 2.0 * width * (whole + squares))
    parts = 8.0 * values if len(matrix.rows) > 1 and muon.split_qkv else 0.0
    return 4.0 * muon.nesterov * values + (8.0 * whole if gathered else 0.0) + parts + at_work
