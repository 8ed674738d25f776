"""What the fleet controller knows from tick to tick. It is in the database: a new controller goes on with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from atomic_celery.backoff import Backoff

WATCH_GAP_MS = 150_000
"""After a longer time without a tick the controller has not seen what happened, and begins to watch anew."""


_RETRY_FIRST_S, _RETRY_CEILING_S = 10.0, 600.0


class Known(NamedTuple):
    """What is known of an instance."""

    first_ms: int
    """When it was first listed."""
    host_ms: int | None = None
    """When a host that reported lately was last seen on it; None: never."""
    missed: int = 0
    """From how many listings in a row it was missing."""


class HostKnown(NamedTuple):
    """What is known of a host, as of the last tick."""

    instance: str | None
    """Where it is."""
    fresh: bool
    """Whether it had reported lately."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Instances that were asked for and are not listed yet."""

    at_ms: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """All of it; times are the database's."""

    ticked_ms: int = 0
    watched_since_ms: int = 0
    """Since when no tick was missing."""
    pressed_since_ms: int | None = None
    """Since when more messages than are allowed have been waiting, without a break."""
    asked: tuple[Asked, ...] = ()
    boot_failures: int = 0
    """How many instances in a row failed before a host registered on one."""
    boot_retry_ms: int = 0
    """Until when no instance is added after these."""
    replacing: int = 0
    """How many instances are to be added in place of failed ones."""
    provider_failures: int = 0
    provider_retry_ms: int = 0
    """Until when the provider is left alone."""
    removal_failures: int = 0
    """How many removals in a row it failed at, while it listed and added instances."""
    removal_retry_ms: int = 0
    """Until when nothing is removed after these."""
    instances: Mapping[str, Known] = field(default_factory=dict)
    hosts: Mapping[str, HostKnown] = field(default_factory=dict)

    @property
    def in_flight(self) -> int:
        """How many instances were asked for and are not listed yet."""
        return sum(asked.count for asked in self.asked)

    def watch(self, now_ms: int) -> Memory:
        """Note that a tick begins."""
        if now_ms - self.ticked_ms > WATCH_GAP_MS or now_ms < self.ticked_ms:
            return replace(self, ticked_ms=now_ms, watched_since_ms=now_ms, pressed_since_ms=None)
        return replace(self, ticked_ms=now_ms)

    @property
    def removals_wait(self) -> bool:
        """Whether the provider failed at a removal, in the last tick or not long before it."""
        return self.removal_retry_ms > self.ticked_ms

    def provider_failed(self, now_ms: int) -> Memory:
        """Note that it did, and is to be left alone."""
        failures = self.provider_failures + 1
        return replace(self, provider_failures=failures, provider_retry_ms=now_ms + _retry_after_ms(failures))

    def removal_failed(self, now_ms: int) -> Memory:
        """Note that one did, and that nothing else is to be removed for a while."""
        failures = self.removal_failures + 1
        return replace(self, removal_failures=failures, removal_retry_ms=now_ms + _retry_after_ms(failures))

    def well(self) -> Memory:
        """Note that a tick went well; of removals it says nothing as long as they wait."""
        listed = replace(self, provider_failures=0, provider_retry_ms=0)
        return listed if self.removals_wait else replace(listed, removal_failures=0, removal_retry_ms=0)

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        known = {name: list(known) for name, known in self.instances.items()}
        hosts = {name: list(known) for name, known in self.hosts.items()}
        asked = [[asked.at_ms, asked.count] for asked in self.asked]
        plain = {part.name: getattr(self, part.name) for part in fields(self)}
        return {**plain, "asked": asked, "instances": known, "hosts": hosts}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Memory:
        """Read what `document` wrote; what another release has added is left out."""
        plain = {part.name: document[part.name] for part in fields(cls) if part.name in document}
        plain["asked"] = tuple(Asked(*asked) for asked in document.get("asked", ()))
        plain["instances"] = {name: Known(*known) for name, known in document.get("instances", {}).items()}
        plain["hosts"] = {name: HostKnown(*known) for name, known in document.get("hosts", {}).items()}
        return cls(**plain)


def _retry_after_ms(failures: int) -> int:
    """Return how long a provider is left alone after so many failures in a row."""
    backoff = Backoff(_RETRY_FIRST_S, _RETRY_CEILING_S)
    backoff.failures = failures - 1
    return round(backoff.failed() * 1000)
