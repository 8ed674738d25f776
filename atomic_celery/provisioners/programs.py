"""Running one program for a platform: bounded in time, ended with all that it started, its errors without secrets."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, NamedTuple

from atomic_celery import clock, errors, process_tree
from atomic_celery.fleet.provisioner import Permit
from atomic_celery.provisioners import refusals
from atomic_celery.provisioners.redaction import redact_end

_KEEPER = os.path.join(os.path.dirname(__file__), "keeper.py")
_LOOK_EVERY_S = 0.05
_MOST_OUTPUT_BYTES = 64 * 1024 * 1024
_ERRORS_READ_BYTES = 1024 * 1024
_ERRORS_KEPT_BYTES = 16 * 1024
_NOT_INSTALLED = frozenset({errno.ELOOP, errno.ENOENT, errno.ENOEXEC, errno.ENOTDIR})
_NOT_EXECUTABLE = frozenset({errno.EACCES, errno.EPERM})


def run(command: str, argv: Sequence[str], environ: Mapping[str, str], timeout_s: float, permit: Permit) -> bytes:
    """Run a program to its end and return what it printed.

    Args:
        command: Which one of the provisioner's it is, for errors: ``list``.
        argv: The program and its arguments, which are in no error.
        environ: Its whole environment.
        timeout_s: How long it may take; after that it is ended, together with every process that it started.
        permit: It is ended in the same way when this ends.

    Raises:
        ProvisionerError: missing-cli, auth, exit, timeout, or malformed where it prints more than 64 MiB.
        CallGivenUp: The permit ended; nothing of it runs on.
    """
    name = f"the {command} command {argv[0]}"
    permit.require(f"running {name}")
    try:
        # Files, not pipes: whoever inherits a pipe and lives on would keep us waiting for its end.
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as complaints:
            files = _Files(output, complaints)
            exit_code = _run_to_its_end(name, files, argv, environ, timeout_s, permit)
            said = _end_of(complaints, environ)
            if exit_code == 0:
                _require_room(files, name)
                output.seek(0)
                return output.read()
    except OSError as error:
        raise errors.ProvisionerError("exit", f"{name} cannot be run: {error.strerror}") from error
    code: errors.ProvisionerFailure = (
        "auth" if refusals.is_refusal(os.path.basename(argv[0]), exit_code, said) else "exit"
    )
    how = f"exited with {exit_code}" if exit_code > 0 else f"was ended by signal {-exit_code}"
    raise errors.ProvisionerError(code, f"{name} {how}: {said or 'it said nothing'}")


class _Files(NamedTuple):
    """Where a program writes to."""

    output: IO[bytes]
    complaints: IO[bytes]

    @property
    def overflow(self) -> bool:
        """Whether there is too much in one of them."""
        return any(os.fstat(file.fileno()).st_size > _MOST_OUTPUT_BYTES for file in self)


def _run_to_its_end(
    name: str, files: _Files, argv: Sequence[str], environ: Mapping[str, str], timeout_s: float, permit: Permit
) -> int:
    process = _start(name, argv, environ, files)
    try:
        return _await(process, name, files, timeout_s, permit)
    except BaseException:
        process_tree.kill(process.pid)
        process.wait()
        raise


def _start(name: str, argv: Sequence[str], environ: Mapping[str, str], files: _Files) -> subprocess.Popen[bytes]:
    """Start a program below a keeper, which is the process returned; without one where no process can be a keeper."""
    reading, writing = os.pipe()
    kept = sys.platform == "linux"
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", _KEEPER, str(writing), *argv] if kept else list(argv),
            env=dict(environ),
            pass_fds=(writing,) if kept else (),
            start_new_session=True,
            stderr=files.complaints,
            stdin=subprocess.DEVNULL,
            stdout=files.output,
        )
        os.close(writing)
        writing = -1
        with open(reading, "rb", closefd=False) as report:
            number = report.read()  # until the program has begun
    except OSError as error:
        raise _not_started(error, name) from error
    finally:
        os.close(reading)
        if writing != -1:
            os.close(writing)
    if number:
        process.wait()
        raise _not_started(OSError(int(number), os.strerror(int(number))), name)
    return process


def _not_started(error: OSError, name: str) -> Exception:
    if error.errno in _NOT_EXECUTABLE:
        remedy = "make it executable (chmod +x)"
    elif error.errno in _NOT_INSTALLED:
        remedy = "install it or correct PATH"
    else:
        return error
    return errors.ProvisionerError("missing-cli", f"{name} cannot be started: {error.strerror}; {remedy}")


def _await(process: subprocess.Popen[bytes], name: str, files: _Files, timeout_s: float, permit: Permit) -> int:
    give_up_at_s = clock.monotonic_s() + timeout_s
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_LOOK_EVERY_S)
        permit.require(f"{name} ended")
        if clock.monotonic_s() >= give_up_at_s:
            raise errors.ProvisionerError("timeout", f"{name} took longer than {timeout_s:g} s and was ended")
        _require_room(files, name)


def _require_room(files: _Files, name: str) -> None:
    """Do not let a program fill the disk until its time is over."""
    if files.overflow:
        raise errors.ProvisionerError("malformed", f"{name} printed more than {_MOST_OUTPUT_BYTES >> 20} MiB")


def _end_of(complaints: IO[bytes], environ: Mapping[str, str]) -> str:
    size = complaints.seek(0, os.SEEK_END)
    complaints.seek(max(0, size - _ERRORS_READ_BYTES))
    return redact_end(complaints.read(), environ, _ERRORS_KEPT_BYTES, whole=size <= _ERRORS_READ_BYTES)
