"""What the workers of these tests run, beside the tasks of `tests.support.application`."""

from __future__ import annotations

import os
import time

from tests.support.application import app
from tests.support.ledger import Ledger

_ledger = Ledger(os.environ["TEST_LEDGER"])


@app.task
def doze(number: int, seconds: float = 0.05) -> None:
    """Take its time, then add a row."""
    time.sleep(seconds)
    _ledger.add(f"doze {number}")
