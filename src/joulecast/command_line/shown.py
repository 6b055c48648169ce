"""A group of commands that lists a catalogue, and shows one entry by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from joulecast.command_line import output
from joulecast.errors import InputError, did_you_mean


class Shown(TyperGroup):
    """A group in which a name without ``show`` is told where it goes."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first word names."""
        word = args[0]
        if word not in self.commands and not word.startswith("-"):
            entry = f"`{ctx.command_path} show {word}` shows an entry of that name."
            raise InputError(
                f"no such command {word!r}", remedy=did_you_mean(word, self.commands, alike=0.7, otherwise=entry)
            )
        return super().resolve_command(ctx, args)


def add_catalogue(
    app: typer.Typer, name: str, words: str, list_entries: Callable[[bool, bool], None], show: Callable[..., None]
) -> None:
    """Add the group of a catalogue; ``list_entries`` is told whether to print JSON, and whether CSV."""
    group = typer.Typer(cls=Shown, help=f"List the catalogue of {words}, or show one.", rich_markup_mode=None)

    def listed(context: typer.Context, json: output.JsonOption = False, csv: output.CsvOption = False) -> None:
        if context.invoked_subcommand is None:
            list_entries(json, csv)

    group.callback(invoke_without_command=True)(listed)
    group.command("show")(show)
    app.add_typer(group, name=name)
