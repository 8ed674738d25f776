"""Everybody does everything at once on real connections; afterwards nothing is lost, and nothing was done twice."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from atomic_celery import errors
from atomic_celery.store.records import Claimed, Crashed, Held, Holder, Settlement
from tests.store.desk import Desk

THREADS, STEPS = 4, 60
LEASE_MS = 300  # by the database's own clock: some run out while their holder still works


class Life:
    """One thread's holder, and what it was told."""

    def __init__(self, desk: Desk, number: int) -> None:
        self.desk, self.messages, self.number = desk, desk.messages, number
        self.holder = Holder(f"h{number}", "b")
        self.random = random.Random(number)
        self.names = itertools.count()
        self.stored: list[int] = []
        self.completed: list[int] = []
        self.ended: list[int] = []
        """By any other way: deleted, or continued by a successor."""
        self.fences: list[Held] = []
        self.held: list[Claimed] = []

    def run(self) -> None:
        verbs: list[Callable[[], None]] = [
            *[self.publish] * 3,
            *[self.turn] * 6,
            self.release,
            self.crash,
            self.delay,
            self.supersede,
            self.operate,
            self.sweep,
        ]
        for _ in range(STEPS):
            self.random.choice(verbs)()

    def publish(self) -> None:
        new = [self.desk.new(task_id=self._name()) for _ in range(self.random.randint(1, 5))]
        self.stored += [message_id for message_id in self.messages.publish(new) if message_id is not None]

    def turn(self) -> None:
        done = self._drop(self.random.randint(0, len(self.held)))
        turn = self.messages.turn(self.holder, Settlement(done), self.desk.lanes(), 4, LEASE_MS)
        self.completed += turn.settled
        self.held += turn.claimed
        self.fences += [message.held for message in turn.claimed]

    def release(self) -> None:
        self.messages.release(self._drop(1))

    def crash(self) -> None:
        self._check(self.messages.crash(self._drop(1), "killed"))

    def delay(self) -> None:
        for held in self._drop(1):
            self.messages.delay(held, self.desk.store.now_ms() + self.random.choice([-1, 50]))

    def supersede(self) -> None:
        for held in self._drop(1):
            try:
                self.stored.append(self.messages.supersede(held, self.desk.new(task_id=self._name())))
            except (errors.LeaseLost, errors.StoreBusy):
                continue
            # From here on the message is over, whether this settles it or a sweep does.
            self.ended += [held[0]]
            self.messages.complete([held])

    def operate(self) -> None:
        ids = [self.random.choice(self.stored) for _ in range(3)] if self.stored else []
        verb = self.random.randrange(3)
        if verb == 0:
            self.messages.bury(ids, "bad luck")
        elif verb == 1:
            self.messages.requeue(ids)
        else:
            self.ended += self.messages.delete(ids)

    def sweep(self) -> None:
        self._check(self.messages.reclaim())
        self.messages.promote()

    def _name(self) -> str:
        return f"task {self.number}-{next(self.names)}"

    def _drop(self, count: int) -> list[Held]:
        dropped, self.held = self.held[:count], self.held[count:]
        return [message.held for message in dropped]

    @staticmethod
    def _check(reports: Iterable[Crashed]) -> None:
        assert all(report.crashes >= 1 for report in reports)


def test_nothing_is_lost_and_nothing_is_done_twice(desk: Desk) -> None:
    desk.store.at(None)
    together = Barrier(THREADS)
    lives = [Life(desk, number) for number in range(THREADS)]

    def live(life: Life) -> None:
        together.wait(timeout=60)
        life.run()

    with ThreadPoolExecutor(THREADS) as pool:
        for running in [pool.submit(live, life) for life in lives]:
            running.result(timeout=100)

    desk.store.at(desk.store.now_ms() + 10 * LEASE_MS)  # every lease is over: what has a successor goes
    desk.messages.reclaim()
    stored = Counter(message_id for life in lives for message_id in life.stored)
    completed = Counter(message_id for life in lives for message_id in life.completed)
    ended = {message_id for life in lives for message_id in life.ended}
    left = {view.id for view in desk.store.reads.messages(limit=100_000)}
    assert set(stored) - set(completed) - ended == left
    assert max(stored.values()) == max(completed.values()) == 1
    assert desk.store.reads.misplaced() == []
    assert desk.traces_of_the_gone() == []
    fences = Counter(held for life in lives for held in life.fences)
    assert max(fences.values(), default=1) == 1
