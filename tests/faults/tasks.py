"""What the workers of these tests run, beside the tasks of `tests.support.application`."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.support.application import app
from tests.support.ledger import Ledger

_ledger = Ledger(os.environ["TEST_LEDGER"])


@app.task(bind=True)
def gate(self, name: str, directory: str) -> int:
    """Say that it has begun, where and when; end when this attempt, or every one, is let through; return the fence.

    The row at its end is what any body may do to the world: nobody asks the database whether this attempt still counts.
    """
    fence = int(self.request.properties["atomic"]["fence"])
    begun = Path(directory, f"{name}.begun.{fence}")
    begun.with_suffix(".tmp").write_text(f"{os.getpid()} {time.time()}")
    begun.with_suffix(".tmp").rename(begun)
    ways = Path(directory, name), Path(directory, f"{name}.{fence}")
    while not any(way.exists() for way in ways):
        time.sleep(0.01)
    _ledger.add(f"{name} {fence}")
    return fence
