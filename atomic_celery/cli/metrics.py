"""``atomic metrics``: the scaling signal over HTTP."""

from __future__ import annotations

import contextlib
import signal
import threading
from types import FrameType
from typing import Any

import click

from atomic_celery import errors
from atomic_celery.cli import scaling_options
from atomic_celery.cli.session import Session, command
from atomic_celery.fleet.policy import Policy
from atomic_celery.fleet.reading import Reader
from atomic_celery.fleet.serving import Server, SignalPages, address_of


def _address(_ctx: click.Context, _param: click.Parameter, listen: str) -> str:
    try:
        address_of(listen)
    except errors.ConfigError as error:
        raise click.BadParameter(str(error)) from error
    return listen


@click.command()
@click.option(
    "--listen",
    callback=_address,
    metavar="HOST:PORT",
    default="127.0.0.1:9464",
    show_default=True,
    help="Where to listen; 0.0.0.0 only in a container or a private network.",
)
@click.option("--queues", "-Q", metavar="NAME,…", help="Only the work of these queues.")
@scaling_options.size
@command
def metrics(session: Session, listen: str, queues: str | None, **policy: Any) -> None:
    """Serve the scaling signal: /scaling as JSON, /metrics for Prometheus, /healthz.

    Reads the database at most once in 5 s, however often it is asked, and never writes. Ends on SIGTERM or SIGINT.
    """
    session.choose(**policy)
    names = None if queues is None else [name.strip() for name in queues.split(",") if name.strip()]
    reader = Reader(session.store, Policy.of(session.settings), names)
    server = Server(listen, SignalPages(reader))
    _end_on_signals(server)
    session.lines.say("ready", listen=server.address, journal=str(session.store.url))
    with contextlib.closing(server.socket):
        server.serve_forever(poll_interval=0.2)


def _end_on_signals(server: Server) -> None:
    def end(_signum: int, _frame: FrameType | None) -> None:
        # It waits for serve_forever to end, which is what this has interrupted.
        threading.Thread(target=server.shutdown, daemon=True).start()

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, end)
