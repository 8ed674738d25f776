"""The test application on a machine whose clock jumps: by the seconds in the file `TEST_CLOCK`."""

import os
import time
from pathlib import Path

from tests.support.application import app

__all__ = ["app"]

_true_time, _file = time.time, Path(os.environ["TEST_CLOCK"])


def _jumping() -> float:
    return _true_time() + float(_file.read_text())


time.time = _jumping
