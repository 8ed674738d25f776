"""Whoever dies, freezes or loses the database at whatever moment: a result, its follow-ups and their traces agree.

A body may run again, as it was not known to have ended. What its end leaves behind is there once. Every kind of end is
met by every fault at every point with ``-m matrix``; a few are always.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from celery import Signature, chain, chord
from celery.exceptions import ChordError

from tests.results.conftest import APPLICATION, NewFleet, require_once, signature
from tests.support.proxy import Proxy
from tests.support.workers import HASTY, Fleet, WorkerProcess

WAIT_S = 90


@dataclass(frozen=True)
class Kind:
    """A thing that a task's end may leave behind.

    Attributes:
        publish: Starts it.
        result: What it comes to, in the end.
        failed: The error that it comes to instead.
        once: What has run as one message then.
        visit: At which end of a task the fault happens.
    """

    publish: Callable[[Fleet], Signature[Any]]
    result: Any
    once: tuple[str, ...] = ()
    visit: int = 1
    failed: type[Exception] | None = None


def _noted(fleet: Fleet, value: Any, what: str) -> Signature[Any]:
    return signature(fleet, "noted", value, what)


def _follow_up(fleet: Fleet, what: str) -> Signature[Any]:
    return signature(fleet, "noted", what)


def _errback(fleet: Fleet) -> Signature[Any]:
    return signature(fleet, "fail").set(link_error=[_follow_up(fleet, "errback")])


def _chord(fleet: Fleet) -> Signature[Any]:
    return chord([signature(fleet, "add", 1, 1), signature(fleet, "add", 2, 2)], signature(fleet, "whole"))


KINDS = {
    "plain": Kind(lambda fleet: signature(fleet, "add", 1, 2), 3),
    "chain": Kind(lambda fleet: chain(signature(fleet, "add", 1, 2), _follow_up(fleet, "link")), 3, ("link",)),
    "callback": Kind(lambda fleet: signature(fleet, "add", 1, 2).set(link=[_follow_up(fleet, "link")]), 3, ("link",)),
    "errback": Kind(_errback, None, ("errback",), failed=ValueError),
    "chord part": Kind(_chord, [2, 4], ("body",)),
    "last chord part": Kind(_chord, [2, 4], ("body",), visit=2),
    "chord's end": Kind(_chord, [2, 4], ("body",), visit=3),
    "failed chord": Kind(
        lambda fleet: chord(
            [signature(fleet, "add", 1, 1), signature(fleet, "fail")],
            signature(fleet, "whole").on_error(_follow_up(fleet, "errback")),
        ),
        None,
        ("errback",),
        visit=2,
        failed=ChordError,
    ),
    "retry": Kind(lambda fleet: signature(fleet, "retry", 2), 2),
    "replace": Kind(lambda fleet: signature(fleet, "replaced", "task", 5), 5, ("replacement",)),
    "replace by a chain": Kind(
        lambda fleet: signature(fleet, "replaced", "chain", 5), 5, ("replacement 1", "replacement 2")
    ),
    "replace by a chord": Kind(
        lambda fleet: signature(fleet, "replaced", "chord", 5), 10, ("replacement 0", "replacement 1")
    ),
    "on success": Kind(
        lambda fleet: signature(fleet, "publishing_on_success", "succeed"), "published", ("published 0",)
    ),
}

POINTS = {
    "the body is over": "child.ended",
    "nothing is written": "settle.begun",
    "the claim is settled": "settle.turned",
    "all is written": "settle.committing",
    "all is committed": "settle.committed",
}
ONE_BY_ONE = {"worker_prefetch_multiplier": 1}
"""So that each task's end is a transaction of its own, as a rule, and the n-th of them is known."""

IN_THE_HOST = [point for point in POINTS if point != "the body is over"]


def cases(points: Iterable[str], *, everyday: Iterable[tuple[str, str]]) -> list[Any]:
    """Return each kind of end with each of *points*; all but the *everyday* ones are run with ``-m matrix`` only."""
    return [
        pytest.param(
            KINDS[kind],
            POINTS[point],
            id=f"{kind}, {point}",
            marks=() if (kind, point) in set(everyday) else pytest.mark.matrix,
        )
        for kind in KINDS
        for point in points
    ]


@pytest.mark.parametrize(
    ("kind", "point"),
    cases(
        POINTS,
        everyday=[
            *(("chain", point) for point in POINTS),
            *((kind, "all is written") for kind in ("errback", "last chord part", "retry", "replace", "on success")),
        ],
    ),
)
def test_a_kill_leaves_no_half(new_fleet: NewFleet, kind: Kind, point: str) -> None:
    fleet = new_fleet(conf=ONE_BY_ONE)
    result = kind.publish(fleet).delay()
    faults, once = f"{point}=kill@{kind.visit}", {"ATOMIC_FAULTS_ONCE": str(fleet.directory)}
    if point == "child.ended":
        worker = fleet.worker(faults=faults, env=once).start()
        _require_consistent(fleet, kind, result)  # its host goes on with another child
        worker.wait_line("released", outcome="crashed")
        return
    worker = fleet.worker(faults=faults, env={**once, **HASTY}).start()
    assert worker.wait() == -signal.SIGKILL
    fleet.worker("heir").start()
    _require_consistent(fleet, kind, result)


