from __future__ import annotations

import pytest

from atomic_celery import tables
from atomic_celery.tables import Cell


@pytest.mark.parametrize(
    ("duration_ms", "said"),
    [
        (None, "-"),
        (0, "0ms"),
        (850, "850ms"),
        (12_000, "12s"),
        (192_000, "3m12s"),
        (180_000, "3m"),
        (90_000_000, "1d1h"),
        (-5_000, "-5s"),
        (-3, "-0s"),
    ],
)
def test_a_duration_is_said_in_its_two_largest_units(duration_ms: int | None, said: str) -> None:
    assert tables.span(duration_ms) == said


def test_a_lower_bound_says_that_it_is_one() -> None:
    assert (tables.count(7), tables.count(7, exact=False)) == ("7", "7+")


def test_columns_are_aligned_and_numbers_stand_right() -> None:
    lines = tables.table(("NAME", "N"), [("a", tables.number(5)), ("long name", tables.number(1234))])

    assert lines == ["NAME          N", "a             5", "long name  1234"]


def test_no_rows_are_no_lines() -> None:
    assert tables.table(("NAME",), []) == []


def test_wide_characters_and_colours_do_not_shift_the_next_column() -> None:
    lines = tables.table(("A", "B"), [(Cell("任务", "bad"), "x"), ("abcdef", "y")], lambda text, tone: f"<{text}>")

    assert lines[1:] == ["<任务>    x", "abcdef  y"]


def test_a_name_cannot_steer_the_terminal() -> None:
    [_, line] = tables.table(("TASK",), [("evil\x1b[2J\r\nname\u202e",)])

    assert line == "evil\\x1b[2J\\r\\nname\\u202e"
