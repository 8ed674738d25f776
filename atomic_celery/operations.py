"""The operator's verbs, one set for the command line, the admin pages and management commands.

Each verb says what it did and what it left alone, and leaves a fleet event that names who asked.
"""

from __future__ import annotations

import dataclasses
import getpass
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from atomic_celery import errors, status

if TYPE_CHECKING:
    from atomic_celery.store.fleet_events import Kind
    from atomic_celery.store.roots import RootTerms
    from atomic_celery.store.store import Store

BATCH = 500
_NAMED_IN_EVENT = 20


@dataclass(frozen=True, slots=True)
class Done:
    """What became of the messages that a verb was asked for."""

    verb: str
    """What was done: requeued, buried, deleted."""
    ids: tuple[int, ...]
    skipped: tuple[int, ...]
    """Messages with nothing to do: finished or deleted meanwhile, or in that state already."""


@dataclass(frozen=True, slots=True)
class DrainDone:
    """What a drain, or its end, reached."""

    instance: str
    """The host id or provider id that the drain is kept under."""
    hosts: tuple[str, ...]
    """Ids of the registered hosts it applies to; may be empty: a drain waits for its instance."""
    changed: bool
    """False: it was so already."""


def asker() -> str:
    """Name whoever runs this process, as ``user@machine``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user often has no entry
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def requeue(store: Store, ids: Iterable[int], *, asked_by: str) -> Done:
    """Make messages ready again, whatever keeps them: dead, delayed, or a holder that loses its lease by this.

    Atomicity: 500 messages at a time, each batch with its event.
    """
    return _each_batch(store, ids, store.messages.requeue, "requeued", "message-requeued", {"asked_by": asked_by})


def bury(store: Store, ids: Iterable[int], *, reason: str, asked_by: str) -> Done:
    """Put messages aside until somebody requeues or deletes them; a holder loses its lease.

    Atomicity: 500 messages at a time, each batch with its event.
    """

    def bury_batch(batch: Sequence[int]) -> set[int]:
        return store.messages.bury(batch, reason)

    return _each_batch(store, ids, bury_batch, "buried", "message-dead", {"asked_by": asked_by, "reason": reason})


def delete(store: Store, ids: Iterable[int], *, asked_by: str) -> Done:
    """Remove messages for good; a holder loses its lease.

    Atomicity: 500 messages at a time, each batch with its event.
    """
    return _each_batch(store, ids, store.messages.delete, "deleted", "message-deleted", {"asked_by": asked_by})


def drain(store: Store, target: str, *, reason: str, asked_by: str) -> DrainDone:
    """Let an instance take no more: from this call's return on, its hosts claim nothing.

    Args:
        target: A host's id, its name, or a provider id. One that no host has is kept as it is, for an instance
            that has yet to register.

    Raises:
        AmbiguousHost: Several hosts have that name.
    """
    with store.transaction():
        drained = store.hosts.drain(host_id(store, target), reason, asked_by)
        if drained.new:
            detail = {"asked_by": asked_by, "reason": reason}
            store.events.record("drain-asked", instance=drained.instance, detail=detail)
    return DrainDone(drained.instance, drained.hosts, drained.new)


def undrain(store: Store, target: str, *, asked_by: str) -> DrainDone:
    """Take a drain back; see `drain` for *target*.

    Raises:
        AmbiguousHost: Several hosts have that name.
    """
    if all(target != drain.instance for drain in store.hosts.drains()):
        target = host_id(store, target)
    hosts = [host for host in store.hosts.list() if target in (host.id, host.provider_id)]
    instance = next((host.provider_id for host in hosts if host.provider_id), target)
    with store.transaction():
        changed = store.hosts.undrain(target)
        if changed:
            store.events.record("drain-forgotten", instance=instance, detail={"asked_by": asked_by})
    return DrainDone(instance, tuple(host.id for host in hosts), changed)


def host_id(store: Store, target: str) -> str:
    """Return the id of the host that has *target* for its name; else *target* as it is.

    Raises:
        AmbiguousHost: Several hosts have that name.
    """
    hosts = store.hosts.list()
    if any(target in (host.id, host.provider_id) for host in hosts):
        return target
    named = [host.id for host in hosts if host.name == target]
    if len(named) > 1:
        seen = status.compose(store.now_ms(), hosts, store.hosts.drains(), (), store=store, version=None).hosts
        raise errors.AmbiguousHost(target, tuple(f"{host.id} ({host.state})" for host in seen if host.id in named))
    return named[0] if named else target


def run_now(store: Store, ids: Iterable[int], *, asked_by: str) -> Done:
    """Let delayed messages be due now; those in any other state are left alone.

    Atomicity: 500 messages at a time, each batch with its event.
    """
    detail = {"asked_by": asked_by, "was": "delayed"}
    return _each_batch(store, ids, store.messages.hasten, "made ready", "message-requeued", detail)


def forget_host(store: Store, host_id: str, *, asked_by: str) -> bool:
    """Take a stale host that holds nothing off the list; False: it reports, holds something, or is gone.

    Atomicity: one transaction with its event.
    """
    with store.transaction():
        forgotten = store.hosts.forget(host_id, round(store.settings.stale_after_s * 1000))
        if forgotten:
            store.events.record("host-left", host=host_id, detail={"asked_by": asked_by, "forgotten": True})
    return forgotten


def resign(store: Store, name: str, fence: int, *, asked_by: str) -> bool:
    """End the term of whoever leads under *name*, so that anybody may begin the next one; False: it was over.

    Whoever led learns it at the next renewal, and does nothing under the old fence meanwhile.

    Atomicity: one transaction with its event.
    """
    with store.transaction():
        ended = store.terms.hold(name, fence)
        if ended:
            store.terms.hand_over(name, fence)
            store.events.record("term-resigned", detail={"asked_by": asked_by, "term": name, "fence": fence})
    return ended


@dataclass(frozen=True, slots=True)
class RootDone:
    """What became of a root."""

    root: str
    changed: bool
    """False: it was so already, or it is cancelled for good."""


def set_root(store: Store, root_id: str, terms: RootTerms, *, asked_by: str) -> RootDone:
    """Let a root have these terms and no others; it is declared from now on.

    Atomicity: the terms with their event.
    """
    with store.transaction():
        store.roots.set(root_id, terms)
        said = {name: value for name, value in dataclasses.asdict(terms).items() if value is not None}
        store.events.record("root-changed", root=root_id, detail={**said, "asked_by": asked_by})
    return RootDone(root_id, changed=True)


def pause_root(store: Store, root_id: str, *, asked_by: str) -> RootDone:
    """Let nothing of a root start from this call's return on; what runs goes on."""
    return _turn_root(store, root_id, "paused", "root-paused", asked_by)


