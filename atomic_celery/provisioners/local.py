"""Worker processes on this machine: for trying things out, for tests, for one machine that is large enough.

The workers outlive the controller that started them. Each leaves a note of its process in a directory, by which the
next controller knows it: its number and when it started, because a number alone is given away again. Each fleet has
a directory of its own, whichever one it is given: the workers of another are no instances of this one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import signal
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from atomic_celery import errors, identity, process_tree
from atomic_celery.clock import Clock, SystemClock
from atomic_celery.fleet.provisioner import Instance, InstanceState, Permit
from atomic_celery.provisioners.configuration import LocalWorkers

_KILL_AFTER_S = 30.0
"""How long a worker may take to end that is to be removed; it holds nothing then."""
_LOGS_KEPT = 20
"""Of how many workers that have ended what they said is kept."""
_LOG_BYTES = 16 * 2**20
"""How much of what one worker says is kept, and once more as much of what it said before."""


@dataclass(frozen=True, slots=True)
class _Note:
    id: str
    pid: int
    pid_started: str
    since_ms: int
    removed_ms: int | None = None

    @property
    def lives(self) -> bool:
        return identity.start_of(self.pid) == self.pid_started


class LocalProvisioner:
    """Starts and stops `celery worker -P atomic` on this machine.

    Args:
        workers: What to start.
        journal: The tables that are the fleet's, as `Store.journal` has them; no other fleet's workers are seen.
        clock: What time it is.

    Raises:
        ConfigError: The directory cannot be used.
    """

    kind = "local"

    def __init__(self, workers: LocalWorkers, journal: str, clock: Clock | None = None) -> None:
        self._workers, self._clock = workers, clock or SystemClock()
        place = Path(workers.directory or identity.default_state_dir() / "local-workers").expanduser()
        self._directory = place / hashlib.sha256(journal.encode()).hexdigest()[:16]
        self._ours: dict[str, int] = {}
        self._exit_codes: dict[str, int] = {}
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise errors.ConfigError(f"cannot use the directory {self._directory}: {error.strerror}") from None

    def list(self, permit: Permit) -> tuple[Instance, ...]:
        """Return the workers that run, and those that ended with an error; one that ended well is forgotten."""
        permit.require("listing workers")
        self._bound_logs()
        return tuple(self._instance(note, state) for note, state in self._look().items())

    def scale_to(self, target: int, permit: Permit, *, add: int) -> None:
        """Start workers until there are *target*, at most *add*."""
        for _ in range(min(target - len(self._look()), add)):
            permit.require("starting a worker")
            self._start()

    def drain(self, instance_id: str, permit: Permit) -> None:
        """End a worker: with SIGTERM, and 30 s later, when it is next looked at, with all that it started."""
        for note, state in self._look().items():
            if note.id == instance_id and state != "draining":
                permit.require(f"ending worker {instance_id}")
                if state == "failed":
                    self._forget(note)
                else:
                    self._keep(replace(note, removed_ms=self._now_ms()))
                    process_tree.send(note.pid, signal.SIGTERM)

    def _look(self) -> dict[_Note, InstanceState]:
        seen: dict[_Note, InstanceState] = {}
        for path in sorted(self._directory.glob("*.json")):
            note = self._read(path)
            if note is not None and (state := self._state(note)) is not None:
                seen[note] = state
        return seen

    def _bound_logs(self) -> None:
        """Cut long logs short, and remove those of workers that ended longest ago."""
        ended = []
        for log in self._directory.glob("*.log"):
            with contextlib.suppress(OSError):  # another controller may do the same
                seen = log.stat()
                if seen.st_size > _LOG_BYTES:
                    shutil.copyfile(log, log.with_suffix(".log.1"))
                    os.truncate(log, 0)  # its worker goes on appending
                if not log.with_suffix(".json").exists():
                    ended.append((seen.st_mtime, log))
        for _, log in sorted(ended)[:-_LOGS_KEPT]:
            for path in (log, log.with_suffix(".log.1")):
                path.unlink(missing_ok=True)

    def _state(self, note: _Note) -> InstanceState | None:
        """Return a worker's state; None, and no note of it, when it is done with."""
        if note.lives:
            if note.removed_ms is None:
                return "running"
            if self._now_ms() - note.removed_ms > _KILL_AFTER_S * 1000:
                process_tree.kill(note.pid)
            return "draining"
        self._wait_for(note.id)
        if self._exit_codes.get(note.id) and note.removed_ms is None:
            return "failed"
        self._forget(note)
        return None

    def _wait_for(self, name: str) -> None:
        """Take the exit code of a worker that this process started, if it has ended."""
        if name in self._ours:
            try:
                pid, status = os.waitpid(self._ours[name], os.WNOHANG)
            except ChildProcessError:  # somebody else in this process took it
                del self._ours[name]
                return
            if pid:
                del self._ours[name]
                self._exit_codes[name] = os.waitstatus_to_exitcode(status)

    def _start(self) -> None:
        name = f"local-{secrets.token_hex(4)}"
        slots = () if self._workers.slots is None else ("--slots", str(self._workers.slots))
        command = (
            *(sys.executable, "-m", "celery", "-A", self._workers.app, "worker", "-P", "atomic"),
            *("-n", f"{name}@%h", "--provider-id", name, *slots, *self._workers.options),
        )
        log = os.fspath(self._directory / f"{name}.log")
        output = (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        files = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), output, (os.POSIX_SPAWN_DUP2, 1, 2)]
        try:
            # Not a `Popen`, which expects to outlive its process.
            pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=files, setsid=True)
        except OSError as error:
            raise errors.ProvisionerError("missing-cli", f"no worker can be started: {error}") from error
        self._ours[name] = pid
        # One that is gone already has no start any more, and counts as failed by its exit code.
        self._keep(_Note(name, pid, identity.start_of(pid) or "", self._now_ms()))

    def _instance(self, note: _Note, state: InstanceState) -> Instance:
        return Instance(id=note.id, state=state, since_ms=note.since_ms)

    def _keep(self, note: _Note) -> None:
        path = self._directory / f"{note.id}.json"
        beside = path.with_suffix(".tmp")
        try:
            beside.write_text(json.dumps(asdict(note)))
            beside.replace(path)
        except OSError as error:
            raise errors.ProvisionerError("exit", f"cannot write {path}: {error.strerror}") from error

    def _read(self, path: Path) -> _Note | None:
        try:
            return _Note(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, TypeError, ValueError) as error:
            raise errors.ProvisionerError("malformed", f"cannot make sense of {path}: {error}") from None

    def _forget(self, note: _Note) -> None:
        self._exit_codes.pop(note.id, None)
        with contextlib.suppress(OSError):
            os.unlink(self._directory / f"{note.id}.json")

    def _now_ms(self) -> int:
        return round(self._clock.now().wall_s * 1000)
