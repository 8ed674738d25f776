"""What connections of one process to one database share, however they come and go."""

from __future__ import annotations

from pathlib import Path

from atomic_celery.config import Settings
from atomic_celery.transport import broker


def test_a_broker_is_shared_and_closed_with_its_last_user(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    first, second = (broker.borrow_url(url, Settings()) for _ in range(2))
    assert first is second
    broker.give_back(first)
    assert broker.borrow_url(url, Settings()) is second
    broker.give_back(second)
    broker.give_back(second)
    assert broker.borrow_url(url, Settings()) is not second


def test_a_user_that_is_collected_while_another_one_comes_holds_nobody_up(tmp_path: Path) -> None:
    url, other_url = (f"sqlite:///{tmp_path / name}" for name in ("a.db", "b.db"))
    garbage = broker.borrow_url(url, Settings())
    with broker._lock:  # the collector may run anywhere, also there
        broker.give_back(garbage)
    broker.give_back(broker.borrow_url(other_url, Settings()))
    assert broker.borrow_url(url, Settings()) is not garbage
