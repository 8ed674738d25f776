"""A consumer's dealings with the database: settle what ended, claim what may start, sleep until there is reason not to.

One turn does what is due in as few statements as it can: settlements and a claim are one transaction. A consumer
that found too little arms itself, looks once more and sleeps on its doorbell; for how long, the ladders below say.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from atomic_celery import clock, errors, faults, outbox
from atomic_celery.backoff import Backoff
from atomic_celery.clock import Moment, SystemClock
from atomic_celery.config import Settings
from atomic_celery.demand import NOTHING, Consumer, Demand, Nobody, Want
from atomic_celery.endings import Attempt, Ending, Endings
from atomic_celery.gate import Gate
from atomic_celery.lanes import Lanes
from atomic_celery.lease import Lease, LeaseKeeper, trusted_until
from atomic_celery.loop import Loop
from atomic_celery.post import Letter, Post
from atomic_celery.slumber import ARMED_FOR_S, Slumber
from atomic_celery.store.records import Claimed, Crashed, Holder, Lane, Settlement, Turn
from atomic_celery.store.store import Store
from atomic_celery.upkeep import Upkeep

logger = logging.getLogger(__name__)

LADDER_S = (0.02, 0.2, 2.0, 8.0)
"""How long to sleep, armed, after the n-th look in vain: a publisher that began before we armed rings nobody."""

DEAF_LADDER_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The same while nothing can be heard."""

KEEN_FOR_S = 0.25  # whoever got something, and could take more, expects more at any moment
PAUSE_S = 0.002  # before stragglers are looked for: a short task ends meanwhile, and one transaction does for both
ASIDE_EVERY_S = 0.1  # there is time for other things while claims end
FULL_SCAN_EVERY_S = 1.0
TAKE_EVERY_S = 10.0
MOST_TAKEN_AT_ONCE = 100


@dataclass(slots=True)
class Hooks:
    """Who is told what."""

    degraded: Callable[[int, int, Exception], None] = lambda failures, retry_in_ms, error: None
    recovered: Callable[[], None] = lambda: None
    refused: Callable[[Ending], None] = lambda ending: None
    crashed: Callable[[list[Crashed]], None] = lambda crashed: None
    """Told of every message this consumer made ready again, or buried, after somebody's end."""
    mourn: Callable[[], None] = lambda: None
    """Called now and then: the failures of buried messages may still have to be stored. On the consumer's thread."""


