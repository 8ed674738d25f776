"""The two workers, as an operator would start them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path


class Worker:
    """One ``celery -A tasks worker -P atomic`` process."""

    cwd = Path(__file__).parent

    def __init__(self, name: str, scratch: Path) -> None:
        self.name = name
        self._log = (scratch / f"{name}.log").open("w")
        command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-P", "atomic", "-n", f"{name}@%h"]
        self._process = subprocess.Popen(
            [*command, "--slots", "2", "--loglevel", "WARNING"], cwd=self.cwd, stdout=self._log, stderr=self._log
        )

    def kill(self) -> None:
        """End it as a power cut would."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Let it drain."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(timeout=60)
        self._log.close()
