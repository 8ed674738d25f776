"""``atomic queues``: how full the queues are."""

from __future__ import annotations

import click

from atomic_celery import status as fleet
from atomic_celery.cli.session import Session, command


@click.command()
@click.option("--all", "everything", is_flag=True, help="Mailboxes and reply queues too.")
@command
def queues(session: Session, everything: bool) -> None:
    """Show the queues. Counting stops at 100 000: "100000+" means at least that many."""
    seen = [queue for queue in fleet.read(session.store).queues if everything or not queue.temporary]
    if session.output.as_json:
        session.output.document(seen)
    else:
        session.output.lines(fleet.queues_text(seen, session.output.paint, temporary=everything))
