"""Many messages in one round trip, for ``with producer.batch():``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atomic_celery.store.records import NewMessage
from atomic_celery.transport import codec
from atomic_celery.transport.codec import RawMessage

if TYPE_CHECKING:
    from atomic_celery.transport.channel import Channel


class Bulk:
    """Messages that one producer publishes together, in the shape kombu asks for."""

    def __init__(self, channel: Channel, max_size: int) -> None:
        self.channel, self._max_size = channel, max_size
        self._waiting: list[NewMessage] = []

    def publish(self, message: RawMessage, exchange: str = "", routing_key: str = "", **_: Any) -> None:
        """Add a message; every *max_size* of them are stored at once."""
        packed = codec.pack(message, exchange or "", routing_key or "")
        self._waiting += self.channel.route(packed, exchange or "", routing_key or "")
        if len(self._waiting) >= self._max_size:
            self.flush()

    def flush(self) -> None:
        """Store what was added.

        Raises:
            StoreUnavailable: Unknown whether they were stored. They are kept, and stored at most once.
        """
        if self._waiting:
            self.channel.store_messages(self._waiting)
            self._waiting = []

    def discard(self) -> None:
        """Forget what was added and not stored yet."""
        self._waiting = []

    def close(self) -> None:
        """Do nothing: there is nothing to let go of."""
