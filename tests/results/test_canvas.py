"""Celery's canvas, run by a real worker: everything ends as Celery documents, and everything once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Signature, canvas, chain, chord, group
from celery.exceptions import ChordError
from celery.result import GroupResult

from tests.results.broken import Broken
from tests.support.workers import Fleet

Sign = Callable[..., Signature[Any]]

WAIT_S = 60


def test_a_result(serving: Fleet, s: Sign) -> None:
    assert s("add", 1, 2).delay().get(timeout=WAIT_S) == 3


def test_an_error_comes_back(s: Sign) -> None:
    result = s("fail").delay()
    with pytest.raises(ValueError, match="on purpose"):
        result.get(timeout=WAIT_S)
    assert result.failed()
    assert "ValueError" in result.traceback


def test_an_error_of_the_projects_own_comes_back_as_itself(s: Sign) -> None:
    error = s("break_down").delay().get(timeout=WAIT_S, propagate=False)
    assert (type(error), error.args) == (Broken, ("it", 7))


def test_what_json_does_not_know_is_a_failure(s: Sign) -> None:
    error = s("unserializable").delay().get(timeout=WAIT_S, propagate=False)
    assert "not JSON serializable" in str(error)


def test_retries(s: Sign) -> None:
    assert s("retry", 3).delay().get(timeout=WAIT_S) == 3


def test_a_chain(s: Sign) -> None:
    result = chain(s("add", 1, 2), s("add", 3), s("add", 4)).delay()
    assert result.get(timeout=WAIT_S) == 10
    assert result.parent.get(timeout=WAIT_S) == 6
    assert result.parent.parent.children[0].id == result.parent.id


def test_a_chain_whose_first_task_fails(s: Sign) -> None:
    result = chain(s("fail"), s("add", 3), s("add", 4)).delay()
    with pytest.raises(ValueError, match="on purpose"):
        result.get(timeout=WAIT_S)
    assert result.state == "FAILURE"


def test_callbacks(serving: Fleet, s: Sign) -> None:
    before = serving.ledger.counts()["linked"]
    s("add", 1, 2).set(link=[s("noted", "linked"), s("noted", "linked")]).delay().get(timeout=WAIT_S)
    serving.wait_until(lambda: serving.ledger.counts()["linked"] == before + 2)


def test_error_callbacks_of_both_kinds(serving: Fleet, s: Sign) -> None:
    old_style = s("noted", "old style errback")
    result = s("fail").set(link_error=[old_style, s("note_failure")]).delay()
    result.get(timeout=WAIT_S, propagate=False)
    serving.wait_until(lambda: serving.ledger.counts()["old style errback"] == 1)
    assert serving.ledger.counts()[f"failed {result.id} ValueError"] == 1


def test_a_group(s: Sign) -> None:
    result = group(s("add", number, 1) for number in range(30)).delay()
    assert result.get(timeout=WAIT_S) == list(range(1, 31))
    assert result.successful()


def test_an_empty_group(serving: Fleet) -> None:
    assert group([], app=serving.app).delay().get(timeout=WAIT_S) == []


def test_a_group_can_be_saved_restored_and_deleted(serving: Fleet, s: Sign) -> None:
    result = group(s("add", number, 1) for number in range(3)).delay()
    result.save()
    restored = GroupResult.restore(result.id, app=serving.app)
    assert restored.get(timeout=WAIT_S) == [1, 2, 3]
    restored.delete()
    serving.app.backend._cache.clear()
    assert GroupResult.restore(result.id, app=serving.app) is None


def test_results_of_a_group_come_as_they_are_ready(s: Sign) -> None:
    result = group(s("echo", number) for number in range(5)).delay()
    assert sorted(meta["result"] for _, meta in result.iter_native(timeout=WAIT_S)) == list(range(5))


@pytest.mark.parametrize("size", [1, 2, 50])
def test_a_chord(serving: Fleet, s: Sign, size: int) -> None:
    result = chord([s("add", number, number) for number in range(size)], s("total")).delay()
    assert result.get(timeout=WAIT_S) == sum(2 * number for number in range(size))
    assert result.parent.get(timeout=WAIT_S) == [2 * number for number in range(size)]
    _require_nothing_left(serving)


def test_a_chord_keeps_the_order_of_its_header(s: Sign) -> None:
    header = [s("retry", number % 3, countdown=0) for number in range(6)]
    assert chord(header, s("whole")).delay().get(timeout=WAIT_S) == [0, 1, 2, 0, 1, 2]


def test_a_chord_with_an_empty_header(s: Sign) -> None:
    assert chord([], s("total")).delay().get(timeout=WAIT_S) == 0


def test_a_chord_whose_header_is_a_generator(s: Sign) -> None:
    assert chord((s("add", number, 0) for number in range(20)), s("total")).delay().get(timeout=WAIT_S) == 190


def test_parts_run_while_a_generator_makes_others(serving: Fleet, s: Sign) -> None:
    def header() -> Iterator[Any]:
        yield s("noted", 0, "early part")
        yield s("echo", 1)
        yield s("echo", 2)
        serving.wait_until(lambda: serving.ledger.counts()["early part"] > 0)
        yield s("echo", 3)

    assert chord(header(), s("whole")).delay().get(timeout=WAIT_S) == [0, 1, 2, 3]


def test_a_chord_one_of_whose_parts_fails(serving: Fleet, s: Sign) -> None:
    body = s("total").on_error(s("note_failure"))
    result = chord([s("add", 1, 1), s("fail"), s("add", 2, 2)], body).delay()
    error = result.get(timeout=WAIT_S, propagate=False)
    assert type(error) is ChordError
    assert str(error).endswith("raised ValueError('on purpose')")
    serving.wait_until(lambda: serving.ledger.counts()[f"failed {result.id} ChordError"] == 1)
    _require_nothing_left(serving)


def test_a_chord_whose_body_is_unknown(serving: Fleet, s: Sign) -> None:
    body = serving.app.signature("nobody.knows.this")
    result = chord([s("add", 1, 1)], body).delay()
    assert "nobody.knows.this" in repr(result.get(timeout=WAIT_S, propagate=False))


def test_a_chord_of_chains(s: Sign) -> None:
    header = [chain(s("add", number, 1), s("add", 10)) for number in range(3)]
    assert chord(header, s("whole")).delay().get(timeout=WAIT_S) == [11, 12, 13]


def test_a_chord_of_chains_one_of_which_fails_at_its_beginning(s: Sign) -> None:
    header = [chain(s("fail"), s("add", 10)), s("add", 1, 1)]
    assert type(chord(header, s("whole")).delay().get(timeout=WAIT_S, propagate=False)) is ChordError


def test_chords_in_a_chord(s: Sign) -> None:
    inner = [chord([s("add", number, 1), s("add", number, 2)], s("total")) for number in range(3)]
    assert chord(inner, s("total")).delay().get(timeout=WAIT_S) == 15


def test_groups_in_a_chord_are_part_of_its_header(s: Sign) -> None:
    header = [group(s("echo", 1), s("echo", 2)), s("echo", 3), group(s("echo", 4))]
    assert sorted(chord(header, s("whole")).delay().get(timeout=WAIT_S)) == [1, 2, 3, 4]


def test_groups_at_the_end_of_a_chords_chains_keep_their_shape(s: Sign) -> None:
    header = [chain(s("echo", 1), group(s("add", 10), s("add", 20))), s("echo", 2)]
    assert chord(header, s("whole")).delay().get(timeout=WAIT_S) == [[11, 21], 2]


def test_chords_one_after_the_other(s: Sign) -> None:
    steps = chain(
        group(s("add", 1, 1), s("add", 2, 2)), s("total"), group(s("add", 1), s("add", 2)), s("total"), s("add", 100)
    )
    assert steps.delay().get(timeout=WAIT_S) == 115


def test_a_chord_that_grows(s: Sign) -> None:
    result = chord([s("grow", 2), s("echo", "own")], s("whole")).delay()
    assert sorted(result.get(timeout=WAIT_S)) == ["added 0", "added 1", "grew", "own"]


def test_chunks(serving: Fleet, s: Sign) -> None:
    numbers = [(number, number) for number in range(10)]
    chunked = canvas.chunks(s("add"), iter(numbers), 5, app=serving.app)
    assert chunked.delay().get(timeout=WAIT_S) == [[0, 2, 4, 6, 8], [10, 12, 14, 16, 18]]


def test_maps(serving: Fleet, s: Sign) -> None:
    assert canvas.xmap(s("echo"), [1, 2], app=serving.app).delay().get(timeout=WAIT_S) == [1, 2]
    assert canvas.xstarmap(s("add"), [(1, 2)], app=serving.app).delay().get(timeout=WAIT_S) == [3]


@pytest.mark.parametrize(
    ("kind", "value", "expected", "rows"),
    [
        ("task", 5, 5, ["replacement"]),
        ("chain", 5, 5, ["replacement 1", "replacement 2"]),
        ("group", 5, [5, 5, 5], ["replacement 0", "replacement 1", "replacement 2"]),
        ("chord", 5, 10, ["replacement 0", "replacement 1"]),
    ],
)
def test_a_task_that_replaces_itself(
    serving: Fleet, s: Sign, kind: str, value: Any, expected: Any, rows: list[str]
) -> None:
    before = serving.ledger.counts()
    assert s("replaced", kind, value).delay().get(timeout=WAIT_S) == expected
    new = serving.ledger.counts() - before
    assert new == dict.fromkeys(rows, 1)


def test_a_part_of_a_chord_that_replaces_itself(s: Sign) -> None:
    header = [s("replaced", kind, 1) for kind in ("task", "chain", "group", "chord")]
    assert chord(header, s("whole")).delay().get(timeout=WAIT_S) == [1, 1, [1, 1, 1], 2]


def test_a_link_of_a_chain_that_replaces_itself(s: Sign) -> None:
    steps = chain(s("replaced", "chord", 3), s("add", 10))
    assert steps.delay().get(timeout=WAIT_S) == 16


def test_a_task_that_waits_for_tasks(s: Sign) -> None:
    assert s("waiting", 5).delay().get(timeout=WAIT_S) == 15


def test_children_are_known(s: Sign) -> None:
    result = s("parent", 3).delay()
    assert result.get(timeout=WAIT_S) == 3
    assert sorted(child.get(timeout=WAIT_S) for child in result.children) == [0, 2, 4]
    assert len(result.graph) == 4


def test_a_task_whose_result_is_ignored_leaves_none(serving: Fleet, s: Sign) -> None:
    result = s("noted", 1, "ignored").apply_async(ignore_result=True)
    serving.wait_until(lambda: serving.ledger.counts()["ignored"] == 1 and not serving.unfinished())
    assert serving.store.results.get([result.id]) == {}


def test_a_part_whose_result_is_ignored_counts_all_the_same(s: Sign) -> None:
    header = [s("add", number, 1).set(ignore_result=True) for number in range(3)]
    assert chord(header, s("total")).delay().get(timeout=WAIT_S) == 6


def _require_nothing_left(fleet: Fleet) -> None:
    """Wait until the chords and their messages are gone."""
    database = fleet.store._database
    count = database.statements.script(
        "count", "SELECT (SELECT count(*) FROM atomic_chord) + (SELECT count(*) FROM atomic_chord_part)"
    )
    fleet.wait_until(lambda: database.run(count).rows[0][0] == 0 and not fleet.unfinished(), what="chords left")
