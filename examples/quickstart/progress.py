"""A live view of the fleet, read from the database like anybody could."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from survey import Totals

from atomic_celery import status
from atomic_celery.store import Store
from atomic_celery.trouble import StoreTrouble


@dataclass(frozen=True)
class Seen:
    """What the database said at one moment."""

    hosts: int
    slots: int
    busy: int
    queued: int
    running: int
    done: int

    def __str__(self) -> str:
        return (
            f"hosts {self.hosts}  slots {self.busy}/{self.slots}  queue {self.queued}  "
            f"running {self.running}  done {self.done}"
        )


class Progress:
    """Prints what the store sees, on one line of a terminal or a line each time something changed."""

    def __init__(self, store: Store, *, total: int) -> None:
        self._store, self._total = store, total
        self._live = sys.stdout.isatty()
        self._last: Seen | None = None

    def until(self, reached: Callable[[Seen], bool]) -> None:
        """Show the progress until *reached* says so."""
        pace = threading.Event()
        while True:
            try:
                seen = self._look()
            except StoreTrouble as trouble:  # this look; the workers go on, and so do we
                self.say(trouble.headline)
            else:
                self._show(seen)
                if reached(seen):
                    return
            pace.wait(0.25 if self._live else 1.0)

    def say(self, text: str) -> None:
        """Print a line of its own."""
        print(f"\n{text}" if self._live else text, flush=True)

    def close(self) -> None:
        """Leave the live line."""
        if self._live:
            print()

    def _look(self) -> Seen:
        fleet = status.read(self._store)
        hosts = [host for host in fleet.hosts if host.state in status.SERVING]
        tasks = [queue for queue in fleet.queues if not queue.temporary]
        held = Counter(view.holder for view in self._store.searches.held_by([host.id for host in hosts]))
        unfinished = sum(queue.ready + queue.delayed + queue.running for queue in tasks)
        return Seen(
            hosts=len(hosts),
            slots=sum(host.slots for host in hosts),
            busy=sum(min(host.slots, held[host.id]) for host in hosts),
            queued=sum(queue.ready for queue in tasks),
            running=sum(queue.running for queue in tasks),
            done=max(0, self._total - unfinished),
        )

    def _show(self, seen: Seen) -> None:
        if self._live:
            print(f"\r\033[K{seen}", end="", flush=True)
        elif seen != self._last:
            print(seen, flush=True)
        self._last = seen


def print_totals(counted: Totals, direct: Totals) -> None:
    """Print both results side by side."""
    print(f"\n{'':>8} {'workers':>12} {'one process':>12}")
    for key in ("files", "lines", "tokens"):
        print(f"{key:>8} {counted[key]:>12,} {direct[key]:>12,}")  # type: ignore[literal-required]
    print(f"{'digest':>8} {counted['digest'][:12]:>12} {direct['digest'][:12]:>12}\n")
