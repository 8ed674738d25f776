"""Ten thousand parts, some of which retry, replace themselves or fail: one body, or one failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import Signature, chord
from celery.exceptions import ChordError

from tests.results.test_canvas import _require_nothing_left
from tests.support.workers import Fleet

SIZE, WAIT_S = 10_000, 240
ODD_ONES: dict[int, tuple[tuple[Any, ...], Any]] = {
    10: (("retry", 2), 2),
    20: (("replaced", "task", 5), 5),
    30: (("replaced", "chain", 6), 6),
    40: (("replaced", "chord", 7), 14),
}
"""What every thousandth part does instead of saying its number, and what it comes to."""

Sign = Callable[..., Signature[Any]]


def _header(s: Sign, *, failing: tuple[int, ...] = ()) -> list[Signature[Any]]:
    odd = {number: s(*what[0]) for number, what in _odd_ones()}
    return [s("fail") if number in failing else odd.get(number) or s("echo", number) for number in range(SIZE)]


def _odd_ones() -> list[tuple[int, tuple[tuple[Any, ...], Any]]]:
    return [(start + at, what) for start in range(0, SIZE, 1000) for at, what in ODD_ONES.items()]


def _bodies(fleet: Fleet) -> int:
    return sum(row.startswith("body ") for row in fleet.ledger.rows())


def test_one_body_gets_what_all_parts_came_to(serving: Fleet, s: Sign) -> None:
    before = _bodies(serving)
    expected = list(range(SIZE))
    for number, (_, result) in _odd_ones():
        expected[number] = result

    assert chord(_header(s), s("whole")).delay().get(timeout=WAIT_S) == expected

    assert _bodies(serving) == before + 1
    _require_nothing_left(serving)


def test_parts_that_fail_let_the_chord_fail_once(serving: Fleet, s: Sign) -> None:
    before = _bodies(serving)
    body = s("whole").on_error(s("note_failure"))

    result = chord(_header(s, failing=(1, 5_000, SIZE - 1)), body).delay()

    assert type(result.get(timeout=WAIT_S, propagate=False)) is ChordError
    _require_nothing_left(serving)
    assert serving.ledger.counts()[f"failed {result.id} ChordError"] == 1
    assert _bodies(serving) == before
