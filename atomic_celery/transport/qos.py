"""kombu's acknowledgements, said in leases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kombu.transport import virtual

from atomic_celery.endings import Ending
from atomic_celery.store.records import Claimed, Held

if TYPE_CHECKING:
    from atomic_celery.store.queues import Queue
    from atomic_celery.transport.channel import Channel
    from atomic_celery.transport.codec import RawMessage
    from atomic_celery.transport.intake import Intake

UNLIMITED_AT_ONCE = 100
"""How many messages a channel without a prefetch count claims at once."""


@dataclass(slots=True)
class Delivery:
    """A claimed message on its way to, or with, a consumer."""

    held: Held
    queue: Queue
    raw: RawMessage


class QoS(virtual.QoS):
    """What one channel's consumers hold, and how much more they may.

    It speaks to the transport's claimer and not to the channel, so that it works after the channel has closed: an
    acknowledgement that comes too late for its connection is still the end of the claim.
    """

    restore_at_shutdown = False  # a lease that nobody renews runs out by itself

    def __init__(self, channel: Channel, prefetch_count: int = 0) -> None:
        # Not the base's: it would register the channel's messages to be published again at exit.
        self.channel = channel
        self.prefetch_count = prefetch_count or 0
        self._intake: Intake = channel.connection.intake
        self._outstanding: dict[str, Delivery] = {}

    def room(self) -> int:
        """Return how many more messages this channel's consumers may have."""
        if not self.prefetch_count:
            return UNLIMITED_AT_ONCE
        return max(0, self.prefetch_count - len(self._outstanding))

    def can_consume(self) -> bool:
        """Whether there is room for another message."""
        return self.room() > 0

    def can_consume_max_estimate(self) -> int | None:  # type: ignore[override]  # the stubs forget None
        """Return how many more messages there is room for; None: any number."""
        return self.room() if self.prefetch_count else None

    def reserve(self, claimed: Claimed, queue: Queue, raw: RawMessage) -> None:
        """Count a message from its claim on, so that no turn claims for the same room twice."""
        self._outstanding[raw["properties"]["delivery_tag"]] = Delivery(claimed.held, queue, raw)

    def append(self, message: Any, delivery_tag: str) -> None:
        """Do nothing: it has been counted since it was claimed."""

    def get(self, delivery_tag: str) -> Delivery:
        """Return what goes by that tag."""
        return self._outstanding[delivery_tag]

    def ack(self, delivery_tag: str, *, multiple: bool = False) -> None:
        """Complete a message; with *multiple* also all that were delivered before it."""
        for tag in self._up_to(delivery_tag) if multiple else (delivery_tag,):
            if delivery := self.forget(tag):
                self._intake.settle(Ending(delivery.held, "complete"))

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Make a message ready again, or let it go where its queue sends its dead letters."""
        if not requeue:
            self._intake.unwanted(delivery_tag, self, "rejected")
        elif delivery := self.forget(delivery_tag):
            self._intake.settle(Ending(delivery.held, "release"))

    def forget(self, delivery_tag: str) -> Delivery | None:
        """Give back the room of a message whose claim ended otherwise, or is being ended; None: it has been."""
        delivery = self._outstanding.pop(delivery_tag, None)
        if delivery is not None:
            self._intake.has_room()
        return delivery

    def restore_unacked(self) -> list[Any]:  # type: ignore[override]  # it returns what could not be
        """Give back everything that nobody has begun to work on; return what could not be: nothing."""
        for tag, delivery in list(self._outstanding.items()):
            if not self._intake.is_started(delivery.held[0]) and self.forget(tag):
                self._intake.settle(Ending(delivery.held, "release"), at_once=False)
        self._intake.flush()
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:  # noqa: ARG002
        """Give back what is left when the channel closes."""
        self.restore_unacked()

    def restore_visible(self, *args: Any, **options: Any) -> None:
        """Do nothing: leases that ran out are reclaimed by whoever comes first."""

    def _up_to(self, delivery_tag: str) -> list[str]:
        tags = list(self._outstanding)
        return tags[: tags.index(delivery_tag) + 1] if delivery_tag in self._outstanding else []
