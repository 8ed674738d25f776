"""``atomic migrate``: bring the tables to this release's version."""

from __future__ import annotations

import click

from atomic_celery.cli.session import Session, command


@click.command()
@click.option("--plan", is_flag=True, help="Only say what would be done.")
@command
def migrate(session: Session, plan: bool) -> None:
    """Create the tables, or upgrade them, in one transaction."""
    schema, output = session.store.schema, session.output
    names = schema.plan() if plan else schema.migrate()
    if output.as_json:
        output.document({"planned" if plan else "applied": names, "version": schema.version(), "target": schema.target})
    elif not names:
        output.line(f"Nothing to do: the tables are of version {schema.version()}.")
    else:
        output.lines(f"{'would apply' if plan else 'applied'} {name}" for name in names)
