"""An ordinary Celery project. Nothing in it knows of atomic_celery but its URLs."""

from __future__ import annotations

import os

import survey
from celery import Celery

app = Celery("quickstart", broker=os.environ["QUICKSTART_BROKER"], backend="atomic")
app.conf.update(
    # A killed worker's files are taken over after one lease. 30 s is right for a fleet; a demo need not bore.
    atomic_lease=float(os.environ.get("QUICKSTART_LEASE_S", "6")),
    atomic_renew_every=float(os.environ.get("QUICKSTART_LEASE_S", "6")) / 3,
    # Likewise what hosts say of themselves, and how soon one that says nothing any more is left out.
    atomic_report_every=0.5,
    atomic_stale_after=2.0,
    atomic_statement_timeout=float(os.environ.get("QUICKSTART_LEASE_S", "6")) / 2,
)


@app.task
def examine(path: str) -> survey.Facts:
    """Count one file."""
    return survey.examine(path)


@app.task
def add_up(facts: list[survey.Facts]) -> list[survey.Facts]:
    """Hand on what every file's task found: the chord's body."""
    return facts
