"""``atomic controller``: adds hosts when the queues grow, drains and removes those that sit idle."""

from __future__ import annotations

from typing import Any

import click

from atomic_celery import trouble
from atomic_celery.cli import scaling_options
from atomic_celery.cli.session import Session, command
from atomic_celery.fleet.controller import Controller
from atomic_celery.fleet.policy import Policy
from atomic_celery.fleet.running import run_until_signalled, unless_signalled
from atomic_celery.provisioners.loading import load

EXIT_NOTHING_DECIDED = 1
_ONLY_HERE = (
    "warning: the database is a SQLite file, which hosts on other machines cannot open; "
    "use PostgreSQL for a fleet of more than one machine"
)


@click.command()
@click.option(
    "--provisioner",
    "named",
    required=True,
    metavar="FILE.json|MODULE[:OBJECT]",
    help="What drives the platform: a JSON file, or an object of a Python module.",
)
@scaling_options.size
@scaling_options.pace
@click.option("--once", is_flag=True, help="Decide and act once, and end: for a cron job.")
@click.option("--dry-run", is_flag=True, help="Decide once, say what and why, and act on nothing.")
@command
@click.pass_context
def controller(ctx: click.Context, /, session: Session, named: str, once: bool, dry_run: bool, **policy: Any) -> None:
    """Keep as many hosts as the work wants, and never remove a busy one.

    Several may run: one leads, and another takes over within 30 s when it dies, at once when it ends. Ends on SIGTERM
    or SIGINT with exit code 0. With --once it is 1 if the platform failed.
    """
    session.choose(**policy)
    with trouble.bounded(session.store):
        session.store.schema.require()
    provisioner, numbers = load(named, session.store.journal), Policy.of(session.settings)
    if session.store.dialect == "sqlite" and provisioner.kind != "local" and numbers.max_hosts > 1:
        click.echo(_ONLY_HERE, err=True)
    made = Controller(session.store, provisioner, numbers, lines=session.lines)
    if dry_run:
        reasons = unless_signalled(made, made.look).reasons()
        session.output.document({"reasons": reasons}) if session.output.as_json else session.output.lines(reasons)
    elif once:
        unless_signalled(made, made.once)
        if made.provider_failed:
            ctx.exit(EXIT_NOTHING_DECIDED)
    else:
        run_until_signalled(made)
