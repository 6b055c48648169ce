"""The command line: finds the commands, and turns every expected error into one line and an exit status.

A module of :mod:`joulecast.commands` is one command: its function of that name, or what ``register(app)`` adds. These
modules import nothing heavy at their top level, because all of them are imported for ``--help``.
"""

from __future__ import annotations

import importlib
import io
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import joulecast
from joulecast import commands
from joulecast.command_line import output
from joulecast.errors import InputError, JoulecastError
from joulecast.threads import use_one_thread

#: Commands as ``--help`` and the pages list them: what most people need first. Others follow by name.
ORDER = (
    *("predict", "convert", "compare", "sweep", "front", "choose", "calibrate", "validate", "profile", "plot"),
    *("gpus", "models", "nodes", "networks", "sites", "doctor"),
)
#: What the parser of options raises; Typer names only one of its kinds.
USAGE: Any = typer.BadParameter.__base__
#: Exit status of what was interrupted, as shells have it.
INTERRUPTED = 130


class InOrder(TyperGroup):
    """Commands in the order in which people need them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands."""
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))


class Described(typer.Typer):
    """An application that knows what its commands do, not their options."""

    def command(self, name: str | None = None, **about: Any) -> Callable[[Any], Any]:
        """Add a command without its options."""
        add = super().command(name, **about)

        def described(run: Any) -> Any:
            def command() -> None:
                pass

            command.__doc__ = run.__doc__
            add(command)
            return run

        return described


def build_app(first: str = "") -> typer.Typer:
    """The application with every command of :mod:`joulecast.commands`, or with the one that the first argument names.

    To describe the options of all of them takes longer than to start one; help of the whole does without.
    """
    # Rich help and rich tracebacks cost 0.1 s of every start; plain text serves as well.
    app = (Described if first in ("--help", "-h", "--version") else typer.Typer)(
        name="joulecast",
        cls=InOrder,
        help="Forecast the time, power and energy of training a large language model.",
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_common)
    modules = sorted(module.name for module in pkgutil.iter_modules(commands.__path__))
    for name in [first] if first in modules else modules:
        module = importlib.import_module(f"{commands.__name__}.{name}")
        if hasattr(module, "register"):
            module.register(app)
        else:
            app.command(name)(getattr(module, name))
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Parameters
    ----------
    arguments
        What follows the program's name; ``None`` takes the process's own.
    """
    use_one_thread()
    _ready_streams()
    try:
        try:
            # The name is that of the script however it was started: completion and usage lines depend on it.
            given = sys.argv[1:] if arguments is None else list(arguments)
            app = build_app(given[0] if given else "")
            status = app(args=given, prog_name="joulecast", standalone_mode=False)
        finally:
            sys.stdout.flush()  # while what it meets can still be told
    except JoulecastError as error:
        _stop(error)
    except USAGE as error:
        if type(error).show is not USAGE.show:  # help, where a command of a group was not named
            error.show()
            sys.exit(error.exit_code)
        _stop(_misused(error))
    except typer.Abort:  # a question was not answered
        print("Aborted!", file=sys.stderr)
        sys.exit(1)
    except ModuleNotFoundError as error:
        from joulecast.extras import missing_package

        missing = missing_package(error)
        if missing is None:
            raise
        _stop(missing)
    except BrokenPipeError:  # the reader (for instance `head`) has gone
        _give_up_output()
        sys.exit(1)
    except OSError as error:
        from joulecast.files import is_full, unusable_path

        if unusable := unusable_path(error):
            _stop(unusable)
        if not is_full(error):
            raise
        _give_up_output()
        _stop(InputError(f"the answer cannot be written: {error.strerror}", remedy="Make room, or write elsewhere."))
    except KeyboardInterrupt:  # before or after the command's own work
        sys.exit(INTERRUPTED)
    sys.exit(status)


def _misused(error: Any) -> InputError:
    """What the parser of options found, said as other wrong input is."""
    said = error.format_message().rstrip(".")
    command = error.ctx.command_path if error.ctx else "joulecast"
    remedy = None if said.endswith("?") else f"`{command} --help` lists what it takes."
    return InputError(said[:1].lower() + said[1:], remedy=remedy)


def _ready_streams() -> None:
    """Let a closed stream swallow what it gets, and one that is not UTF-8 show what it cannot write as its code."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif name == "stdout" and isinstance(stream, io.TextIOWrapper) and not output.is_unicode(stream):
            stream.reconfigure(errors="backslashreplace")  # as standard error has it from the start


def _give_up_output() -> None:
    """Keep the interpreter from complaining at exit about what is still to be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stop(error: JoulecastError) -> NoReturn:
    print(f"error: {one_line(str(error))}", file=sys.stderr)
    sys.exit(error.exit_status)


def one_line(text: str) -> str:
    """The text without line breaks."""
    return " ".join(line.strip() for line in text.splitlines() if line.strip())


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"joulecast {joulecast.__version__}")
        raise typer.Exit


def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass
