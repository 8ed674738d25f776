"""What a host needs before it can start: everything that is missing, at once, each with its fix."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from atomic_celery import errors, identity
from atomic_celery.config import Settings
from atomic_celery.store import clouds, open_store
from atomic_celery.store.credentials import SecretFile
from atomic_celery.store.urls import StoreUrl

HEADLINE = "Worker host setup is incomplete"

# File systems that several machines see: SQLite's locks do not reach across them.
_NETWORK_FILE_SYSTEM = re.compile(
    r"9p|afs|beegfs|ceph|cifs|davfs|fuse\.(glusterfs|s3fs|sshfs)|gfs2|glusterfs|gpfs|lustre|nfs4?|ocfs2|smb3|smbfs|vboxsf"
)
_MOUNTS = Path("/proc/self/mounts")


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that keeps a host from starting, and what to do about it."""

    what: str
    fix: str


@dataclass(slots=True)
class Findings:
    """What a check found; a warning keeps nobody from starting."""

    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Say every problem and its fix; empty when there is none."""
        if not self.problems:
            return ""
        lines = [f"{HEADLINE}:"]
        for problem in self.problems:
            lines += [f"  - {problem.what}", f"    fix: {problem.fix}"]
        return "\n".join(lines)


def examine(url_text: str, settings: Settings | None, *, create: bool = True) -> Findings:
    """Look at the machine, the credential, the driver and the database of a host.

    The database is asked only when nothing before it is wrong, and never for longer than it may take to connect and
    answer once.

    Args:
        url_text: The database.
        settings: The host's settings; None, if they are wrong: then what does not depend on them.
        create: Make the tables of a SQLite database that has none, as the first worker does.
    """
    findings = Findings()
    findings.problems += _containment()
    if settings is not None:
        findings.problems += _credential(settings, findings.warnings)
    try:
        url = StoreUrl.parse(url_text)
    except errors.ConfigError as error:
        findings.problems.append(Problem(f"the database URL is wrong: {error}", "correct broker_url"))
        return findings
    missing_driver = list(_driver(url))
    shared_file = list(_network_file(url))
    findings.problems += missing_driver + shared_file
    if not findings.problems and settings is not None:
        findings.problems += _database(url_text, url, settings, create=create)
    return findings


def _containment() -> Iterator[Problem]:
    if os.name != "posix" or identity.start_of(os.getpid()) is None:
        yield Problem(
            "this system cannot contain the processes of a task (process groups and start times are needed)",
            "run the worker on Linux or macOS, or in a Linux container",
        )


def _credential(settings: Settings, warnings: list[str]) -> Iterator[Problem]:
    if settings.auth and (missing := clouds.missing_library(settings.auth)):
        yield _problem_of(missing)
    for option, path in (("password-file", settings.password_file), ("token-file", settings.token_file)):
        if path is None:
            continue
        seen = SecretFile(option, path).look()
        if seen.fault:
            yield Problem(f"the {option} {path} {seen.fault}", seen.fix)
        if seen.exposed:
            warnings.append(f"other users can read the {option} {path}: chmod 600 {path}")


def _driver(url: StoreUrl) -> Iterator[Problem]:
    try:
        url.require_driver()
    except errors.ConfigError as error:
        yield _problem_of(error)


def _problem_of(missing: errors.ConfigError) -> Problem:
    what, _, fix = str(missing).partition(": ")
    return Problem(what, fix)


def _network_file(url: StoreUrl) -> Iterator[Problem]:
    if url.path is None:
        return
    kind = file_system_of(Path(url.path))
    if kind is not None and _NETWORK_FILE_SYSTEM.fullmatch(kind):
        yield Problem(
            f"the SQLite file {url.path} is on a network file system ({kind}), where SQLite loses writes",
            "put it on a local disk, or use PostgreSQL for more than one machine",
        )


def file_system_of(path: Path, mounts: Path = _MOUNTS) -> str | None:
    """Return the type of the file system that holds *path*; None where the system does not say."""
    try:
        table = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return None
    around = {str(parent) for parent in (path.resolve(), *path.resolve().parents)}
    holding = [(len(point), kind) for _, point, kind, *_ in table if _unescaped(point) in around]
    # The last mount on the longest path is the one in force.
    return max(reversed(holding), key=lambda entry: entry[0])[1] if holding else None


def _unescaped(mount_point: str) -> str:
    return mount_point.encode().decode("unicode_escape") if "\\" in mount_point else mount_point


def _database(url_text: str, url: StoreUrl, settings: Settings, *, create: bool) -> Iterator[Problem]:
    try:
        within_s = settings.connect_timeout_s + settings.statement_timeout_s
        with closing(open_store(url_text, settings, create=create)) as store, store.deadline(within_s):
            store.schema.require()
            with suppress(errors.StoreBusy):  # whoever else writes now keeps nobody from starting
                store.reads.probe_write()
    except errors.SchemaMismatch as error:
        yield Problem(error.what, error.fix)
    except errors.ConfigError as error:
        yield Problem(str(error), "correct the setting that the message names")
    except errors.StoreError as error:
        yield Problem(
            f"the database {url} cannot be used: {error}",
            "check that it runs, that this machine reaches it, that the credential is right and its user may write",
        )
