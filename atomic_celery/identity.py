"""Who this host is: an id that survives restarts, a boot that does not, and one certain process.

The id is kept in a file of the state directory, one file for each worker that runs at the same
time, locked while it runs. A restarted host finds the id of its predecessor, and can tell whether
that process is really gone: the same machine, the same boot of it, the same process namespace, and
no process with that number and start time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import subprocess
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TextIO

logger = logging.getLogger(__name__)

_MACHINE_FILES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_PROC = Path("/proc")
_BOOT_FILE = _PROC / "sys/kernel/random/boot_id"
_locked_here: set[Path] = set()  # a record lock never excludes its own process


@dataclass(frozen=True, slots=True)
class Process:
    """One process of one boot of one machine; no other ever equals it."""

    machine: str
    machine_boot: str
    pid: int
    pid_started: str
    """In the system's own unit; empty where it is not known."""

    def proven_dead(self, asker: Process) -> bool:
        """Whether *asker* can see for itself that this process is gone. False when in doubt."""
        comparable = (self.machine, self.machine_boot) == (asker.machine, asker.machine_boot)
        if not comparable or not self.machine or not self.machine_boot or not self.pid_started:
            return False
        return start_of(self.pid) != self.pid_started


@dataclass(slots=True)
class Identity:
    """A host's id, locked until `release`, and the boot of this run."""

    id: str
    boot: str
    process: Process
    _lock: TextIO | None = field(default=None, repr=False)

    def release(self) -> None:
        """Let the next worker of this machine have the id."""
        if self._lock is not None and not self._lock.closed:
            _locked_here.discard(Path(self._lock.name))
            self._lock.close()


def take(state_dir: str | os.PathLike[str] | None, *, journal: str, name: str) -> Identity:
    """Take the id of a worker called *name* on the database *journal*, or mint one.

    Args:
        state_dir: None means the user's state directory. Where nothing can be written, the id
            lasts for this run.
        journal: What tells one database from another; never a password.
    """
    directory = Path(state_dir or default_state_dir())
    key = hashlib.sha256(f"{journal}\n{name}".encode()).hexdigest()[:16]
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock, kept = _lock_first_free(directory, key)
    except OSError as error:
        logger.warning("the host id cannot be kept in %s (%s); a restart gets a new one", directory, error)
        lock, kept = None, secrets.token_hex(8)
    return Identity(kept, secrets.token_hex(8), this_process(), lock)


def default_state_dir() -> Path:
    """Return where programs of this user keep what should survive a restart."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base) / "atomic_celery"


def _lock_first_free(directory: Path, key: str) -> tuple[TextIO, str]:
    for number in count():
        path = directory / f"{key}-{number}"
        lock = _try_lock(path)
        if lock is not None:
            return lock, _id_in(lock)
    raise AssertionError("counting never ends")


def _try_lock(path: Path) -> TextIO | None:
    if path in _locked_here:
        return None
    handle = path.open("a+")
    try:
        # A record lock, because a forked child must not inherit it and outlive its parent with it.
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        return None
    except OSError:
        handle.close()
        raise
    _locked_here.add(path)
    return handle


def _id_in(lock: TextIO) -> str:
    lock.seek(0)
    kept = lock.read().strip()
    if not kept:
        kept = secrets.token_hex(8)
        lock.truncate(0)
        lock.write(kept)
        lock.flush()
    return kept


def this_process() -> Process:
    """Describe the process that runs this."""
    return Process(_machine(), _machine_boot(), os.getpid(), start_of(os.getpid()) or "")


def start_of(pid: int) -> str | None:
    """Return when process *pid* started, in the system's own unit; None when it does not exist."""
    if not _PROC.exists():
        return _output("ps", "-o", "lstart=", "-p", str(pid)) or None
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()
    return None if state in "ZX" else rest[18]


def _machine() -> str:
    for path in _MACHINE_FILES:
        with contextlib.suppress(OSError):
            if known := path.read_text().strip():
                return known
    return _output("sysctl", "-n", "kern.uuid")


def _machine_boot() -> str:
    """Name this boot and the process namespace in it: numbers mean nothing in another container."""
    with contextlib.suppress(OSError):
        return f"{_BOOT_FILE.read_text().strip()}/{os.readlink(_PROC / 'self/ns/pid')}"
    return _output("sysctl", "-n", "kern.bootsessionuuid")


def _output(*command: str) -> str:
    try:
        run = subprocess.run(
            command, capture_output=True, check=False, env={**os.environ, "LC_ALL": "C"}, text=True, timeout=5
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return run.stdout.strip() if run.returncode == 0 else ""
