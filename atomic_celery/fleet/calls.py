"""Calls to a provisioner: each on a thread of its own, so that the controller keeps its term meanwhile.

A call is given up when the term is over, or may be, or the controller ends. The provisioner hears of it by its permit;
one that does not listen keeps its thread, and no other call is made, nor a term begun, until that has ended.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from atomic_celery import errors
from atomic_celery.fleet.provisioner import Permit
from atomic_celery.term import Term

logger = logging.getLogger(__name__)

GIVEN_UP_ENDS_WITHIN_S = 15.0
"""How long a provisioner may take to stop what it does, before it is left behind."""

T = TypeVar("T")


class Calls:
    """Makes one call at a time under *term*. For the controller's thread, but for `give_up`."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._ending = False
        self._call: _Call[object] | None = None
        self._awake = threading.Event()

    @property
    def stuck(self) -> bool:
        """Whether a call that was given up has not ended yet."""
        return self._call is not None and self._call.runs

    def give_up(self) -> None:
        """Give up the call that is made at the moment, and make no other. Safe from any thread."""
        self._ending = True
        self._awake.set()

    def free_permit(self) -> Permit:
        """Return a permit for what changes nothing, which needs no term."""
        return Permit(lambda: not self._ending, threading.Event())

    def make(self, doing: str, function: Callable[[Permit], T]) -> T:
        """Call *function* and return its answer.

        Raises:
            CallGivenUp: The term is over, or may be, or the controller ends. What was begun may be done or not.
            ProvisionerError: What the provisioner raised; whatever else it raises becomes one.
        """
        if self.stuck or self._ending or not self._term.held:
            raise errors.CallGivenUp(doing)
        self._awake.clear()
        call = _Call(doing, function, lambda: self._term.held, self._awake)
        call.thread.start()
        self._call = call  # type: ignore[assignment]  # nobody reads its answer from there
        while call.runs:
            self._awake.wait(max(0.05, self._term.seconds_until_next()))
            self._awake.clear()
            if self._ending or not self._keep():
                call.given_up.set()
                call.over.wait(GIVEN_UP_ENDS_WITHIN_S)
                break
        return call.answer()

    def _keep(self) -> bool:
        try:
            return self._term.keep()
        except errors.StoreError as error:
            logger.warning("the term could not be renewed: %s", error)
            return self._term.held


class _Call(Generic[T]):
    """One call, its thread, and what became of it."""

    def __init__(
        self, doing: str, function: Callable[[Permit], T], leads: Callable[[], bool], awake: threading.Event
    ) -> None:
        self._doing, self._function, self._awake = doing, function, awake
        self.given_up, self.over = threading.Event(), threading.Event()
        self._permit = Permit(leads, self.given_up)
        self._answers: list[T] = []
        self._error: Exception | None = None
        self.thread = threading.Thread(target=self._run, name="atomic-provisioner", daemon=True)

    @property
    def runs(self) -> bool:
        """Whether the provisioner has not come back yet; the thread may take another moment to end."""
        return not self.over.is_set()

    def _run(self) -> None:
        try:
            self._permit.require(self._doing)
            self._answers.append(self._function(self._permit))
        except errors.AtomicError as error:
            self._error = error
        except Exception as error:
            logger.exception("the provisioner failed while %s", self._doing)
            self._error = errors.ProvisionerError("exit", f"{type(error).__name__} while {self._doing}: {error}")
        finally:
            self.over.set()
            self._awake.set()

    def answer(self) -> T:
        """Return what it answered, or raise what it raised."""
        if isinstance(self._error, errors.CallGivenUp) and self._error.doing != self._doing:
            raise errors.CallGivenUp(f"{self._doing} (before {self._error.doing})") from self._error
        if self._error is not None:
            raise self._error
        if not self.over.is_set() or not self._answers:
            raise errors.CallGivenUp(self._doing)
        return self._answers[0]
