"""Published training iterations: one configuration and its step time on a line of a CSV file.

An empty cell, or ``unknown``, is what the source does not say. The columns are those of :class:`PublishedRow`; the
measured ones are never read by a forecast. A column that is called as a key of a plan is, such as
``parallelism.expert_tensor_parallel_size``, sets that key, ``workload.model`` the sizes that the line leaves empty, and
:data:`AS_IN_PLANS` stand for columns of the class.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from joulecast.errors import DataError, InputError, did_you_mean
from joulecast.model.architecture.hf import load_model
from joulecast.simulator.plan_file.schema import TABLES
from joulecast.simulator.plan_file.schema_workload import InlineModel
from joulecast.tables import Line, read_table

#: Name of the file in a folder.
FILE = "published_iterations.csv"
#: True and false as spreadsheets write them.
_SHEET_FLAGS = ("TRUE", "FALSE")
_BLANK = ("", "unknown", "none stated", "n/a")
#: Column of a model by its name in the catalogue, or by the path of its ``config.json``.
MODEL = "workload.model"
#: What its sizes are called there.
SIZES = {
    "num_layers": "layers",
    "hidden": "hidden",
    "heads": "heads",
    "kv_heads": "kv_heads",
    "head_dim": "head_dim",
    "ffn_hidden": "ffn",
    "gated_mlp": "gated_mlp",
    "vocab": "vocab",
}
#: Columns that may be called as keys of a plan instead.
AS_IN_PLANS = {
    "cluster.gpu": "gpu",
    "cluster.gpus": "num_gpus",
    "workload.sequence_length": "seq_len",
    "workload.micro_batch_size": "micro_batch",
    "workload.global_batch_size": "global_batch",
    "workload.precision": "dtype",
    "parallelism.tensor_model_parallel_size": "tp",
    "parallelism.pipeline_model_parallel_size": "pp",
    "parallelism.virtual_pipeline_model_parallel_size": "vpp",
    "parallelism.context_parallel_size": "cp",
    "parallelism.expert_model_parallel_size": "ep",
}
#: What a file without a column means by that: a plan's defaults.
DEFAULTS = {"tp": "1", "pp": "1", "dtype": "bf16", "source": "measured"}


def _blank_is_none(value: Any) -> Any:
    return None if isinstance(value, str) and value.strip().lower() in _BLANK else value


def _size(value: Any) -> Any:
    """A whole number, also where it is written as ``8.0``."""
    value = _blank_is_none(value)
    return value.strip().removesuffix(".0") if isinstance(value, str) else value


Whole = Annotated[int, BeforeValidator(_size), Field(gt=0)]
MaybeWhole = Annotated[Annotated[int, Field(gt=0)] | None, BeforeValidator(_size)]
MaybeNumber = Annotated[Annotated[float, Field(gt=0, allow_inf_nan=False)] | None, BeforeValidator(_blank_is_none)]
MaybeFlag = Annotated[bool | None, BeforeValidator(_blank_is_none)]
MaybeRecompute = Annotated[Literal["none", "selective", "full"] | None, BeforeValidator(_blank_is_none)]
Dtype = Literal["bf16", "fp16", "fp8", "fp4"]


class PublishedRow(BaseModel):
    """One line; ``None`` is what the source does not say.

    ``file`` and ``line`` say where it stands, ``keys`` has keys of its plan with their values as text.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())

    id: str = Field(min_length=1)
    source: str = Field(min_length=1)
    source_url_or_repo_path: str = ""
    model: str = ""
    num_layers: Whole
    hidden: Whole
    heads: Whole
    kv_heads: MaybeWhole = None
    head_dim: MaybeWhole = None
    ffn_hidden: Whole
    gated_mlp: MaybeFlag = None
    vocab: Whole
    seq_len: Whole
    gpu: str = Field(min_length=1)
    num_gpus: Whole
    gpus_per_node: MaybeWhole = None
    tp: Whole
    pp: Whole
    vpp: MaybeWhole = None
    cp: MaybeWhole = None
    ep: MaybeWhole = None
    dp: MaybeWhole = None
    sequence_parallel: MaybeFlag = None
    micro_batch: MaybeWhole = None
    global_batch: MaybeWhole = None
    dtype: Dtype
    recompute: MaybeRecompute = None
    tp_comm_overlap: MaybeFlag = None
    distributed_optimizer: MaybeFlag = None
    measured_step_time_s: MaybeNumber = None
    measured_tflops_per_gpu: MaybeNumber = None
    watts_per_gpu: MaybeNumber = None
    notes: str = ""
    keys: tuple[tuple[str, str], ...] = ()
    file: str = ""
    line: int = 0

    @property
    def fsdp(self) -> int | None:
        """Ranks over which weights, gradients and states are all split; ``None`` where they are not."""
        found = re.match(r"FSDP=(\d+)", self.notes.strip())
        return int(found[1]) if found else None

    @property
    def is_plan(self) -> bool:
        """Whether keys of a plan say all that a plan needs, so that nothing is taken for granted but its defaults."""
        return {"workload.model", "workload.sequence_length", "cluster.gpu", "cluster.gpus"} <= dict(self.keys).keys()

    @property
    def tokens(self) -> int | None:
        """Tokens of one step."""
        return None if self.global_batch is None else self.global_batch * self.seq_len


