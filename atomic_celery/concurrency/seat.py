"""What a child is born with."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from atomic_celery.concurrency.deadline_page import DeadlinePage
from atomic_celery.concurrency.tokens import TokenPipe


@dataclass(frozen=True, slots=True)
class Seat:
    """A child's ends of what it shares with its host, and the rules of its life.

    Attributes:
        mark: What the programs it starts carry in their environment, as `process_tree.MARK`.
        let_go: Closes what this process inherited and must not keep: the ends of its siblings, and of the host.
        max_tasks: How many tasks it runs before it leaves; None for no limit.
        max_memory_kb: It leaves after a task when it needs more than this; None for no limit.
    """

    mark: str
    app: Any
    hostname: str
    host_pid: int
    stream: socket.socket
    tokens: TokenPipe
    page: DeadlinePage
    let_go: Callable[[], None]
    max_tasks: int | None
    max_memory_kb: int | None
