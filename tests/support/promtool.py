"""Prometheus' own judgement of rules and metrics, where it is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NOT_FOUND = """\
promtool is not installed. One of these is enough:
  - bash .ci/run, as root on Debian, takes it out of the package prometheus
  - apt-get download prometheus && dpkg-deb --fsys-tarfile prometheus_*.deb | \
tar -x -C /usr/local/bin --strip-components=3 ./usr/bin/promtool
  - put promtool of a release of Prometheus into a directory of PATH"""


def promtool(*arguments: str | Path, stdin: str = "") -> None:
    """Fail with all that promtool has to say, if it does not approve."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip(NOT_FOUND)
    run = subprocess.run(
        [program, *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )
    # `check metrics` ends with 3 when it only advises against something; that is no good, either.
    assert run.returncode == 0, run.stdout + run.stderr
