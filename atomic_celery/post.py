"""Messages that nobody waits for: events and replies of a worker, published from the thread that claims.

A worker's event loop must not wait for the database at every tick. What cannot be sent is kept for a while, and
the oldest is dropped when there is too much of it: AMQP promises no more for such messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from atomic_celery import errors
from atomic_celery.store import NewMessage, Store

MOST_KEPT = 10_000

Letter = Callable[[], Sequence[NewMessage]]
"""Says, when it is sent, which messages it is: to whom they go has to be asked of the database."""


class Post:
    """The letters of one process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.misrouted: Callable[[], None] = lambda: None
        """Called when a queue is gone that a letter was for: whoever remembers routes may have to look anew."""
        self._letters: deque[Letter] = deque(maxlen=MOST_KEPT)

    def __len__(self) -> int:
        return len(self._letters)

    def add(self, letter: Letter) -> None:
        """Let *letter* be sent soon. Safe from any thread."""
        self._letters.append(letter)

    def send(self) -> None:
        """Send what there is, in one statement.

        Raises:
            StoreUnavailable: It is unknown whether it was sent; it is kept, and stored at most once.
        """
        letters = [self._letters.popleft() for _ in range(len(self._letters))]
        try:
            if not self._sent(letters):  # whoever asks again has a new queue, bound under the same name
                self.misrouted()
                self._sent(letters)
        except BaseException:
            self._letters.extendleft(reversed(letters))
            raise

    def _sent(self, letters: Sequence[Letter]) -> bool:
        """Whether they could be stored: none of the queues they are for is gone."""
        new = [message for letter in letters for message in letter()]
        try:
            if new:
                self._store.messages.publish(new)
        except errors.QueueNotFound:
            return False
        return True