@pytest.mark.parametrize(
    ("kind", "point"),
    cases(
        IN_THE_HOST,
        everyday=[
            ("last chord part", "nothing is written"),
            ("chain", "the claim is settled"),
            ("retry", "all is committed"),
        ],
    ),
)
def test_who_is_frozen_beyond_its_lease_leaves_no_half(new_fleet: NewFleet, kind: Kind, point: str) -> None:
    fleet = new_fleet(conf=ONE_BY_ONE)
    result = kind.publish(fleet).delay()
    frozen = fleet.worker("frozen", faults=f"{point}=stop@{kind.visit}", env=HASTY).start()
    fleet.wait_until(frozen.is_stopped, WAIT_S)
    fleet.wait_until(lambda: not _leases(fleet), WAIT_S)
    heir = fleet.worker("heir").start()
    if fleet.url.startswith("atomic+sqlite"):
        frozen.signal(signal.SIGCONT)  # it may hold the one write lock, and then nobody else can do anything
    elif point == "settle.begun":
        heir.wait_line("claimed")
        frozen.signal(signal.SIGCONT)
        fleet.wait_until(lambda: _refused(frozen))
    else:
        heir.wait_line("ready")
        frozen.signal(signal.SIGCONT)
    _require_consistent(fleet, kind, result)
    assert sorted(set(_refused(frozen))) == sorted(_refused(frozen))  # each is said once


@pytest.mark.parametrize(
    ("kind", "point"), cases(IN_THE_HOST, everyday=[("chain", "all is written"), ("chain", "all is committed")])
)
def test_an_error_in_between_leaves_no_half(new_fleet: NewFleet, kind: Kind, point: str) -> None:
    fleet = new_fleet(conf=ONE_BY_ONE)
    result = kind.publish(fleet).delay()
    worker = fleet.worker(faults=f"{point}=raise@{kind.visit}").start()
    _require_consistent(fleet, kind, result)
    fleet.wait_until(lambda: "InjectedFault" in worker.log)  # said after the commit, which the result may tell first
    assert not worker.events("lost")


@pytest.fixture
def behind_a_network(postgres_url: str, proxy: Proxy, tmp_path: Path) -> Iterator[tuple[Fleet, Proxy]]:
    """A fleet whose workers reach PostgreSQL through a network that can be cut."""
    broker = proxy.url(postgres_url)
    with closing(
        Fleet(postgres_url, tmp_path, broker=broker, results="atomic", application=APPLICATION, conf=ONE_BY_ONE)
    ) as fleet:
        yield fleet, proxy


@pytest.mark.parametrize(
    ("kind", "answer_lost"),
    [
        pytest.param(
            KINDS[kind],
            answer_lost,
            id=f"{kind}, {'after' if answer_lost else 'before'} the commit",
            marks=() if kind in ("chain", "last chord part") else pytest.mark.matrix,
        )
        for kind in KINDS
        for answer_lost in (False, True)
    ],
)
def test_a_database_lost_around_the_commit_leaves_no_half(
    behind_a_network: tuple[Fleet, Proxy], kind: Kind, answer_lost: bool
) -> None:
    fleet, proxy = behind_a_network
    result = kind.publish(fleet).delay()
    worker = fleet.worker(faults=f"settle.committing=stop@{kind.visit}").start()
    fleet.wait_until(worker.is_stopped, WAIT_S)
    if answer_lost:
        lost = proxy.drop_next_response(b"COMMIT")
        worker.signal(signal.SIGCONT)
        assert lost.wait(WAIT_S)
    proxy.drop()
    worker.signal(signal.SIGCONT)
    worker.wait_line("degraded")
    proxy.restore()
    _require_consistent(fleet, kind, result)
    assert not worker.events("lost")


def _require_consistent(fleet: Fleet, kind: Kind, result: Any) -> None:
    value = result.get(timeout=WAIT_S, propagate=False)
    assert type(value) is kind.failed if kind.failed else value == kind.result, f"{value!r}\n{fleet.describe()}"
    fleet.wait_until(lambda: not fleet.unfinished(), WAIT_S, what="messages that nobody finishes")
    require_once(fleet, kind.once)
    assert _left(fleet) == 0


def _refused(worker: WorkerProcess) -> list[tuple[str, str]]:
    """Return the messages, with their fences, of which *worker* has said that their ends came too late."""
    return re.findall(r"essage (\d+) \(fence (\d+)\).* is no longer ours", worker.log)


def _left(fleet: Fleet) -> int:
    database = fleet.store._database
    count = database.statements.script(
        "left", "SELECT (SELECT count(*) FROM atomic_chord) + (SELECT count(*) FROM atomic_chord_part)"
    )
    return int(database.run(count).rows[0][0])


def _leases(fleet: Fleet) -> list[int]:
    """Return the messages whose leases have not run out."""
    now_ms = fleet.store.now_ms()
    return [view.id for view in fleet.running() if (view.lease_until_ms or 0) > now_ms]
