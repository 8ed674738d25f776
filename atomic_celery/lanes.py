"""Where a claim begins to look in each queue: what keeps claims flat, see docs/architecture.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from atomic_celery.store.records import Claimed, Lane

_PRIORITIES = range(9, -1, -1)


class Lanes:
    """Where, in each queue and priority, it is worth starting to look: a hint, and nothing depends on it but speed."""

    def __init__(self) -> None:
        self._after: dict[tuple[int, int], int] = {}
        self._count = 0

    def of(self, queue_ids: Sequence[int], *, from_the_start: bool) -> list[Lane]:
        """Return the lanes of these queues, the highest priority first; the queues take turns to be the first."""
        self._count += 1
        first = self._count % len(queue_ids)
        order = [*queue_ids[first:], *queue_ids[:first]]
        after = {} if from_the_start else self._after
        return [Lane(queue, priority, after.get((queue, priority), 0)) for priority in _PRIORITIES for queue in order]

    def passed(self, claimed: Iterable[Claimed]) -> None:
        """Start behind these next time."""
        for message in claimed:
            lane = (message.queue_id, message.priority)
            self._after[lane] = max(self._after.get(lane, 0), message.position)
