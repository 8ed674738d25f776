"""Noticing that a worker of Celery's starts. Light to import: every program that uses the transport does."""

from __future__ import annotations

from typing import Any

from celery.signals import worker_init


def watch() -> None:
    """Make a host of every worker that starts from now on with a URL of ours. Safe to repeat.

    Most workers import the transport before they say that they start; one in a green world does so after that.
    """
    worker_init.connect(_make_host, weak=False, dispatch_uid="atomic_celery")


def _make_host(sender: Any, **_: Any) -> None:
    if str(sender._conninfo.transport_cls).partition("+")[0] != "atomic":
        return
    from atomic_celery.worker.install import install_or_exit  # only workers need it, and it needs all of Celery

    install_or_exit(sender)
