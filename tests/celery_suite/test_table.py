"""The page that says what does not pass is well made: it is what the suite is checked against."""

from __future__ import annotations

from tests.celery_suite.lanes import LANES
from tests.celery_suite.table import ENDINGS, PAGE, rows


def test_every_row_has_a_known_ending_for_each_lane_and_a_reason() -> None:
    assert rows()
    for row in rows():
        assert set(row.endings.values()) <= set(ENDINGS), row
        assert any(ending.startswith("fails") for ending in row.endings.values()), row
        assert row.reason, row


def test_the_columns_are_headed_by_the_lanes() -> None:
    header = " | ".join(["| Test", *(lane.name for lane in LANES), "Why |"])
    assert header in PAGE.read_text(encoding="utf-8").splitlines()


def test_no_test_has_two_rows() -> None:
    tests = [row.test for row in rows()]
    assert sorted(set(tests)) == sorted(tests)
