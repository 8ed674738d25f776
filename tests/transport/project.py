"""A throw-away project in a directory of its own, run as its user would run it."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Project:
    """Files, and processes that see them, this package, and its entry points as setup.cfg declares them.

    Args:
        entry_points: False makes an installation that lost them, as frozen programs do.
    """

    def __init__(self, directory: Path, url: str, *, entry_points: bool = True) -> None:
        self.directory = directory
        self._site = directory / "site"
        self._site.mkdir()
        (self._site / "atomic_celery").symlink_to(ROOT / "atomic_celery")
        self._declare_entry_points(entry_points)
        path = os.pathsep.join(map(str, (self._site, directory)))
        self.env = {**os.environ, "PYTHONPATH": path, "BROKER": url, "ATOMIC_STATE_DIR": str(directory / "state")}

    def write(self, name: str, text: str) -> None:
        """Write a file of the project."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run Python with *arguments* to its end."""
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            check=False,
            cwd=self.directory,
            env=self.env,
            text=True,
            timeout=timeout_s,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start Python with *arguments*; what it says is in ``process.log``."""
        with (self.directory / "process.log").open("a") as log:
            return subprocess.Popen(
                [sys.executable, *arguments], cwd=self.directory, env=self.env, stdout=log, stderr=log, text=True
            )

    def log(self) -> str:
        """Return what the started processes said."""
        return (self.directory / "process.log").read_text()

    def _declare_entry_points(self, kept: bool) -> None:
        """Be the installation that is found first, and so the only one that counts."""
        setup = configparser.ConfigParser()
        setup.read(ROOT / "setup.cfg")
        metadata = self._site / "atomic_celery-0.0.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: atomic_celery\nVersion: 0.0.0\n")
        declared = setup["options.entry_points"].items() if kept else ()
        lines = [f"[{group}]\n{names.strip()}\n" for group, names in declared]
        (metadata / "entry_points.txt").write_text("\n".join(lines))
