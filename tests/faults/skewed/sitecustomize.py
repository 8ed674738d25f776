"""Loaded by every Python that starts with this directory on its path: sleeps in a way that libfaketime leaves alone.

Its clock_nanosleep refuses an absolute time by a clock that it does not fake, and that is how `time.sleep` asks.
"""

import select
import time


def _sleep(seconds: float) -> None:
    select.select((), (), (), seconds)


time.sleep = _sleep
