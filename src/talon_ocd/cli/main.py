"""The command ``talon``: it only translates between people and the library."""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from talon_ocd import __version__
from talon_ocd.cli import (
    bench,
    categories,
    demo,
    discover,
    doctor,
    embed,
    evaluate,
    figures,
    fit,
    generate,
    merge,
    reproduce,
    serve,
    streams,
    tables,
)
from talon_ocd.errors import TalonError

PACKAGE = Path(__file__).parents[1]
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Names of glibc's ``mallopt``."""


class Commands(TyperGroup):
    """The group of commands; an error made on purpose is one clear line, not a traceback."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run a command and turn its end into a message and an exit code."""
        try:
            return super().invoke(ctx)
        except TalonError as error:
            typer.echo(f"talon: {error}", err=True)
            sys.exit(2)
        except KeyboardInterrupt:
            typer.echo("talon: stopped; what was written so far is kept.", err=True)
            sys.exit(130)
        except BrokenPipeError:  # the reader of our output is gone (`talon ... | head`)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(141)


app = typer.Typer(
    name="talon",
    cls=Commands,
    help="On-the-fly category discovery: learn known classes once, then name, group and discover as images arrive.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("fit")(fit.fit)
app.command("discover")(discover.discover)
app.command("embed")(embed.embed)
app.command("serve")(serve.serve)
app.command("merge")(merge.merge)
app.command("evaluate")(evaluate.evaluate)
app.command("tables")(tables.tables)
app.command("figures")(figures.figures)
app.command("reproduce")(reproduce.reproduce)
app.command("generate")(generate.generate)
app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)
app.add_typer(streams.app, name="stream")
app.add_typer(categories.app, name="categories")
app.add_typer(bench.app, name="bench")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"talon-ocd {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """On-the-fly category discovery in image streams."""


def main() -> None:
    """Run the command."""
    _keep_freed_memory()
    warnings.showwarning = _warn
    app()


def _warn(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    """Print a warning: ours as a line for people, to whom places in the code say nothing; those of others as usual."""
    if PACKAGE in Path(filename).parents:
        typer.echo(f"talon: {message}", err=True)
    else:
        typer.echo(warnings.formatwarning(message, category, filename, lineno, line), err=True, nl=False)


def _keep_freed_memory() -> None:
    """Let glibc keep what tensors free: a training step asks for the same hundreds of megabytes every time.

    Pages that go back to the system come back zeroed, one fault each.
    Somebody who has set ``MALLOC_...`` knows better, and other systems have other allocators.
    """
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return
    with suppress(AttributeError, OSError):
        c_library = ctypes.CDLL(None)
        c_library.mallopt(M_MMAP_MAX, 0)
        c_library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
