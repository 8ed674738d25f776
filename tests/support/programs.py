"""A program that runs while a test looks at it, and ends when it is told to."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def running(
    command: Sequence[str], *, directory: Path, environment: Mapping[str, str], said: Path
) -> Iterator[Callable[[], str]]:
    """Run a program until it is no longer needed; it must end well then. Yields what returns all that it has said."""
    with said.open("wb") as out:
        process = subprocess.Popen(command, cwd=directory, env=dict(environment), stdout=out, stderr=subprocess.STDOUT)
    try:
        yield said.read_text
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, said.read_text()
    finally:
        process.kill()
        process.wait(60)
