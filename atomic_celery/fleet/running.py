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

_ENDING = (signal.SIGTERM, signal.SIGINT)
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
        _wait_for_signal(fd)


def unless_signalled(controller: Controller, act: Callable[[], T]) -> T:
    """Let *controller* do one thing, and give up what it calls meanwhile on SIGTERM or SIGINT. In the main thread only.

    Raises:
        CallGivenUp: It was, and *act* says so.
    """
    with _signals() as fd:

        def stop() -> None:
            if _wait_for_signal(fd):
                controller.stop()

        threading.Thread(target=stop, name="atomic-signals", daemon=True).start()
        return act()


@contextmanager
def _signals() -> Iterator[int]:
    """Yield what a byte can be read from after each SIGTERM and SIGINT; nothing more can, when the block has ended."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    # The interpreter itself writes, in whichever thread the signal finds. A handler in Python would wait for the main
    # thread's next instruction, which a signal that comes right before it begins to read would wait for for ever.
    outer_fd = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    outer_handlers = {signum: signal.signal(signum, _leave_to_the_pipe) for signum in _ENDING}
    try:
        yield read_fd
    finally:
        for signum, handler in outer_handlers.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(outer_fd)
        os.close(write_fd)  # whoever still reads hears of it: the other end is left to it


def _leave_to_the_pipe(_signum: int, _frame: FrameType | None) -> None:
    """Do nothing."""


def _wait_for_signal(read_fd: int) -> bool:
    """Wait for SIGTERM or SIGINT; False: the block ended before. Other signals of the program are nothing to it."""
    while signum := os.read(read_fd, 1):
        if signum[0] in _ENDING:
            return True
    return False
