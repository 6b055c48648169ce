"""A plan in the making: every key with where it comes from, and what could not be said with keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from joulecast.errors import InputError
from joulecast.model.architecture.hf import load_model
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.simulator.job_files.asked import Asked
from joulecast.simulator.plan_file.names import inline_model
from joulecast.simulator.plan_file.schema import TABLES
from joulecast.simulator.plan_file.schema_workload import InlineModel
from joulecast.simulator.plan_file.source import Source, explain


@dataclass(frozen=True, slots=True)
class Setting:
    """A key of the plan.

    Attributes
    ----------
    value
        As a PLAN.toml has it.
    source
        What it was read from, such as ``--num-layers``, for the file's comment.
    line
        Where that stands in the job's file; ``None`` where it stands nowhere.
    """

    value: Any
    source: str
    line: int | None = None

    @property
    def comment(self) -> str:
        """The source with its line."""
        return self.source if self.line is None else f"{self.source} (line {self.line})"


@dataclass
class Draft:
    """A plan in the making.

    Attributes
    ----------
    file
        The job's file.
    settings
        By dotted key, in the order of the plan's file.
    warnings
        What the job asks for and a plan cannot say, and what that would change.
    passed
        What has no effect on time, energy or memory.
    missing
        Keys that the job does not say, with what to add.
    assumed
        Variables that were taken as unset.
    """

    file: str
    settings: dict[str, Setting] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)

    def put(self, key: str, value: Any, source: str, line: int | None = None) -> None:
        """Set a key; ``None`` leaves it out."""
        if value is not None:
            self.settings[key] = Setting(value, source, line)

    def value(self, key: str, default: Any = None) -> Any:
        """What a key is set to."""
        found = self.settings.get(key)
        return default if found is None else found.value

    def warn(self, text: str) -> None:
        """Tell, once, what cannot be said."""
        if text not in self.warnings:
            self.warnings.append(text)

    def tables(self) -> dict[str, Any]:
        """The plan's tables."""
        tables: dict[str, Any] = {}
        for key, setting in self.settings.items():
            *path, name = key.split(".")
            table = tables
            for part in path:
                table = table.setdefault(part, {})
            table[name] = setting.value
        return tables

    def model(self, asked: Asked) -> ModelConfig:
        """The model that has been put into the plan, with one row of a vocabulary that is missing."""
        value = self.tables()["workload"]["model"]
        if isinstance(value, str):
            return asked.named_model() if asked.model else load_model(value)
        return inline_shape(value, self.file)

    def placed(self, error: InputError) -> InputError:
        """A plan's error where the job has what it is about."""
        key = error.key or ""
        found = self.settings.get(key) or next(
            (setting for name, setting in self.settings.items() if key and name.startswith(f"{key}.")), None
        )
        if found is None:
            return InputError(error.message, file=self.file, key=error.key, remedy=error.remedy)
        key = f"{found.source}, in a plan {key}"
        return InputError(error.message, file=self.file, line=found.line, key=key, remedy=error.remedy)


def inline_shape(sizes: Mapping[str, Any], file: str) -> ModelConfig:
    """Keys of ``[workload.model]`` as a model; a vocabulary that is not said is of one row.

    Raises
    ------
    InputError
        Sizes that no model has.
    """
    from pydantic import ValidationError

    try:
        inline = InlineModel.model_validate({"vocab_size": 1, **sizes})
    except ValidationError as error:
        raise explain(error, Source(file), TABLES) from None
    return inline_model(inline, Source(file))
