"""``atomic hosts``, ``drain`` and ``undrain``: who works, and who shall not take more."""

from __future__ import annotations

import click

from atomic_celery import operations, trouble
from atomic_celery import status as fleet
from atomic_celery.cli.group import EXIT_FAILED
from atomic_celery.cli.session import Session, command


@click.command()
@click.option("--state", type=click.Choice(sorted(fleet.STATES)), help="Only hosts in this state.")
@command
def hosts(session: Session, state: fleet.State | None) -> None:
    """Show the registered hosts, as of their last report."""
    seen = [host for host in fleet.read(session.store).hosts if state in (None, host.state)]
    if session.output.as_json:
        session.output.document(seen)
    else:
        session.output.lines(fleet.hosts_text(seen, session.output.paint))


@click.command()
@click.argument("target", metavar="HOST|INSTANCE")
@click.option("--reason", default="", help="Why; shown with the host.")
@command
def drain(session: Session, target: str, reason: str) -> None:
    """Let a host take no more messages; it finishes what runs and leaves.

    TARGET is a host's id or name, or the instance (provider id) it runs on. From the moment this command returns
    the host claims nothing, even if it has not heard of the drain yet. A name that several hosts have is refused; one
    that nothing has is noted for an instance that has yet to register.
    """
    with trouble.bounded(session.store):
        done = operations.drain(session.store, target, reason=reason, asked_by=operations.asker())
    noted = "noted; no host or instance of that name is known now, the next to register with it as its id takes nothing"
    _say(session, done, "drained" if done.hosts else noted, "was drained already")


@click.command()
@click.argument("target", metavar="HOST|INSTANCE")
@command
def undrain(session: Session, target: str) -> None:
    """Take a drain back: hosts of that instance that are still there, or come back, take messages again.

    Ends with 1 if it was not drained.
    """
    with trouble.bounded(session.store):
        done = operations.undrain(session.store, target, asked_by=operations.asker())
    _say(session, done, "drain lifted", "was not drained")
    if not done.changed:
        click.get_current_context().exit(EXIT_FAILED)


def _say(session: Session, done: operations.DrainDone, did: str, did_not: str) -> None:
    output = session.output
    if output.as_json:
        output.document(done)
        return
    output.line(f"{done.instance}: {did if done.changed else did_not}", "good" if done.changed else "notice")
    for host in done.hosts:
        output.line(f"  host {host}")