class Claimer:
    """Claims and settles for one consumer, on a thread of its own (`start`) or on the caller's (`turn`).

    Args:
        sleeper: What this consumer's doorbell is called; a holder may have several consumers.
        consumer: Whom it claims for; may change.
    """

    def __init__(
        self,
        store: Store,
        holder: Holder,
        keeper: LeaseKeeper,
        settings: Settings,
        *,
        sleeper: str,
        consumer: Consumer,
        hooks: Hooks | None = None,
    ) -> None:
        self._store, self.holder, self._keeper, self._settings = store, holder, keeper, settings
        self.consumer, self.hooks = consumer, hooks or Hooks()
        self.endings = Endings(keeper)
        self.post = Post(store)
        self._upkeep = Upkeep(
            store, settings, crashed=lambda crashed: self.hooks.crashed(crashed), mourn=lambda: self.hooks.mourn()
        )
        self._clock = SystemClock()
        self._lanes = Lanes()
        self._gate = Gate(store, holder, settings.lease_ms)
        self._backoff, self._retry_at_s = Backoff(), 0.0
        self._look_at_s = self._full_scan_at_s = self._take_at_s = 0.0
        self._touched_s = self._touch_at_s = self._aside_at_s = self._keen_until_s = 0.0
        self._in_vain = 0
        self._has_changed = False
        self._slumber = Slumber(store, sleeper)
        self._turning = threading.Lock()
        self._loop = Loop("atomic-claims", self._turn_and_sleep, interval_s=LADDER_S[-1])

    def start(self) -> None:
        """Let a thread of its own take turns from now on."""
        self._loop.start()

    def stop(self, timeout_s: float | None = None) -> bool:
        """Claim no more, settle what still waits, and end the thread; True once it is gone."""
        self.consumer = Nobody()
        self.wake()
        gone = self._loop.stop(timeout_s)
        if gone:
            self.flush()
            with contextlib.suppress(errors.StoreError):
                self.post.send()
            self._slumber.close()
        return gone

    def wake(self) -> None:
        """Take a turn now: something ended, or there is room. Safe from any thread."""
        self._has_changed = True
        self._slumber.wake()

    def settle(self, ending: Ending) -> None:
        """End a claim soon; never dropped, however long the database is away. Safe from any thread."""
        self.endings.add(ending)
        self.wake()

    def send(self, letter: Letter) -> None:
        """Publish *letter* soon, on the claimer's thread. Safe from any thread."""
        self.post.add(letter)
        self._slumber.wake()

    def flush(self) -> bool:
        """Settle what waits, here and now; False if the database could not be reached, and it still waits."""
        with self._turning:
            self.endings.recall(math.inf)
            try:
                while len(self.endings):
                    self._exchange(self.consumer, (), from_the_start=False)
            except errors.StoreError as error:
                logger.warning("%d settlements wait for the database: %s", len(self.endings), error)
                return False
        return True

    def claim_now(self, want: Want) -> list[Claimed]:
        """Claim at once, whatever the demand, and return instead of delivering it."""
        with self._turning:
            claimed = self._claim(want, from_the_start=True)
            if not claimed and self._gate.is_unfinished:
                claimed = self._claim(want, from_the_start=True)
        return claimed

    def turn(self) -> float:
        """Do what is due; return seconds until there is reason for another turn, were nobody to ring.

        Raises:
            StoreUnavailable: Nothing was lost by it: endings go on waiting.
        """
        with self._turning:
            return self._work(self.consumer, clock.monotonic_s())

    def sleep(self, at_most_s: float) -> bool:
        """Wait until rung or woken; True if so."""
        heard = self._slumber.sleep(at_most_s, keen=clock.monotonic_s() < self._keen_until_s)
        changed, self._has_changed = self._has_changed, False
        if changed or self._slumber.rung:
            self.look_again()
            self._upkeep.look_at_delays()
        return heard

    def look_again(self, *, thoroughly: bool = False) -> None:
        """Let the next turn look for messages, however short a while ago the last one found none.

        Args:
            thoroughly: Also before the cursors, where only stragglers and what was given back can be.
        """
        self._look_at_s, self._in_vain = 0.0, 0
        if thoroughly:
            self._full_scan_at_s = 0.0
        if not self._slumber.listening:
            self._take_at_s = 0.0

    def hear(self) -> None:
        """Take note of a ring that came while nobody slept."""
        if self._slumber.listening:
            self.sleep(0)

    def _turn_and_sleep(self) -> float:
        wait_s = self._turn_patiently()
        if wait_s > 0 and not self._loop.stopping:
            self.sleep(wait_s)
        return 0.0

    def _turn_patiently(self) -> float:
        """Take a turn, unless the last one failed so short a while ago that the database deserves a rest."""
        rest_s = self._retry_at_s - clock.monotonic_s()
        if rest_s > 0:
            return rest_s
        try:
            # A network that swallows everything would hold this thread for ever: no driver gives up by itself.
            with self._store.deadline(self._settings.statement_timeout_s + self.endings.patience_s):
                wait_s = self.turn()
        except errors.StoreError as error:
            return self._failed(error)
        if self._backoff.succeeded():
            self.hooks.recovered()
        return wait_s

    def _failed(self, error: errors.StoreError) -> float:
        retry_in_s = self._backoff.failed()
        self._retry_at_s = clock.monotonic_s() + retry_in_s
        self.hooks.degraded(self._backoff.failures, round(retry_in_s * 1000), error)
        return retry_in_s

    def _work(self, consumer: Consumer, now_s: float) -> float:
        """Claim first, because somebody waits for that; then what can wait."""
        demand = consumer.demand()
        self.endings.recall(now_s)
        if self._slumber.rung:
            self._slumber.rung = False
            self._hear(demand)
        wants = demand.wants if now_s >= min(self._look_at_s, self._gate.look_at_s) else ()
        wanted = sum(want.limit for want in wants)
        thorough = self._in_vain > 0 or now_s >= self._full_scan_at_s
        got = self._exchange(consumer, wants, from_the_start=thorough)
        if wanted and thorough:
            self._full_scan_at_s = now_s + FULL_SCAN_EVERY_S
        if got:
            self._keen_until_s = now_s + KEEN_FOR_S if got < wanted else 0.0
        self.post.send()
        if len(self.endings) and now_s < self._aside_at_s:
            return 0.0
        self._aside_at_s = now_s + ASIDE_EVERY_S
        self._touch(consumer, demand, now_s)
        busy = self._take(consumer, demand.no_ack_queue_ids, now_s)
        if self._upkeep.turn(calm=self._slumber.armed):
            self.look_again()
            busy = True
        if busy or len(self.endings) or (wanted and (got == wanted or self._gate.is_unfinished)):
            return 0.0
        if wanted and not thorough:
            self._full_scan_at_s = 0.0  # too little behind the cursors: perhaps there is something before them
            return PAUSE_S if got else 0.0
        return self._rest_s(demand, now_s, looked=wanted > 0)

    def _hear(self, demand: Demand) -> None:
        """Look at everything that the ring may have been for; if there is no room, somebody else may have some."""
        self._take_at_s = 0.0
        self._touch_at_s = min(self._touch_at_s, self._touched_s + demand.touch_every_s)
        if demand.wants and not any(want.limit for want in demand.wants):
            self._store.queues.ring(sorted(demand.consumed_ids - set(demand.no_ack_queue_ids)))

    def _rest_s(self, demand: Demand, now_s: float, *, looked: bool) -> float:
        """Make sure to be rung; return how long to sleep."""
        if self._slumber.arm(demand.wanted_ids):
            self.look_again(thoroughly=True)
            self._take_at_s = 0.0
            return 0.0
        if looked:
            ladder = LADDER_S if self._slumber.listening else DEAF_LADDER_S
            self._look_at_s = now_s + ladder[min(self._in_vain, len(ladder) - 1)]
            self._in_vain += 1
        return max(0.0, min(*self._due_s(demand)) - clock.monotonic_s())

    def _due_s(self, demand: Demand) -> Iterator[float]:
        yield clock.monotonic_s() + self._upkeep.wait_s()
        yield self.endings.due_s
        yield min(self._look_at_s, self._gate.look_at_s) if any(want.limit for want in demand.wants) else math.inf
        yield self._take_at_s if demand.no_ack_queue_ids else math.inf
        yield self._touch_at_s if demand.consumed_ids else math.inf

    def _touch(self, consumer: Consumer, demand: Demand, now_s: float) -> None:
        """Keep its queues from being thought abandoned, and see whether they are still there."""
        if not demand.consumed_ids or now_s < self._touch_at_s:
            return
        kept = self._store.queues.touch(sorted(demand.consumed_ids))
        self._touched_s = now_s
        # Where sleepers are seen asleep, that is sign enough; but a ring ends it for a moment.
        self._touch_at_s = now_s + (ARMED_FOR_S / 2 if self._slumber.armed else demand.touch_every_s)
        if gone := demand.consumed_ids - kept:
            consumer.redeclare(gone)

    def _take(self, consumer: Consumer, queue_ids: Sequence[int], now_s: float) -> bool:
        """Take the messages that nobody acknowledges; True if there were any."""
        if not queue_ids or now_s < self._take_at_s:
            return False
        taken = self._store.messages.take(queue_ids, MOST_TAKEN_AT_ONCE)
        if not taken:
            self._take_at_s = now_s + (TAKE_EVERY_S if self._slumber.listening else DEAF_LADDER_S[-1])
            return False
        consumer.deliver(taken)
        return True

    def _exchange(self, consumer: Consumer, wants: Sequence[Want], *, from_the_start: bool) -> int:
        """Settle what waits and claim what is wanted; return how many were claimed."""
        wants = [want for want in wants if want.limit > 0]
        count = 0
        if len(self.endings):
            with_settling = wants.pop(0) if wants else NOTHING
            count += self._settle(consumer, with_settling, from_the_start=from_the_start)
        for want in wants:
            count += self._hand_over(consumer, self._claim(want, from_the_start=from_the_start))
        return count

    def _settle(self, consumer: Consumer, want: Want, *, from_the_start: bool) -> int:
        """Settle what waits and claim *want* in the same transaction; return how many were claimed."""
        attempt, asked_at = self.endings.begin(), self._clock.now()
        try:
            before = self._completed_before(attempt, asked_at)
            lanes = self._lanes_of(want, from_the_start)
            ending = [ending.held[0] for ending in attempt.endings]
            turn = self._gate.turn(lanes, want.limit, ending, lambda limit: self._attempt(attempt, lanes, limit))
        except errors.StoreRefused as error:
            if not self.endings.refused(attempt, error):
                raise
            return 0
        except BaseException as error:
            if isinstance(error, errors.StoreBusy) and self.endings.put_off(attempt, clock.monotonic_s()):
                return 0
            self.endings.failed(attempt, error)
            raise
        self._hold(turn.claimed, asked_at)
        count = self._hand_over(consumer, turn.claimed)
        self._tell(attempt, replace(turn, settled=turn.settled | before))
        consumer.settled()
        self._gate.freed(ending)
        return count

    def _completed_before(self, attempt: Attempt, now: Moment) -> frozenset[int]:
        """Read back what an attempt whose answer was lost has completed after all."""
        doubtful = self.endings.doubtful(attempt, now)
        return frozenset(message_id for message_id in doubtful if self._store.reads.message(message_id) is None)

    def _attempt(self, attempt: Attempt, lanes: list[Lane], limit: int) -> Turn:
        def turn() -> Turn:
            return self._store.messages.turn(self.holder, attempt.settlement, lanes, limit, self._settings.lease_ms)

        if attempt.is_plain:
            return turn()
        faults.reach("settle.begun")
        with self._store.transaction("settle"):
            put_off = [ending.held[0] for ending in attempt.put_off if self._put_off(ending)]
            done = turn()
            done = replace(done, settled=done.settled.union(put_off))
            faults.reach("settle.turned")
            if left := attempt.outbox(done):
                outbox.deliver(self._store, left)
                self.look_again()
            for held in attempt.told(done):
                self._store.messages.tell(held)
        return done

    def _put_off(self, ending: Ending) -> bool:
        if ending.limit is not None:
            return self._store.limits.regate(ending.held, ending.limit)
        return self._store.messages.delay(ending.held, ending.due_ms or 0)

    def _tell(self, attempt: Attempt, turn: Turn) -> None:
        for ending in self.endings.verdict(attempt, turn.settled):
            self.hooks.refused(ending)
        if turn.crashed:
            self.hooks.crashed(turn.crashed)

    def _claim(self, want: Want, *, from_the_start: bool) -> list[Claimed]:
        asked_at = self._clock.now()
        lanes = self._lanes_of(want, from_the_start)

        def claim(limit: int) -> Turn:
            return self._store.messages.turn(self.holder, Settlement(), lanes, limit, self._settings.lease_ms)

        claimed = self._gate.turn(lanes, want.limit, (), claim).claimed
        self._hold(claimed, asked_at)
        return claimed

    def _lanes_of(self, want: Want, from_the_start: bool) -> list[Lane]:
        return self._lanes.of(want.queue_ids, from_the_start=from_the_start) if want.limit > 0 else []

    def _hold(self, claimed: list[Claimed], asked_at: Moment) -> None:
        self._lanes.passed(claimed)
        until = trusted_until(asked_at, self._settings)
        self._keeper.hold([Lease(message.id, message.fence, until) for message in claimed])

    def _hand_over(self, consumer: Consumer, claimed: list[Claimed]) -> int:
        if claimed:
            consumer.deliver(claimed)
        return len(claimed)
