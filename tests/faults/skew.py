"""Machines whose wall clock is wrong, or jumps, by libfaketime; what else runs on this machine keeps the right time.

The monotonic clocks stay true, as they do on a machine that somebody sets to another time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.workers import ROOT

LIBRARIES = [
    *Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"),
    *Path("/usr/lib").glob("faketime/libfaketimeMT.so.1"),
]


class Skew:
    """The wall clock of one machine.

    Args:
        file: Where its offset is kept; it can be changed while programs run.
    """

    def __init__(self, file: Path, offset_s: int = 0) -> None:
        if not LIBRARIES:
            pytest.skip("no libfaketime on this machine: install the package libfaketime")
        self._file = file
        self.step(offset_s)
        # The library reads the file under a lock. A child that is forked meanwhile would wait for it for ever, so that
        # it must not read it at each look at the clock.
        self.env = {
            "LD_PRELOAD": str(LIBRARIES[0]),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "NO_FAKE_STAT": "1",
            "PYTHONPATH": f"{Path(__file__).parent / 'skewed'}:{ROOT}",
        }

    def step(self, offset_s: int) -> None:
        """Set the clock, from within two seconds on *offset_s* from the right time."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{offset_s:+d}s\n")
        new.rename(self._file)
