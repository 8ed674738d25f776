"""What a fleet controller may decide: to drain, to remove, to add; and what else it has to say of a tick."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from atomic_celery.fleet.memory import Memory

Cause = Literal["drained", "boot-failed", "failed", "stopped", "left"]


@dataclass(frozen=True, slots=True)
class Drain:
    """Let an instance take no more."""

    instance: str
    host_ids: tuple[str, ...]
    """Hosts on it that do not know its name."""
    why: str
    when: Literal["idle", "silent", "always"] = "idle"
    """Only while no host on it holds a message; *silent*: and none has reported lately; *always*: it is drained, and a
    host on it does not know."""


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove an instance; unless it was drained, drain it first."""

    instance: str
    host_ids: tuple[str, ...]
    cause: Cause
    why: str


@dataclass(frozen=True, slots=True)
class Add:
    """Start *add* instances more, so that there are *target*."""

    target: int
    add: int
    why: str
    replaces: int = 0
    """How many of these are in place of instances that failed."""
    spare: int = 0
    """How many more could be added before there are too many."""

    def kept(self, count: int) -> Add:
        """Return what may be added when so many instances are still there that were to be removed before it."""
        fewer = min(self.add, max(0, count - self.spare))
        add = self.add - fewer
        return replace(self, target=self.target + count - fewer, add=add, replaces=min(self.replaces, add))


Action = Drain | Remove | Add


@dataclass(frozen=True, slots=True)
class Held:
    """Hosts that are wanted, and not added for now."""

    by: Literal["boot failures", "most hosts"]
    why: str


@dataclass(frozen=True, slots=True)
class News:
    """Something that a host did by itself."""

    what: Literal["host-registered", "host-left", "host-stale"]
    host: str
    instance: str | None
    """Where it is, if it is known."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now."""

    actions: tuple[Action, ...]
    memory: Memory
    """What to remember if it is done."""
    held: Held | None = None
    """Why hosts that are wanted are not added."""
    notes: tuple[str, ...] = ()
    """What is left as it is, and why."""
    listed: tuple[str, ...] = ()
    """Drained instances that are listed."""
    missing: tuple[str, ...] = ()
    """Those that were once and are not now."""
    news: tuple[News, ...] = ()
    """What has become of hosts since the last tick."""

    def reasons(self) -> list[str]:
        """Say it in words, a line for each thing."""
        lines = [action.why for action in self.actions]
        if self.held is not None:
            lines.append(self.held.why)
        return [*lines, *self.notes] or ["nothing to do"]
