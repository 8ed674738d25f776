"""What arrives is always noticed, however the two threads cross."""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from atomic_celery.transport import pipe
from atomic_celery.transport.pipe import Pipe


def test_a_signal_that_comes_while_an_earlier_one_is_cleared_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Pipe()
    inbox: list[str] = []
    read: Callable[..., Any] = os.read

    def read_while_something_arrives(fd: int, size: int) -> bytes:
        monkeypatch.setattr(pipe.os, "read", read)
        inbox.append("late")
        made.signal()
        return bytes(read(fd, size))

    made.signal()
    monkeypatch.setattr(pipe.os, "read", read_while_something_arrives)
    made.clear()
    assert inbox == ["late"], "whoever clears looks afterwards, and finds it"
    made.signal()
    assert select.select([made.fileno()], [], [], 0)[0], "later signals still work"
    made.close()


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
