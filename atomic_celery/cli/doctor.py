"""``atomic doctor``: what is wrong, and how to mend it."""

from __future__ import annotations

import click

from atomic_celery import doctor as checks
from atomic_celery.cli.group import EXIT_FAILED
from atomic_celery.cli.session import Session, command


@click.command()
@command
def doctor(session: Session) -> None:
    """Print the effective settings, and every problem with how to mend it.

    Exit code 1 if something stops work; warnings alone leave it 0.
    """
    checkup = checks.examine(session.url, session.settings)
    if session.output.as_json:
        session.output.document({"healthy": checkup.healthy, "checkup": checkup})
    else:
        session.output.lines(checks.text(checkup, session.output.paint))
    if not checkup.healthy:
        click.get_current_context().exit(EXIT_FAILED)
