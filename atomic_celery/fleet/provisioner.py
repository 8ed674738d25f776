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

from atomic_celery import errors

InstanceState = Literal["pending", "running", "draining", "stopped", "failed"]
"""*pending* boots, *running* runs, *draining* is being removed, *stopped* ended by itself, *failed* never worked."""

INSTANCE_STATES: tuple[InstanceState, ...] = get_args(InstanceState)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Something that the platform runs for the fleet: a VM, a pod, a CI run. A host registers on it.

    Raises:
        ProvisionerError: malformed: no id, or a state that is none.
    """

    id: str
    """What its hosts have for a provider id."""
    state: InstanceState
    since_ms: int | None = None
    """When it started, in milliseconds since 1970 UTC; None if the platform does not say."""
    host_id: str | None = None
    """The id of the host on it, if the platform knows it: for hosts without a provider id."""

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise errors.ProvisionerError("malformed", f"an instance's id must be a text, got {self.id!r}")
        if self.state not in INSTANCE_STATES:
            raise errors.ProvisionerError(
                "malformed", f"instance {self.id!r}: its state must be one of {INSTANCE_STATES}, got {self.state!r}"
            )


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
        """
        ...

    def drain(self, instance_id: str, permit: Permit) -> None:
        """Remove one instance, whose hosts have left or never came, and lower the count by one.

        Must do nothing where it is gone or going already.
        """
        ...
