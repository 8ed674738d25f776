"""``atomic status``: the fleet at a glance."""

from __future__ import annotations

import click

from atomic_celery import status as fleet
from atomic_celery.cli.session import Session, command


@click.command()
@command
def status(session: Session) -> None:
    """Show the fleet, its hosts and its queues.

    A database in trouble is said on stderr as "shared store degraded" (it hangs, or takes no writes) or
    "shared store unknown" (it cannot be reached), within about 5 s, with exit code 1.
    """
    seen = fleet.read(session.store)
    if session.output.as_json:
        session.output.document(seen)
    else:
        session.output.lines(fleet.text(seen, session.output.paint))
