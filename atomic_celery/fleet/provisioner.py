"""What a provisioner is: the three calls by which the fleet controller sees and changes the instances of a platform.

A provisioner decides nothing. It is called from one thread at a time, may block, and gets a `Permit` with every
call: the right to act while the controller leads. Whatever it does to the platform it does right after
``permit.require(…)``; a program that it runs it ends, with everything the program started, as soon as
``permit.wait(…)`` says that the call was given up.

A platform that fails is a `ProvisionerError`. The controller then keeps the hosts it has and asks again later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from atomic_celery import errors, names

InstanceState = Literal["pending", "running", "draining", "stopped", "failed"]
"""*pending* boots, *running* runs, *draining* is being removed, *stopped* ended by itself, *failed* never worked."""

_FIRST_MS, _LATEST_MS = 100_000_000_000, 253_402_300_800_000
"""1973, and the end of the year 9999. Nothing started before or after; what is less is a time of today in seconds."""

INSTANCE_STATES: tuple[InstanceState, ...] = get_args(InstanceState)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Something that the platform runs for the fleet: a VM, a pod, a CI run. A host registers on it.

    Raises:
        ProvisionerError: malformed: no id, a state that is none, or a moment that is none.
    """

    id: str
    """What its hosts have for a provider id."""
    state: InstanceState
    since_ms: int | None = None
    """When it started, in milliseconds since 1970 UTC; None if the platform does not say."""
    host_id: str | None = None
    """The id of the host on it, if the platform knows it: for hosts without a provider id."""

    def __post_init__(self) -> None:
        if problem := _problem(self):
            raise errors.ProvisionerError("malformed", problem)


def _problem(instance: Instance) -> str | None:
    identifier, state, since_ms, host_id = instance.id, instance.state, instance.since_ms, instance.host_id
    if not isinstance(identifier, str) or not identifier or not names.is_storable(identifier):
        return f"an instance's id must be a text that a database can store, got {identifier!r}"
    if len(identifier.encode()) > names.MOST_BYTES:
        return f"an instance's id must not be longer than {names.MOST_BYTES} bytes, got {len(identifier.encode())}"
    if state not in INSTANCE_STATES:
        return f"instance {identifier!r}: its state must be one of {INSTANCE_STATES}, got {state!r}"
    if since_ms is not None and (type(since_ms) is not int or not _FIRST_MS <= since_ms <= _LATEST_MS):
        return f"instance {identifier!r}: since_ms must be whole milliseconds since 1970, got {since_ms!r}"
    if host_id is not None and (not isinstance(host_id, str) or not names.is_storable(host_id)):
        return f"instance {identifier!r}: its host's id must be a text that a database can store, got {host_id!r}"
    if host_id is not None and len(host_id.encode()) > names.MOST_BYTES:
        return f"instance {identifier!r}: its host's id must not be longer than {names.MOST_BYTES} bytes"
    return None


class Permit:
    """The right to act for the fleet, while its controller leads. Safe from any thread."""

    def __init__(self, leads: Callable[[], bool], given_up: threading.Event) -> None:
        self._leads, self._given_up = leads, given_up

    def require(self, doing: str) -> None:
        """Let the caller go on with what it says it is *doing*; to be asked right before each thing done.

        Raises:
            CallGivenUp: The controller does not lead any more, or may not, or it ends.
        """
        if self._given_up.is_set() or not self._leads():
            raise errors.CallGivenUp(doing)

    def wait(self, timeout_s: float) -> bool:
        """Wait up to *timeout_s* for the call to be given up; whether it was."""
        return self._given_up.wait(timeout_s)


class Provisioner(Protocol):
    """A platform's instances. Every call may raise `ProvisionerError` or `CallGivenUp`."""

    @property
    def kind(self) -> str:
        """What it is, for people and events: ``command``, ``local``, ``my-cloud``."""
        ...

    def list(self, permit: Permit) -> Sequence[Instance]:
        """Return every instance it manages, in any order, each once.

        An instance that the platform no longer counts, as one that is deleted already, is left out.
        """
        ...

    def scale_to(self, target: int, permit: Permit, *, add: int) -> None:
        """Start up to *add* instances, so that there are *target*. Only ever called to add.

        Must start no more than are missing from *target* in what `list` returns at that moment, so that a call may be
        repeated whose answer got lost; and no more than *add*, for a platform may list late what was asked for before.

        Args:
            target: How many there are to be: all that `list` returns, in whatever state, and those asked for that it
                does not return yet.
            permit: The right to act.
            add: How many of these have not been asked for.

        Raises:
            ProvisionerError: With `begun`, where it failed after it had started some.
        """
        ...

    def drain(self, instance_id: str, permit: Permit) -> None:
        """Remove one instance, whose hosts have left or never came, and lower the count by one.

        Must do nothing where it is gone or going already.
        """
        ...


def checked(listed: object) -> list[Instance]:
    """Return what a provisioner listed, if it makes sense.

    Raises:
        ProvisionerError: malformed: something else than instances, or one of them twice.
    """
    if not isinstance(listed, Sequence) or not all(isinstance(one, Instance) for one in listed):
        raise errors.ProvisionerError("malformed", f"list() must return Instance objects, got {type(listed).__name__}")
    instances = list(listed)
    if len({one.id for one in instances}) != len(instances):
        raise errors.ProvisionerError("malformed", "list() returned an instance twice")
    return instances
