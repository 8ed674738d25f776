"""A leader's lease: of all who would lead under one name, one does, and knows until when.

Like a message's lease a term is trusted until the moment *before* it was asked for, plus its length, less a margin,
by both local clocks. The database has the last word: what is written under a term is written in a transaction that
holds it (`Term.hold`), which the next term's beginning waits for.
"""

from __future__ import annotations

import logging

from atomic_celery import errors
from atomic_celery.clock import NEVER, Clock, Moment, SystemClock
from atomic_celery.store.store import Store

logger = logging.getLogger(__name__)

ASK_EVERY_S = 1.0
"""How often somebody who does not lead asks whether the term is free."""

_ANSWER_WITHIN_S = 3.0
"""How long an answer is waited for at least; a tenth of a term where that is longer."""

_RENEWALS_A_TERM = 4


class Term:
    """The right to lead under *name*, or the wish to.

    Nothing here runs by itself: `keep` is to be called whenever `seconds_until_next` have passed. Whoever is
    too busy for it, or frozen, loses the term. Not safe to share between threads.
    """

    def __init__(self, store: Store, name: str, holder: str, *, clock: Clock | None = None) -> None:
        self._store, self.name, self._holder = store, name, holder
        self._clock = clock or SystemClock()
        self._fence: int | None = None
        self._trusted_until = NEVER
        self._next_at = self._clock.now()
        self._answer_within_s = max(_ANSWER_WITHIN_S, store.settings.term_s / 10)

    @property
    def held(self) -> bool:
        """Whether acting as the leader is still safe without asking the store."""
        return self._fence is not None and not self._trusted_until.reached(self._clock.now())

    def keep(self) -> bool:
        """Renew the term if it is time to, or begin one if there is none; say whether it is held.

        A term that is found to be over is answered with False, even if the next one may be this holder's too: what
        goes on under the old one must end first, for another may have led in between.

        Raises:
            StoreError: No answer. A term that was held is held as long as its time lasts.
        """
        if self._fence is not None and not self.held:
            self._lose("expired")
            return False
        now = self._clock.now()
        if self._next_at.reached(now):
            self._next_at = now.later(ASK_EVERY_S)  # if there is no answer
            with self._store.deadline(self._patience_s(now)):
                self._renew(self._fence) if self._fence is not None else self._begin()
        return self.held

    def require(self, doing: str) -> int:
        """Return the fence, for an action that must be the leader's; to be asked right before each.

        Raises:
            StaleTerm: The term is over, or may be.
        """
        if self._fence is None or not self.held:
            raise errors.StaleTerm(self.name, self._fence or 0, doing=doing)
        return self._fence

    def hold(self, doing: str) -> None:
        """Keep the next term from beginning until the transaction ends that the caller has open.

        Raises:
            StaleTerm: The term is over. Nothing must be written under it any more.
        """
        fence = self.require(doing)
        if not self._store.terms.hold(self.name, fence):
            self._lose("superseded")
            raise errors.StaleTerm(self.name, fence, doing=doing, reason="superseded")

    def hand_over(self) -> None:
        """End the term, so that another may lead at once. Safe to repeat."""
        fence, self._fence = self._fence, None
        if fence is not None:
            with self._store.deadline(self._answer_within_s):
                self._store.terms.hand_over(self.name, fence)

    def seconds_until_next(self) -> float:
        """Return how long until `keep` is to be called again."""
        return max(0.0, self._next_at.seconds_from(self._clock.now()))

    def _begin(self) -> None:
        asked_at = self._clock.now()
        self._next_at = asked_at.later(ASK_EVERY_S)
        standing = self._store.terms.look(self.name)
        if standing is None or standing.free:
            asked_at = self._clock.now()
            self._fence = self._store.terms.begin(self.name, self._holder, self._store.settings.term_ms)
            if self._fence is not None:
                self._trust_from(asked_at)
                logger.info("leads as %s (fence %d)", self.name, self._fence)
        elif standing.holder == self._holder:
            self._fence = standing.fence  # ours, but the answer that said so got lost
            self._renew(self._fence)
        else:
            self._next_at = asked_at.later(min(ASK_EVERY_S, standing.left_ms / 1000))

    def _renew(self, fence: int) -> None:
        asked_at = self._clock.now()
        if self._store.terms.renew(self.name, fence, self._store.settings.term_ms):
            self._trust_from(asked_at)
        else:
            self._lose("superseded")

    def _trust_from(self, asked_at: Moment) -> None:
        settings = self._store.settings
        self._trusted_until = asked_at.later(settings.term_s - settings.lease_margin_s)
        self._next_at = asked_at.later(settings.term_s / _RENEWALS_A_TERM)

    def _lose(self, reason: str) -> None:
        logger.warning("lost the term %s (fence %d, %s)", self.name, self._fence, reason)
        self._fence, self._next_at = None, self._clock.now()

    def _patience_s(self, now: Moment) -> float:
        """Seconds to wait for an answer: short, and not beyond the end of a term that is held."""
        left_s = self._trusted_until.seconds_from(now) if self._fence is not None else self._answer_within_s
        return max(0.1, min(self._answer_within_s, left_s))
