"""Scale-in never wins against a claim: an aggressive controller and up to twenty hosts fight over a bursty queue."""

from __future__ import annotations

import random

import pytest

from tests.fleet.race import HOSTS, Race, run


def check(race: Race) -> None:
    assert race.violations() == []
    assert len(race.completed) == len(set(race.completed)) == race.published
    assert race.most <= HOSTS
    assert race.removals > 0, "nothing was removed: the race proves nothing"


def test_no_lease_ever_belongs_to_a_removed_host(postgres_url: str) -> None:
    check(run(postgres_url, for_s=8, seed=1))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_nor_in_five_minutes(postgres_url: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    race = run(postgres_url, for_s=300, seed=seed)
    print(f"{race.published} messages, {race.removals} removals, at most {race.most} hosts")
    check(race)
