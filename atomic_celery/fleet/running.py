"""Running a controller: beside a program's own work, or as a program that ends with a signal."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from atomic_celery.fleet.calls import GIVEN_UP_ENDS_WITHIN_S
from atomic_celery.loop import Loop

if TYPE_CHECKING:
    from atomic_celery.fleet.controller import Controller

T = TypeVar("T")

_TURN_AT_LEAST_EVERY_S = 1.0
_LAST_TURN_ENDS_WITHIN_S = GIVEN_UP_ENDS_WITHIN_S + 15.0  # and what it asks of the database


@contextmanager
def running(controller: Controller, *, drain_at_end: bool = False) -> Iterator[Controller]:
    """Run *controller* on a thread of its own while the block lasts, and hand over at its end.

    Args:
        controller: One that has not run.
        drain_at_end: Whether, if it leads then, it asks the idle hosts above the target to drain at once.
    """
    loop = Loop("atomic-controller", controller.turn, interval_s=_TURN_AT_LEAST_EVERY_S)
    loop.start()
    try:
        yield controller
    finally:
        controller.stop()
        if loop.stop(_LAST_TURN_ENDS_WITHIN_S):
            if drain_at_end:
                controller.drain_idle()
            controller.close()


def run_until_signalled(controller: Controller) -> None:
    """Run *controller* until SIGTERM or SIGINT; hand over at once then. In the main thread only."""
    with _signals() as fd, running(controller):
        os.read(fd, 1)


def unless_signalled(controller: Controller, act: Callable[[], T]) -> T:
    """Let *controller* do one thing, and give up what it calls meanwhile on SIGTERM or SIGINT. In the main thread only.

    Raises:
        CallGivenUp: It was, and *act* says so.
    """
    with _signals() as fd:

        def stop() -> None:
            if os.read(fd, 1):
                controller.stop()

        threading.Thread(target=stop, name="atomic-signals", daemon=True).start()
        return act()


@contextmanager
def _signals() -> Iterator[int]:
    """Yield what a byte can be read from for each SIGTERM and SIGINT; nothing more can, when the block has ended."""
    read_fd, write_fd = os.pipe()

    def note(signum: int, _frame: FrameType | None) -> None:
        # Nothing but this is safe here: whatever it interrupted may hold any lock.
        os.write(write_fd, bytes([signum]))

    before = {signum: signal.signal(signum, note) for signum in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield read_fd
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        os.close(write_fd)  # whoever still reads hears of it: the other end is left to it