def resume_root(store: Store, root_id: str, *, asked_by: str) -> RootDone:
    """Let a paused root go on."""
    return _turn_root(store, root_id, "running", "root-resumed", asked_by)


def cancel_root(store: Store, root_id: str, *, grace_ms: int, asked_by: str) -> RootDone:
    """End a root for good: what waits is revoked, what runs is told, and killed when *grace_ms* are over."""
    return _turn_root(store, root_id, "cancelled", "root-cancelled", asked_by, grace_ms=grace_ms)


def _turn_root(
    store: Store,
    root_id: str,
    state: Literal["running", "paused", "cancelled"],
    kind: Kind,
    asked_by: str,
    *,
    grace_ms: int = 0,
) -> RootDone:
    with store.transaction():
        changed = store.roots.turn(root_id, state, grace_ms=grace_ms)
        if changed:
            store.events.record(kind, root=root_id, detail={"asked_by": asked_by})
    store.roots.adopt(root_id)  # what was being published meanwhile
    return RootDone(root_id, changed)


def _each_batch(
    store: Store,
    ids: Iterable[int],
    act: Callable[[Sequence[int]], set[int]],
    verb: str,
    kind: Kind,
    detail: dict[str, str],
) -> Done:
    asked = list(dict.fromkeys(ids))
    done: set[int] = set()
    for start in range(0, len(asked), BATCH):
        with store.transaction():
            reached = act(asked[start : start + BATCH])
            if reached:
                named = sorted(reached)[:_NAMED_IN_EVENT]
                store.events.record(kind, detail={**detail, "count": len(reached), "ids": named})
        done |= reached
    return Done(
        verb,
        ids=tuple(message_id for message_id in asked if message_id in done),
        skipped=tuple(message_id for message_id in asked if message_id not in done),
    )
