"""What the fleet has done, counted by the minute: small, and older minutes are kept together."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from atomic_celery.store.database import Noun

Kind = Literal["succeeded", "failed", "retried", "crashed", "waited"]
"""How an attempt ended, and how long it ran; or that one began for which its message had *waited*.

Those that were given back or taken away did not end, and have not waited a second time.
"""
KINDS: tuple[Kind, ...] = get_args(Kind)

MINUTE_S, QUARTER_S, DOUBLE_HOUR_S = 60, 900, 7200
SHARDS = 8
"""Rows of one minute, so that hosts that report at once seldom wait for each other."""
_HIGHEST_BAND = 40
_FOLDS = ((MINUTE_S, QUARTER_S, 4500), (QUARTER_S, DOUBLE_HOUR_S, 26 * 3600))
_KEPT_S = 7 * 24 * 3600 + DOUBLE_HOUR_S


@dataclass(frozen=True, slots=True)
class Sample:
    """Attempts of one host that ended in the same way after about the same time, or began so."""

    kind: Kind
    band: int
    """See `band_of`."""
    count: int
    total_ms: int
    """How long they ran, or had waited, together."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The same of all hosts, in a span of time that begins then."""

    begun_ms: int
    kind: str
    """One of `KINDS`, or one that a later release has added."""
    band: int
    count: int
    total_ms: int


def band_of(duration_ms: float) -> int:
    """Return *n* for a duration of at least 2ⁿ⁻¹ ms and less than 2ⁿ ms; 0 below 1 ms."""
    return min(_HIGHEST_BAND, max(0, int(duration_ms)).bit_length())


class Traffic(Noun):
    """The verbs of the fleet's history. Each attempt is counted in one row; folding moves it to a coarser one."""

    noun = "traffic"

    def add(self, host_id: str, samples: Sequence[Sample]) -> None:
        """Count what a host has ended since it last said so, in this minute.

        Atomicity: one statement; joins the caller's transaction.
        """
        self._exec(
            "add",
            shard=zlib.crc32(host_id.encode()) % SHARDS,
            samples=[dataclasses.asdict(sample) for sample in samples],
        )

    def fold(self) -> None:
        """Put old minutes together, and drop what is older than a week.

        Atomicity: one statement a step; two at once leave each other's rows alone.
        """
        row = self._one("clock")
        assert row is not None
        for grain_s, into_s, kept_s in _FOLDS:
            before_ms = (row[0] - kept_s * 1000) // (into_s * 1000) * (into_s * 1000)
            self._exec("fold", grain_s=grain_s, into_s=into_s, before_ms=before_ms)
        self._exec("drop", before_ms=row[0] - _KEPT_S * 1000)

    def read(self, since_ms: int, width_s: int) -> list[Bucket]:
        """Return what was counted since then, in spans of *width_s*, the oldest first; empty ones are not there."""
        return self.read_each([(since_ms, width_s)])[0]

    def read_each(self, wanted: Sequence[tuple[int, int]]) -> list[list[Bucket]]:
        """Return the same for each time and width.

        Atomicity: one statement.
        """
        asked = [{"since_ms": since_ms, "width_ms": width_s * 1000} for since_ms, width_s in wanted]
        found: list[list[Bucket]] = [[] for _ in wanted]
        for turn, *facts in self._many("read", wanted=asked):
            found[turn - 1].append(Bucket(*facts))
        return found