def read_published(path: str | Path) -> list[PublishedRow]:
    """Rows of a CSV file, or of ``published_iterations.csv`` in a folder.

    Raises
    ------
    DataError
        A missing file or column, a value that cannot be read, or an id that stands twice; names file, line and column.
    """
    found = read_table(path, name=FILE, wrong=DataError)
    _check_columns(found.columns, found.file)
    rows: list[PublishedRow] = []
    seen: dict[str, int] = {}
    for line in found.lines:
        row = _row(line)
        if row.id in seen:
            raise line.error(f"id {row.id!r} stands already on line {seen[row.id]}", "id", "Keep one of the two.")
        seen[row.id] = line.number
        rows.append(row)
    if not rows:
        raise DataError("no rows", file=found.file, remedy="One line for each configuration is expected.")
    return rows


def _check_columns(names: Sequence[str], file: str) -> None:
    """Every needed column is there, and none is a misspelling of one that is not."""
    fields, of_plan = PublishedRow.model_fields, _plan_keys()
    have = {*names, *(field for key, field in AS_IN_PLANS.items() if key in names), *DEFAULTS, "id"}
    absent = [name for name in fields if name not in have and name not in ("file", "line", "keys")]
    for name in names:
        if name not in fields and name not in of_plan and (remedy := _meant(name, absent, of_plan)):
            raise DataError(f"unknown column {name!r}", file=file, line=1, remedy=remedy)
    missing = [name for name in absent if fields[name].is_required() and not (MODEL in names and name in SIZES)]
    if missing:
        raise DataError(f"no column {', '.join(missing)}", file=file, line=1, remedy="Each line needs these values.")


def _meant(name: str, absent: Sequence[str], of_plan: Sequence[str]) -> str | None:
    """What is said of a column that is none, ``None`` of one that is only beside what is read."""
    if name in ("time_s", "step_time_s"):
        return "Measured times stand in 'measured_step_time_s'."
    if key := next((key for key in of_plan if key.rpartition(".")[2] == name), None):
        return f"As a key of a plan it is called {key!r}."
    otherwise = "A column with a dot is a key of a plan, table.key." if "." in name else ""
    return did_you_mean(name, of_plan if "." in name else absent, 1, otherwise=otherwise)


def _plan_keys() -> list[str]:
    """Keys of a plan as columns are called."""
    of_tables = [f"{table}.{key}" for table, model in TABLES.items() if "." not in table for key in model.model_fields]
    return [*of_tables, *(f"{MODEL}.{key}" for key in InlineModel.model_fields)]


def _sizes(line: Line) -> dict[str, Any]:
    """Sizes of the model that a line names; none where it names none."""
    name = _blank_is_none(line.cells.get(MODEL, ""))
    if name is None:
        return {}
    try:
        model = load_model(Path(line.file).parent / name if name.endswith(".json") else name.strip())
    except InputError as error:
        raise DataError(error.message, file=line.file, line=line.number, key=MODEL, remedy=error.remedy) from None
    return {column: getattr(model, size) for column, size in SIZES.items()}


def _row(line: Line) -> PublishedRow:
    record = line.cells
    stated = {name: text for name, text in record.items() if "." not in name and _blank_is_none(text) is not None}
    keys = tuple(
        (name, text.lower() if text in _SHEET_FLAGS else text)
        for name, text in record.items()
        if "." in name and _blank_is_none(text) is not None
    )
    for key, field in AS_IN_PLANS.items():
        if key in dict(keys):
            if field in stated:
                raise line.error("the line says it twice", field, f"Say it in one of {field} and {key}.")
            stated[field] = record[key]
    absent = {name: text for name, text in (DEFAULTS | {"id": f"line {line.number}"}).items() if name not in record}
    place = {"file": line.file, "line": line.number}
    found = {**absent, **record, **_sizes(line), **stated, "keys": keys, **place}
    try:
        row = PublishedRow.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key, value = str(first["loc"][0]), str(first.get("input") or "")
        allowed = (first.get("ctx") or {}).get("expected")
        message = f"{value!r} cannot be used" if value else "empty, but needed"
        raise line.error(message, key, f"Use {allowed}." if allowed else f"{first['msg']}.") from None
    return row
