"""The group ``atomic`` and its manners: exit codes, and errors said once, on stderr.

0 done · 1 the set-up is wrong, the store is in trouble, or something asked for was not done · 64 used wrongly.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from typing import IO, Any

import click
from click_didyoumean import DYMMixin  # type: ignore[import-untyped]

from atomic_celery import errors, trouble
from atomic_celery.cli.session import session_of

EXIT_FAILED = 1
EXIT_USAGE = 64


class Failed(click.ClickException):
    """An error of ours, as the command line says it."""

    exit_code = EXIT_FAILED

    def __init__(self, error: errors.AtomicError, *, as_json: bool) -> None:
        super().__init__(str(error))
        self._error, self._as_json = error, as_json

    def show(self, file: IO[Any] | None = None) -> None:
        """Write what happened, why and what to do: prose, or one JSON object."""
        click.echo(self._document() if self._as_json else self._prose(), file=file, err=True)

    def _prose(self) -> str:
        if isinstance(self._error, trouble.StoreTrouble):
            error = self._error
            return f"{error.headline}\n  why:  {error.why}\n  hint: {error.hint}"
        code = _code_of(self._error)
        return f"Error ({code}): {self._error}" if code else f"Error: {self._error}"

    def _document(self) -> str:
        error = self._error
        if isinstance(error, trouble.StoreTrouble):
            facts = {"error": error.headline, "why": error.why, "hint": error.hint}
        else:
            facts = {"error": str(error), "kind": type(error).__name__}
            if code := _code_of(error):
                facts["code"] = code
        return json.dumps(facts)


def _code_of(error: errors.AtomicError) -> str | None:
    return getattr(error, "code", None)


class Group(DYMMixin, click.Group):  # type: ignore[misc]
    """A click group whose errors end the process with our exit codes."""

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """Read the group's own options."""
        try:
            return super().make_context(*args, **options)
        except click.UsageError as error:
            error.exit_code = EXIT_USAGE  # type: ignore[misc]  # click asks the error, not its class
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was named."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            error.exit_code = EXIT_USAGE  # type: ignore[misc]  # click asks the error, not its class
            raise
        except errors.AtomicError as error:
            raise Failed(error, as_json=session_of(ctx).output.as_json) from error


class LazyGroup(Group):
    """A group that imports a command's module when the command is asked for.

    Celery imports this package with its own command line, whatever the broker is; SQLAlchemy need not come along.
    """

    def __init__(self, *args: Any, modules: Mapping[str, str], **options: Any) -> None:
        super().__init__(*args, **options)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands."""
        return sorted([*super().list_commands(ctx), *self._modules])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in self._modules:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(self._modules[cmd_name])
        command: click.Command = getattr(module, cmd_name)
        return command
