"""Starting a server program so that it ends with the process that started it."""

from __future__ import annotations

import ctypes
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.binaries import Account


def launch(command: Sequence[str | Path], account: Account, log_path: Path) -> subprocess.Popen[bytes]:
    """Start *command* under *account* in a session of its own, writing to *log_path*."""
    with log_path.open("ab") as log:
        process: subprocess.Popen[bytes] = subprocess.Popen(
            [str(word) for word in command],
            cwd="/",
            preexec_fn=_die_with_parent(),
            start_new_session=True,
            stderr=log,
            stdin=subprocess.DEVNULL,
            stdout=log,
            **account.popen_options(),  # type: ignore[call-overload]
        )
    return process


def log_tail(log_path: Path, lines: int = 30) -> str:
    """Return the last lines of a log."""
    return "\n".join(log_path.read_text(errors="replace").splitlines()[-lines:])


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _die_with_parent() -> Callable[[], None] | None:
    # A test run that is killed must not leave its servers behind. Only Linux can promise that.
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    pr_set_pdeathsig = 1
    return lambda: libc.prctl(pr_set_pdeathsig, signal.SIGQUIT)
