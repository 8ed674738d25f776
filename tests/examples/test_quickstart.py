"""The first thing a user runs says what is true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.workers import ROOT

SLOTS = re.compile(r"slots (\d+)/(\d+)")


def test_the_quickstart_shows_busy_slots_and_loses_nothing(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "quickstart"), str(ROOT)],
        check=False,
        capture_output=True,
        cwd=tmp_path,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Every file once, none lost, none counted twice." in run.stdout
    seen = [(int(busy), int(slots)) for busy, slots in SLOTS.findall(run.stdout)]
    assert max(busy for busy, _ in seen) > 0
    assert all(busy <= slots <= 4 for busy, slots in seen)
