"""A group of commands that lists a catalogue, and shows one entry by its name."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


class Shown(TyperGroup):
    """A group in which a name without ``show`` is told where it goes."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first word names."""
        word = args[0]
        if word not in self.commands and not word.startswith("-"):
            ctx.fail(f"No such command {word!r}. `{ctx.command_path} show {word}` shows an entry of that name.")
        return super().resolve_command(ctx, args)
