"""What arrives is always noticed, however the two threads cross."""

from __future__ import annotations

import select
import threading
from collections import deque

from atomic_celery.transport.pipe import Pipe


def test_nothing_is_left_behind_when_two_threads_race() -> None:
    made, inbox, taken = Pipe(), deque[int](), []

    def produce() -> None:
        for number in range(20_000):
            inbox.append(number)
            made.signal()

    producer = threading.Thread(target=produce)
    producer.start()
    while len(taken) < 20_000:
        assert select.select([made.fileno()], [], [], 30)[0], f"{len(inbox)} items wait and nobody says so"
        made.clear()
        while inbox:
            taken.append(inbox.popleft())
    producer.join()
    assert taken == list(range(20_000))
    made.close()
