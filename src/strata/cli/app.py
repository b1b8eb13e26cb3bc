"""The command ``strata``: the list of commands, and what an error becomes.

Owns exit codes and the last line on stderr. Loads a command's module only when it is called, so
that ``--help`` and completion stay quick; the commands are in the other files of this folder.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import typer
import typer.core

from strata import __version__
from strata.errors import SettingsError, StrataError
from strata.settings import is_debug
from strata.wishes import nearest

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

# name -> (module that holds a function ``command``, line of help)
COMMANDS = {
    "run": ("strata.cli.run", "Answer one prompt."),
    "chat": ("strata.cli.chat", "Talk with the model."),
    "serve": ("strata.cli.serve", "Serve the model over HTTP."),
    "limits": ("strata.cli.limits", "Change what a running server takes of the card."),
    "inspect": ("strata.cli.inspect", "Show what is in a model file."),
    "plan": ("strata.cli.plan", "Say what would lie where, and how fast it would be."),
    "bench": ("strata.cli.bench", "Measure prompt and decode speed, memory and bandwidth."),
    "replay": ("strata.cli.replay", "Try cache policies on a recorded routing trace."),
    "trace": ("strata.cli.trace", "Write a made-up routing trace, as hard as that of real text."),
    "convert": ("strata.cli.convert", "Turn a Hugging Face model folder into one GGUF file."),
    "synth": ("strata.cli.synth", "Write a model file with random weights, for tests."),
}


class LazyGroup(typer.core.TyperGroup):
    """Commands looked up by name in ``COMMANDS``."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, imported now; None when there is none of that name."""
        if cmd_name not in COMMANDS:
            guess = nearest(cmd_name, tuple(COMMANDS))
            hint = f"did you mean {guess}?" if guess else "strata --help lists them."
            ctx.fail(f"there is no command {cmd_name!r}; {hint}")
        module, help_line = COMMANDS[cmd_name]
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        settings = {"allow_interspersed_args": True}
        app.command(name=cmd_name, short_help=help_line, context_settings=settings)(
            importlib.import_module(module).command
        )
        command = typer.main.get_command(app)
        command.name = cmd_name
        return command

    def invoke(self, ctx: Any) -> Any:
        """Runs the command; what it raises becomes one message on stderr and an exit code."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except (StrataError, OSError, MemoryError) as error:
            if is_debug():
                raise
            raise typer.Exit(_report(error)) from None
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
        finally:
            _let_go_of_stdout()

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """The list in ``--help``, without importing any command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


def _report(error: Exception) -> int:
    """Says what went wrong; the exit code."""
    if isinstance(error, BrokenPipeError):
        return EXIT_FAILURE
    if isinstance(error, MemoryError):
        message = "out of memory.\n  Try: a smaller --context, or a smaller model file."
    elif isinstance(error, OSError):
        where = f": {error.filename}" if error.filename else ""
        message = (
            f"{(error.strerror or str(error)).lower()}{where}.\n"
            "  Try: check what the command reads and writes: paths, permissions, free space."
        )
    else:
        message = str(error)
    typer.echo(f"strata: {message}", err=True)
    return EXIT_USAGE if isinstance(error, SettingsError) else EXIT_FAILURE


def _let_go_of_stdout() -> None:
    """Flushes now, and drops what cannot be written: the reader has gone, or the disk is full."""
    try:
        sys.stdout.flush()
    except OSError:
        # Python flushes again at exit and would complain; nothing complains about the null device.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Runs very large mixture-of-experts models on an ordinary computer.",
)


def _print_version(value: bool) -> None:  # noqa: FBT001
    if value:
        typer.echo(f"strata {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(  # noqa: FBT001
        False, "--version", help="Show the version.", callback=_print_version, is_eager=True
    ),
) -> None:
    pass


def main() -> None:
    """Entry point of the ``strata`` command."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except OSError as error:
        # --help and --version print before any command is invoked.
        code = _report(error)
        _let_go_of_stdout()
        sys.exit(code)


if __name__ == "__main__":
    main()
