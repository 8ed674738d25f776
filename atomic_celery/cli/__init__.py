"""``celery -A proj atomic …``: the fleet from a terminal.

Celery imports this module with its own command line, so it is also where `celery worker` gains its options and
learns of ``-P atomic``.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Sequence
from typing import Any

import click
from celery.bin.base import handle_preload_options

from atomic_celery import _register
from atomic_celery.cli import database_options, session
from atomic_celery.cli.group import LazyGroup

_MODULES = {
    "controller": "controller",
    "doctor": "doctor",
    "drain": "hosts",
    "events": "events",
    "hosts": "hosts",
    "messages": "messages",
    "metrics": "metrics",
    "migrate": "schema",
    "queues": "queues",
    "roots": "roots",
    "status": "status",
    "undrain": "hosts",
}


@click.group(
    cls=LazyGroup,
    modules={command: f"{__name__}.{module}" for command, module in _MODULES.items()},
    context_settings={"help_option_names": ["-h", "--help"]},
)
@database_options.accept
@click.pass_context
@handle_preload_options
def atomic(ctx: click.Context, **options: Any) -> None:
    """Look after the fleet that shares the database of the app's broker_url.

    Exit codes: 0 done; 1 the set-up is wrong, the store is in trouble, or something asked for was not done;
    64 the command was used wrongly.
    """
    session.begin(ctx, database_options.taken(options))


def run(arguments: Sequence[str], *, url: str, name: str, command: str | None = None) -> None:
    """Run a command in a process that is no ``celery``; ends it with the command's exit code.

    Args:
        arguments: What stands behind ``atomic``, or behind the *command*.
        url: The database, where this process has no Celery app whose broker is one.
        name: What the program is called in its messages; its last word stands for ``atomic``, or for the *command*.
        command: Which one it is; None: the first of the arguments says so.
    """
    from celery import Celery, current_app
    from celery.bin.base import CLIContext

    app = current_app
    if not str(app.conf.broker_url).startswith("atomic+"):
        app = Celery("atomic", broker=url, set_as_current=False)
    group, words = atomic, list(arguments)
    if command is not None:
        name, _, alias = name.rpartition(" ")
        group, words = copy.copy(atomic), [alias, *words]
        group.commands = {alias: importlib.import_module(f"{__name__}.{_MODULES[command]}").__dict__[command]}
    group.main(words, prog_name=name, obj=CLIContext(app=app, no_color=False, workdir=None, quiet=False))


def _extend_celery_worker() -> None:
    from celery.bin.worker import WORKERS_POOL

    from atomic_celery.worker import arrival, options

    _register.register()
    arrival.watch()
    if "atomic" not in WORKERS_POOL.choices:
        WORKERS_POOL.choices = (*WORKERS_POOL.choices, "atomic")
    options.install()


_extend_celery_worker()
