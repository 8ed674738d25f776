"""Getting into Celery's worker: whatever is added to it is added here, before it makes its parts."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any, NoReturn

from celery.concurrency import get_implementation

from atomic_celery import errors, identity, setup_check
from atomic_celery.beat.embedded import schedule_here
from atomic_celery.concurrency.prefork import TaskPool
from atomic_celery.config import Settings
from atomic_celery.lines import Lines
from atomic_celery.results import chords
from atomic_celery.transport.address import url_of
from atomic_celery.transport.broker import borrow
from atomic_celery.worker import control
from atomic_celery.worker.consumer import consumer_class
from atomic_celery.worker.host import Host, HostStep, LeaveStep
from atomic_celery.worker.options import settings_of

MOST_SLOTS_BY_DEFAULT = 16


def install_or_exit(worker: Any) -> None:
    """Make a host of *worker*, or end the process.

    Celery only notes an error of a signal's receiver, and the worker would go on without leases.
    """
    try:
        install(worker)
    except Exception as error:
        traceback.print_exc()
        raise SystemExit(1) from error


def install(worker: Any) -> None:
    """Make a host of *worker*.

    Raises:
        SystemExit: The set-up is incomplete; everything that is missing has been said on stderr.
    """
    settings = _checked(worker)
    broker = borrow(worker._conninfo)
    _set_slots(worker, settings)
    who = identity.take(settings.state_dir, journal=f"{broker.store.url} {settings.prefix}", name=worker.hostname)
    lines = Lines(sys.__stdout__, as_json=settings.json)
    worker.quiet = getattr(worker, "quiet", False) or settings.json
    try:
        worker.atomic = Host(worker, broker, settings, who, lines)
    except errors.ConfigError as error:  # what it is to listen on cannot be listened on
        _give_up(setup_check.Findings([setup_check.Problem(str(error), "correct atomic_metrics_listen")]))
    worker.consumer_cls = consumer_class(worker.consumer_cls)
    worker.app.steps["worker"].add(HostStep)
    worker.app.steps["consumer"].add(LeaveStep)
    worker.app.conf.broker_connection_max_retries = None  # a database that restarts must not end its workers
    control.install()
    chords.register(worker.app)
    schedule_here(worker)


def _checked(worker: Any) -> Settings:
    settings, wrong = None, []
    try:
        settings = settings_of(worker.app.conf, worker.options)
    except errors.ConfigError as error:
        wrong.append(setup_check.Problem(str(error), "correct the setting that is named"))
    try:
        findings = _choose(worker, settings)
    except errors.ConfigError as error:
        findings = setup_check.Findings([setup_check.Problem(str(error), "correct the setting that is named")])
    findings.problems[:0] = wrong
    for warning in findings.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if settings is None or findings.problems:
        _give_up(findings)
    return settings


def _give_up(findings: setup_check.Findings) -> NoReturn:
    print(findings.text(), file=sys.stderr)
    raise SystemExit(1)


def _choose(worker: Any, settings: Settings | None) -> setup_check.Findings:
    """Examine the broker's databases until one will do; the worker stays with that one, since its leases are there."""
    urls = worker._conninfo.alt
    if len(urls) < 2:
        return setup_check.examine(url_of(worker._conninfo), settings)
    passed_over = setup_check.Findings()
    for url in urls:
        conninfo = worker.app.connection_for_read(url)
        findings = setup_check.examine(url_of(conninfo), settings)
        if not findings.problems:
            worker._conninfo, worker.app.conf["broker_read_url"] = conninfo, url
            findings.warnings += [problem.what for problem in passed_over.problems]
            return findings
        passed_over.problems += [problem for problem in findings.problems if problem not in passed_over.problems]
    return passed_over


def _set_slots(worker: Any, settings: Settings) -> None:
    """Apply ``--slots``, and the pool's own default where nobody said a number."""
    if settings.slots is not None:
        worker.concurrency = settings.slots
    elif issubclass(get_implementation(worker.pool_cls), TaskPool) and not _said_concurrency(worker):
        worker.concurrency = max(1, min((os.cpu_count() or 2) // 2, MOST_SLOTS_BY_DEFAULT))


def _said_concurrency(worker: Any) -> bool:
    return bool(worker.options.get("concurrency") or worker.app.conf.worker_concurrency)
