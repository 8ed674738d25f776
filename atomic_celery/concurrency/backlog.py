"""Errands that wait in the host, and how they are dealt out to children."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from atomic_celery import clock
from atomic_celery.concurrency.deadline_page import NO_ENTRY, DeadlinePage
from atomic_celery.concurrency.errand import Errand, State
from atomic_celery.concurrency.link import Link
from atomic_celery.concurrency.pace import LINGER_S, Pace


class Backlog:
    """First in, first out; an errand that was taken back from a child comes first again."""

    def __init__(self, page: DeadlinePage, pace: Pace) -> None:
        self._page, self._pace = page, pace
        self._errands: deque[Errand] = deque()

    def __len__(self) -> int:
        return len(self._errands)

    def __iter__(self) -> Iterator[Errand]:
        return iter(self._errands)

    def add(self, errand: Errand) -> None:
        """Let *errand* wait behind all others."""
        self._errands.append(errand)

    def put_back(self, errands: Iterable[Errand]) -> None:
        """Let *errands*, which a child had and has not begun, wait before all others, in their old order."""
        for errand in sorted(errands, key=lambda errand: errand.ticket, reverse=True):
            self._page.close(errand.entry, errand.lease)
            errand.link, errand.entry, errand.state = None, NO_ENTRY, State.WAITING
            self._errands.appendleft(errand)

    def remove(self, errand: Errand) -> bool:
        """Take *errand* out; False when it does not wait here."""
        if errand.state is not State.WAITING:
            return False
        self._errands.remove(errand)
        errand.state = State.OVER
        return True

    def clear(self) -> list[Errand]:
        """Take all out, oldest first."""
        errands = list(self._errands)
        self._errands.clear()
        for errand in errands:
            errand.state = State.OVER
        return errands

    def deal(self, links: Sequence[Link], heard_s: float, flush: Callable[[Link], None]) -> None:
        """Give waiting errands to children: evenly, and to none more than it can begin soon.

        Args:
            heard_s: When the host last knew what children do.
        """
        free = sorted((link for link in links if link.open), key=lambda link: link.load)
        if not free or not self._errands:
            return
        now_s, depth = clock.monotonic_s(), self._pace.depth()
        share = -(-(sum(link.load for link in free) + len(self._errands)) // len(free))
        for link in free:
            most = min(share, 1 + (0 if _lingers(link, heard_s) else depth)) - link.load
            if link.room is not None:
                most = min(most, link.room)
            for _ in range(min(most, len(self._errands))):
                errand = self._errands.popleft()
                entry = self._page.open(errand.lease) if _needs_entry(errand) else NO_ENTRY
                link.give(errand, entry, now_s)
            if most > 0:
                flush(link)


def _lingers(link: Link, heard_s: float) -> bool:
    """Whether it has been busy with one errand for so long that nothing should wait for that."""
    return link.running is not None and heard_s - link.running.began_s > LINGER_S


def _needs_entry(errand: Errand) -> bool:
    return errand.lease is not None or errand.soft_timeout_s is not None
