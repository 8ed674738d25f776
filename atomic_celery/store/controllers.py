"""What a fleet controller knows from tick to tick, whoever leads; and how the fleet's size went.

All that is written here is written by whoever leads: in a transaction that holds the term (`Term.hold`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atomic_celery.store.database import Noun

SAMPLES_KEPT_MS = 7 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Remembered:
    """What the last tick left."""

    memory: Mapping[str, Any]
    ticked_ms: int
    plan: Mapping[str, Any]
    """What was decided, and why, for people."""


@dataclass(frozen=True, slots=True)
class Size:
    """The most hosts that there were, and were to be, in a span of time that begins then."""

    begun_ms: int
    desired_hosts: int
    hosts: int
    instances: int | None
    """None: the provider listed none in all that time."""


class Controllers(Noun):
    """The memory of fleet controllers."""

    noun = "controllers"

    def load(self, name: str) -> Remembered | None:
        """Return what the last tick left; None: there was none."""
        row = self._one("load", name=name)
        return None if row is None else Remembered(json.loads(row[0]), row[1], json.loads(row[2]))

    def keep(self, name: str, memory: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
        """Remember a tick, now.

        Atomicity: joins the caller's transaction, which must hold the term.
        """
        self._exec("keep", name=name, memory=json.dumps(memory), plan=json.dumps(plan))

    def remember(self, name: str, memory: Mapping[str, Any]) -> None:
        """Change what is remembered, in the middle of a tick.

        Atomicity: joins the caller's transaction, which must hold the term.
        """
        self._exec("remember", name=name, memory=json.dumps(memory))

    def sample(self, desired_hosts: int, hosts: int, instances: int | None) -> None:
        """Note how many hosts there are and are to be; of each minute (by the database's clock) the most are kept.

        Atomicity: joins the caller's transaction, which must hold the term.

        Args:
            desired_hosts: How many there are to be.
            hosts: How many report.
            instances: How many the provider lists; None: it does not answer.
        """
        self._exec("sample", kept_ms=SAMPLES_KEPT_MS, desired_hosts=desired_hosts, hosts=hosts, instances=instances)

    def sizes(self, since_ms: int, width_s: int) -> list[Size]:
        """Return how large the fleet was since then, in spans of *width_s*; unknown ones are missing.

        A span has the most of each number: two of them need not have been at the same time.
        """
        return [Size(*row) for row in self._many("sizes", since_ms=since_ms, width_ms=width_s * 1000)]
