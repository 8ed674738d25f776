"""Running one program for a platform: bounded in time, ended with all that it started, its errors without secrets."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO

from atomic_celery import clock, errors, process_tree
from atomic_celery.fleet.provisioner import Permit
from atomic_celery.provisioners import refusals
from atomic_celery.provisioners.redaction import redact

_LOOK_EVERY_S = 0.05
_MOST_OUTPUT_BYTES = 64 * 1024 * 1024
_ERRORS_READ_BYTES = 1024 * 1024
_ERRORS_KEPT_BYTES = 16 * 1024


def run(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float, permit: Permit) -> bytes:
    """Run a program to its end and return what it printed.

    Args:
        argv: The program and its arguments, which are in no error.
        environ: Its whole environment.
        timeout_s: How long it may take; after that it is ended, together with every process that it started.
        permit: It is ended in the same way when this ends.

    Raises:
        ProvisionerError: missing-cli, auth, exit, timeout, or malformed where it printed more than 64 MiB.
        CallGivenUp: The permit ended; nothing of it runs on.
    """
    name = os.path.basename(argv[0])
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as complaints:
        permit.require(f"running {name}")
        # Files, not pipes: whoever inherits a pipe and lives on would keep us waiting for its end.
        process, mark = _start(argv, environ, output, complaints)
        try:
            exit_code = _await(process, name, timeout_s, permit)
        except BaseException:
            _end(process, mark)
            raise
        said = redact(_tail(complaints), environ)[-_ERRORS_KEPT_BYTES:].strip()
        if exit_code != 0:
            code: errors.ProvisionerFailure = "auth" if refusals.is_refusal(name, exit_code, said) else "exit"
            how = f"exited with {exit_code}" if exit_code > 0 else f"was ended by signal {-exit_code}"
            raise errors.ProvisionerError(code, f"{name} {how}: {said or 'it said nothing'}")
        return _content(output, name)


def _start(
    argv: Sequence[str], environ: Mapping[str, str], output: IO[bytes], complaints: IO[bytes]
) -> tuple[subprocess.Popen[bytes], str]:
    mark = secrets.token_hex(8)
    try:
        process = subprocess.Popen(
            list(argv),
            env={**environ, process_tree.MARK: mark},
            start_new_session=True,
            stderr=complaints,
            stdin=subprocess.DEVNULL,
            stdout=output,
        )
    except OSError as error:
        raise errors.ProvisionerError(
            "missing-cli",
            f"{os.path.basename(argv[0])} cannot be started: {error.strerror}; install it or correct PATH",
        ) from error
    return process, mark


def _await(process: subprocess.Popen[bytes], name: str, timeout_s: float, permit: Permit) -> int:
    give_up_at_s = clock.monotonic_s() + timeout_s
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_LOOK_EVERY_S)
        permit.require(f"{name} ended")
        if clock.monotonic_s() >= give_up_at_s:
            raise errors.ProvisionerError("timeout", f"{name} took longer than {timeout_s:g} s and was ended")


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    process_tree.kill(process.pid)
    process_tree.kill_marked(mark)  # what left both its parent and its session
    process.wait()


def _tail(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _ERRORS_READ_BYTES))
    return file.read().decode(errors="replace")


def _content(file: IO[bytes], name: str) -> bytes:
    if file.seek(0, os.SEEK_END) > _MOST_OUTPUT_BYTES:
        raise errors.ProvisionerError("malformed", f"{name} printed more than {_MOST_OUTPUT_BYTES >> 20} MiB")
    file.seek(0)
    return file.read()
