"""Waiting for observed state, with a deadline; no test decides anything by sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class DeadlinePassed(AssertionError):
    """What a test waited for did not come about in time."""


def wait_until(
    predicate: Callable[[], T],
    deadline_s: float = 60.0,
    describe: Callable[[], object] | str = "",
    *,
    every_s: float = 0.02,
) -> T:
    """Return the first true answer of *predicate*, asked again and again.

    Args:
        describe: What was awaited, or a function that dumps the state to show when it is not met.

    Raises:
        DeadlinePassed: *deadline_s* passed first; carries what *describe* had to say.
    """
    give_up_at = time.monotonic() + deadline_s
    while True:
        answer = predicate()
        if answer:
            return answer
        if time.monotonic() >= give_up_at:
            raise DeadlinePassed(_report(answer, deadline_s, describe))
        time.sleep(every_s)


def _report(answer: object, deadline_s: float, describe: Callable[[], object] | str) -> str:
    if callable(describe):
        try:
            state: object = describe()
        except Exception as error:  # the dump must not hide what timed out
            state = f"(state not available: {error!r})"
    else:
        state = describe
    return f"still {answer!r} after {deadline_s:g} s\n{state}"
