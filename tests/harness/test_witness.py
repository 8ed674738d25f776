"""The witnesses that tests rely on do see what they are there to see."""

from __future__ import annotations

from contextlib import closing

import pytest

from atomic_celery.store.records import Holder, NewMessage
from tests.faults.witness import Sight, _problems
from tests.fleet.race import LEASE_MS, Race

Life = list[tuple[str, int | None]]


@pytest.mark.parametrize(
    ("life", "says"),
    [
        ([("granted", 1), ("granted", 2)], "granted under fence 2 while 1 was held"),
        ([("granted", 1), ("let go", 1), ("granted", 1)], "fence 1 follows 1"),
        ([("granted", 1), ("let go", 1), ("granted", 3)], "fence 3 follows 1"),
        ([("granted", 1), ("let go", 1), ("ended", None), ("granted", 2)], "granted under fence 2 after its end"),
        ([("granted", 1), ("let go", 1), ("ended", None), ("ended", None)], "ended twice"),
        ([("granted", 1), ("let go", 2)], "fence 2 was let go while 1 was held"),
    ],
)
def test_a_witness_says_what_was_wrong(life: Life, says: str) -> None:
    sights = [Sight(what, 1, "t", fence, "h", 0, 0) for what, fence in life]
    assert says in "\n".join(_problems(1, sights))


def test_a_witness_finds_nothing_wrong_with_a_takeover() -> None:
    life: Life = [("granted", 1), ("let go", 1), ("granted", 2), ("let go", 2), ("ended", None)]
    assert list(_problems(1, [Sight(what, 1, "t", fence, "h", 0, 0) for what, fence in life])) == []


def test_the_witness_of_the_race_sees_a_removed_host_claim(postgres_url: str) -> None:
    with closing(Race(postgres_url, 1)) as race:
        race._sql("INSERT INTO removed VALUES ('h-vm-1')")
        race.store.messages.publish([NewMessage(race.lanes[0].queue_id, "work")])
        race.store.messages.claim(Holder("h-vm-1", "b"), race.lanes, 1, LEASE_MS)
        assert race.violations() == ["claimed by a removed host: h-vm-1"]
