"""Starting a server program so that it ends with the process that started it."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.binaries import Account

_FIRST_PORT, _PORTS_EACH, _PROCESSES = 12_000, 2_000, 10  # below those that Linux gives away, from 32,768 on
_ports = itertools.cycle(random.sample(range(_PORTS_EACH), _PORTS_EACH))


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
    """Return a TCP port of 127.0.0.1 that nobody listens on, and that the system gives to nobody who asks for any.

    Each process of a test run has ports of its own: it may be long until a server takes one.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = _FIRST_PORT + worker % _PROCESSES * _PORTS_EACH + next(_ports)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def _die_with_parent() -> Callable[[], None] | None:
    # A test run that is killed must not leave its servers behind. Only Linux can promise that.
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    pr_set_pdeathsig = 1
    return lambda: libc.prctl(pr_set_pdeathsig, signal.SIGQUIT)
