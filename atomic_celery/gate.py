"""One consumer's way through the gates: who of those that wait may start, and in what order.

Where nothing waits at a gate, nothing here costs anything: a claim says whether something does, and only then is there
a survey. Within a priority the lanes of the gates, a root each or a key of a task, take turns, one message each; and
when both wait, messages at gates and those outside take every other place. So nobody who has published a million
messages keeps another one of the same priority waiting for them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from atomic_celery import clock
from atomic_celery.store.records import Gated, Holder, Lane, Survey, Turn
from atomic_celery.store.store import Store

Claim = Callable[[int], Turn]
"""Settle what is to be settled, and claim so many of the messages that wait at no gate."""


class Gate:
    """What one consumer knows of the gates of its queues.

    Args:
        lease_ms: The lease of what is admitted.
    """

    def __init__(self, store: Store, holder: Holder, lease_ms: int) -> None:
        self._store, self._holder, self._lease_ms = store, holder, lease_ms
        self._occupied: set[frozenset[int]] = set()
        self._odd = False
        self._after = self._last_lane = ""
        self._limits_of: dict[int, tuple[int, ...]] = {}
        self.is_unfinished = False
        """Whether there are gates that were not looked at, and should be, before this consumer sleeps."""
        self.look_at_s = math.inf
        """When a rate has room again."""

    def turn(self, lanes: Sequence[Lane], limit: int, ending: Sequence[int], claim: Claim) -> Turn:
        """Claim up to *limit* messages, of those at gates and of the others.

        Args:
            ending: Messages whose claims end by *claim*.

        Atomicity: one transaction; where nothing waits at a gate, as many statements as *claim* has.
        """
        if limit <= 0:
            return claim(limit)
        queue_ids = frozenset(lane.queue_id for lane in lanes)
        if queue_ids not in self._occupied:
            turn = claim(limit)
            self._forget_survey(is_unfinished=turn.gated)
        else:
            turn = self._survey_and_claim(lanes, limit, ending, claim)
        (self._occupied.add if turn.gated else self._occupied.discard)(queue_ids)
        return turn

    def freed(self, message_ids: Iterable[int]) -> None:
        """Tell those who sleep what has room again, now that claims of these messages have ended."""
        limits = {each for message_id in message_ids for each in self._limits_of.pop(message_id, ())}
        if limits:
            self._store.limits.freed(limits)

    def _survey_and_claim(self, lanes: Sequence[Lane], limit: int, ending: Sequence[int], claim: Claim) -> Turn:
        self._odd = not self._odd
        with self._store.transaction("turn"):
            survey = self._store.limits.survey(lanes, limit, after=self._after, ending=ending)
            chosen = choose(survey, limit, odd=self._odd, last_lane=self._last_lane)
            turn = claim(limit - len(chosen))
            admitted = self._store.limits.admit(self._holder, chosen, self._lease_ms)
        self._after = survey.last_lane or ""
        self._last_lane = chosen[-1].lane if chosen else self._last_lane
        self.is_unfinished = bool(self._after)
        self.look_at_s = math.inf if survey.wait_ms is None else clock.monotonic_s() + survey.wait_ms / 1000
        limits = {each.id: each.limit_ids for each in chosen}
        self._limits_of |= {claimed.id: limits[claimed.id] for claimed in admitted}
        return replace(turn, claimed=sorted([*turn.claimed, *admitted], key=lambda claimed: -claimed.priority))

    def _forget_survey(self, *, is_unfinished: bool) -> None:
        self._after, self.look_at_s, self.is_unfinished = "", math.inf, is_unfinished


def choose(survey: Survey, limit: int, *, odd: bool, last_lane: str) -> list[Gated]:
    """Return who is to be admitted, so that with the ready ones they are at most *limit*.

    Args:
        odd: Who has the odd place, if there is one: those at the gates, or the others.
        last_lane: The lane that had its turn last.
    """
    room = Counter({limit_id: room for each in survey.gated for limit_id, room in each.rooms.items()})
    waiting: dict[int, list[Gated]] = {}
    for each in survey.gated:
        waiting.setdefault(each.priority, []).append(each)
    chosen: list[Gated] = []
    for priority in sorted(waiting.keys() | survey.ready.keys(), reverse=True):
        ready = min(survey.ready.get(priority, 0), limit)
        share = max((limit + odd) // 2, limit - ready)
        taken = _fitting(_in_turns(waiting.get(priority, []), last_lane), room, share)
        chosen += taken
        limit -= len(taken) + min(ready, limit - len(taken))
    return chosen


def _in_turns(gated: Iterable[Gated], last_lane: str) -> list[Gated]:
    """Order messages so that each lane has its turn, beginning behind the one that had it last."""
    lanes: dict[str, list[Gated]] = {}
    for each in gated:
        lanes.setdefault(each.lane, []).append(each)
    order = sorted(lanes, key=lambda lane: (lane <= last_lane, lane))
    longest = max(map(len, lanes.values()), default=0)
    return [lanes[lane][turn] for turn in range(longest) for lane in order if turn < len(lanes[lane])]


def _fitting(gated: Iterable[Gated], room: Counter[int], count: int) -> list[Gated]:
    """Take the first *count* that their limits have room for, and the room."""
    found: list[Gated] = []
    for each in gated:
        if len(found) < count and all(room[limit_id] > 0 for limit_id in each.rooms):
            room.subtract(each.rooms.keys())
            found.append(each)
    return found
