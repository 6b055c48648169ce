"""Commands with many options: one frozen dataclass declares them, and a function takes them as one object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from inspect import Parameter, Signature
from typing import Any, TypeVar, get_type_hints

Asked = TypeVar("Asked")


def command_of(run: Callable[[Asked], None], options: type[Asked]) -> Callable[..., None]:
    """What :meth:`typer.Typer.command` registers: a function with a keyword for each field of a dataclass.

    Parameters
    ----------
    run
        The command, which takes the dataclass; its docstring is the help.
    options
        A dataclass whose fields are annotated as Typer wants parameters to be, all with defaults.
    """

    def command(**given: Any) -> None:
        run(options(**given))

    hints = get_type_hints(options, include_extras=True)
    parameters = [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name])
        for field in fields(options)  # type: ignore[arg-type]
    ]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__doc__ = run.__doc__
    return command
