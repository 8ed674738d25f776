"""``celery -A proj atomic …``: the fleet from a terminal.

Celery imports this module with its own command line, so it is also where `celery worker` gains its options and
learns of ``-P atomic``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import click
from celery.bin.base import handle_preload_options

from atomic_celery import _register, config
from atomic_celery.cli import session
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
@click.option("--prefix", metavar="PREFIX", help="Prefix of the tables (default: atomic).")
@click.option("--password-file", type=click.Path(), help="File with the database password.")
@click.option("--token-file", type=click.Path(), help="File with a password that changes.")
@click.option("--auth", type=click.Choice(config.CLOUDS), help="Use this machine's identity in its cloud.")
@click.pass_context
@handle_preload_options
def atomic(
    ctx: click.Context,
    prefix: str | None,
    password_file: str | None,
    token_file: str | None,
    auth: str | None,
    **_preload: object,
) -> None:
    """Look after the fleet that shares the database of the app's broker_url.

    Exit codes: 0 done; 1 the set-up is wrong, the store is in trouble, or something asked for was not done;
    64 the command was used wrongly.
    """
    options = {"prefix": prefix, "password_file": password_file, "token_file": token_file, "auth": auth}
    # Programs that a command starts, as workers on this machine, find the same database.
    os.environ.update({f"ATOMIC_{name.upper()}": value for name, value in options.items() if value is not None})
    session.begin(ctx, options)


def run(arguments: Sequence[str], *, url: str, name: str) -> None:
    """Run a command in a process that is no ``celery``; ends it with the command's exit code.

    Args:
        arguments: What stands behind ``atomic``.
        url: The database, where this process has no Celery app whose broker is one.
        name: What the program is called in its messages.
    """
    from celery import Celery, current_app
    from celery.bin.base import CLIContext

    app = current_app
    if not str(app.conf.broker_url).startswith("atomic+"):
        app = Celery("atomic", broker=url, set_as_current=False)
    atomic.main(list(arguments), prog_name=name, obj=CLIContext(app=app, no_color=False, workdir=None, quiet=False))


def _extend_celery_worker() -> None:
    from celery.bin.worker import WORKERS_POOL

    from atomic_celery.worker import arrival, options

    _register.register()
    arrival.watch()
    if "atomic" not in WORKERS_POOL.choices:
        WORKERS_POOL.choices = (*WORKERS_POOL.choices, "atomic")
    options.install()


_extend_celery_worker()
