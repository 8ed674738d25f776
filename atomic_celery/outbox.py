"""What a running task leaves to be done when its claim ends: in the same transaction, or not at all."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from atomic_celery import current, errors
from atomic_celery.store.django_results import CounterClosed, CounterGrown, CounterOpened, CounterPart, TaskRow
from atomic_celery.store.queues import QueueSpec
from atomic_celery.store.records import NewMessage
from atomic_celery.store.results import ChordClosed, ChordPart, ChordTerms, Finisher, FullChord, Outcome
from atomic_celery.store.store import Store

logger = logging.getLogger(__name__)

Entry = (
    NewMessage
    | (Outcome | ChordTerms | ChordPart | ChordClosed)
    | (TaskRow | CounterOpened | CounterGrown | CounterPart | CounterClosed)
)
"""Plain values: they travel from a pool's process to its host."""

AnEntry = TypeVar("AnEntry", bound=Entry)

A_STATEMENT = 1000
"""How many messages one statement stores."""


class Outbox:
    """The entries of one task, in the order of their coming.

    Args:
        journal: The tables in which its claim is; what is meant for others cannot go along.
        closing: Whether the task's body is over: all that is published from then on goes along.
        takes_all: Whether nothing is left to a transaction of the application's.
    """

    def __init__(self, journal: str, *, closing: bool = False, takes_all: bool = False) -> None:
        self.journal, self.closing, self.takes_all = journal, closing, takes_all
        self.entries: list[Entry] = []
        self.own_ids: set[str] = set()
        """Tasks that go along whenever they are published: the one that runs, and parts it adds to its chord."""
        self.keeps_back = False
        """Whether what the body publishes waits for its success."""
        self._kept_back: list[NewMessage] = []
        self._depth = 0

    def take(self, new: Sequence[NewMessage], *, joining: bool) -> list[NewMessage]:
        """Keep those that go along, and return the others.

        Args:
            joining: Whether they would be part of a transaction of the application's; they are left to it.
        """
        own = [message for message in new if message.task_id in self.own_ids]
        others = [message for message in new if message.task_id not in self.own_ids]
        self.entries += own
        if (joining and not self.takes_all) or not (self.closing or self.keeps_back):
            return others
        (self.entries if self.closing else self._kept_back).extend(others)
        return []

    @contextmanager
    def body(self) -> Iterator[None]:
        """Run the task's body, and go on closing; a body that calls itself is one body."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self.closing = self._depth == 0

    @contextmanager
    def open(self) -> Iterator[None]:
        """Let what is published inside go out at once."""
        before = self.closing, self.keeps_back
        self.closing = self.keeps_back = False
        try:
            yield
        finally:
            self.closing, self.keeps_back = before

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Let what is published inside go along."""
        before, self.closing = self.closing, True
        try:
            yield
        finally:
            self.closing = before

    def release(self) -> None:
        """Let what was kept back go along, however the task ends."""
        self.entries[:0] = self._kept_back
        self._kept_back = []

    def seal(self, *, succeeded: bool) -> list[Entry]:
        """Return all that goes along, now that it is known whether the task succeeded."""
        if succeeded:
            self.release()
        return self.entries


def weight(entries: Sequence[Entry]) -> int:
    """Return about how many bytes *entries* are."""
    return sum(map(_weight, entries))


def _weight(entry: Entry) -> int:
    if isinstance(entry, Outcome):
        return len(entry.meta)
    if isinstance(entry, NewMessage):
        return len(entry.payload)
    if isinstance(entry, CounterPart):
        return len(entry.finisher.message.payload)
    return len(entry.result or "") if isinstance(entry, ChordPart | TaskRow) else 0


def of_here(journal: str) -> Outbox | None:
    """Return the outbox of the task that runs here, if its claim is in those tables."""
    running = current.running()
    outbox: Outbox | None = None if running is None else running.outbox
    return outbox if outbox is not None and outbox.journal == journal else None


@contextmanager
def collecting(journal: str) -> Iterator[list[Entry]]:
    """Collect what is published inside instead of publishing it."""
    outbox = Outbox(journal, closing=True, takes_all=True)
    with current.holding(current.Running(0, 0, outbox=outbox)):
        yield outbox.entries


def deliver(store: Store, entries: Sequence[Entry]) -> list[FullChord]:
    """Do what *entries* say.

    Atomicity: several statements; to be called in a transaction, together with what ends the claims.

    Returns:
        The chords that this made full and that are finished by hand.
    """
    sorted_out = _SortedOut(entries)
    full: list[FullChord] = []
    if outcomes := sorted_out.all(Outcome):
        store.results.record(outcomes)
    full += [chord for chord in map(store.results.describe_chord, sorted_out.all(ChordTerms)) if chord is not None]
    if parts := sorted_out.all(ChordPart):
        full += store.results.count(parts)
    if closed := sorted_out.all(ChordClosed):
        store.results.close_chords([chord.group_id for chord in closed])
    finishers = [chord.finisher for chord in full if chord.finisher is not None]
    finishers += _write_rows_of_django(store, sorted_out)
    messages = sorted_out.all(NewMessage) + [_addressed(store, finisher) for finisher in finishers]
    if has_keys(messages):
        store.limits.hurry()
    for start in range(0, len(messages), A_STATEMENT):
        _publish(store, messages[start : start + A_STATEMENT])
    return [chord for chord in full if chord.finisher is None]


def has_keys(entries: Sequence[Entry]) -> bool:
    """Whether one of them is a message that has to wait for whoever is publishing under its key."""
    return any(isinstance(entry, NewMessage) and entry.unique_key is not None for entry in entries)


class _SortedOut:
    """Entries by what they are."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries: defaultdict[type, list[Any]] = defaultdict(list)
        for entry in entries:
            self._entries[type(entry)].append(entry)

    def all(self, kind: type[AnEntry]) -> list[AnEntry]:
        """Return those of one kind, in the order of their coming."""
        return self._entries[kind]


def _write_rows_of_django(store: Store, sorted_out: _SortedOut) -> list[Finisher]:
    """Write what django-celery-results reads; return what finishes the chords that this made full."""
    if rows := sorted_out.all(TaskRow):
        store.django_results.record(rows)
    if opened := sorted_out.all(CounterOpened):
        store.django_results.open_counters(opened)
    for grown in sorted_out.all(CounterGrown):
        store.django_results.grow_counter(grown)
    parts = sorted_out.all(CounterPart)
    finishers = store.django_results.count(parts) if parts else []
    if closed := sorted_out.all(CounterClosed):
        store.django_results.close_counters([chord.group_id for chord in closed])
    return finishers


def _addressed(store: Store, finisher: Finisher) -> NewMessage:
    """Return the finisher's message, for the queue that has its queue's name now: a chord may be older than that."""
    queue = store.queues.get(finisher.queue)
    if queue is None:
        queue = store.queues.declare(QueueSpec(name=finisher.queue))
        logger.warning("the queue %r was deleted; it was declared again to finish a chord", finisher.queue)
    return replace(finisher.message, queue_id=queue.id)


def _publish(store: Store, messages: Sequence[NewMessage]) -> None:
    """Publish all whose queues are still there: the others would have been deleted with them."""
    try:
        store.messages.publish(messages)
    except errors.QueueNotFound as error:
        for message in messages:
            if str(message.queue_id) == error.queue:
                logger.error("%s[%s] was dropped: its queue was deleted meanwhile", message.task_name, message.task_id)
        _publish(store, [message for message in messages if str(message.queue_id) != error.queue])
