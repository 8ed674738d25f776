"""A secret comes from one place, is read for every connection, and shows up nowhere."""

from __future__ import annotations

import logging
import os
import traceback
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy.exc import OperationalError

from atomic_celery.config import Settings
from atomic_celery.errors import ConfigError, StoreUnavailable
from atomic_celery.store import credentials
from atomic_celery.store.credentials import SecretFile, UrlPassword
from atomic_celery.store.store import open_store
from atomic_celery.store.urls import StoreUrl
from tests.support.roles import Role

SECRET = "s3cr3t-κ"


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(SECRET)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_a_file_holds_the_secret_and_maybe_an_end_of_line(secret_file: Path, ending: str) -> None:
    secret_file.write_bytes(f"{SECRET}{ending}".encode())
    assert SecretFile("password_file", str(secret_file)).secret() == SECRET


def test_spaces_belong_to_the_secret(secret_file: Path) -> None:
    secret_file.write_text(" two words \n")
    assert SecretFile("token_file", str(secret_file)).secret() == " two words "


def test_a_file_is_read_again_every_time(secret_file: Path) -> None:
    credential = SecretFile("token_file", str(secret_file))
    credential.secret()
    secret_file.write_text("rotated")
    assert credential.secret() == "rotated"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"one\ntwo\n", "holds more than one line"),
        (b"\xff\xfe", "token_file .* cannot be read: it is not UTF-8"),
        (b"a\0b", "holds NUL"),
        (b"x" * 70_000, "cannot be read: it is longer than 64 KiB"),
    ],
)
def test_a_useless_file_is_refused_for_now(secret_file: Path, content: bytes, complaint: str) -> None:
    secret_file.write_bytes(content)
    with pytest.raises(StoreUnavailable, match=complaint) as refused:
        SecretFile("token_file", str(secret_file)).secret()
    assert str(secret_file) in str(refused.value)
    assert "one" not in str(refused.value).replace("more than one", "")


def test_a_missing_file_says_which_and_why(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"password_file .*/gone cannot be read: No such file"):
        SecretFile("password_file", str(tmp_path / "gone")).secret()


@pytest.mark.timeout(20)
def test_what_is_no_file_is_refused_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path, why in ((fifo, "no regular file"), (Path("/dev/zero"), "no regular file"), (tmp_path, "Is a directory")):
        with pytest.raises(StoreUnavailable, match=f"token_file {path} cannot be read: .*{why}"):
            SecretFile("token_file", str(path)).secret()
    with pytest.raises(StoreUnavailable, match="its name holds NUL"):
        SecretFile("token_file", "a\0b").secret()


def test_a_file_may_be_behind_a_link_that_is_swung_over(secret_file: Path, tmp_path: Path) -> None:
    """As Kubernetes does when a Secret changes."""
    link, other = tmp_path / "link", tmp_path / "other"
    link.symlink_to(secret_file)
    credential = SecretFile("token_file", str(link))
    assert credential.secret() == SECRET
    other.write_text("rotated")
    (tmp_path / "new").symlink_to(other)
    (tmp_path / "new").rename(link)
    assert credential.secret() == "rotated"


def test_a_file_is_found_whatever_the_working_directory_becomes(
    secret_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(secret_file.parent)
    credential = SecretFile("password_file", secret_file.name)
    monkeypatch.chdir("/")
    assert credential.secret() == SECRET


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_file_that_others_can_read_is_used_and_warned_about_once(
    secret_file: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    secret_file.chmod(mode)
    credential = SecretFile("password_file", str(secret_file))
    assert [credential.secret(), credential.secret()] == [SECRET, SECRET]
    [warning] = caplog.records
    assert warning.levelno == logging.WARNING
    assert f"other users can read password_file {secret_file} (mode {mode:04o})" in caplog.text
    assert SECRET not in caplog.text


def test_a_private_file_is_not_warned_about(secret_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret_file.chmod(0o400)
    SecretFile("password_file", str(secret_file)).secret()
    assert not caplog.records


def test_exactly_one_credential_is_taken(secret_file: Path) -> None:
    with_password = StoreUrl.parse(f"postgresql://u:{SECRET}@h/db")
    without = StoreUrl.parse("postgresql://u@h/db")
    by_file = Settings(password_file=str(secret_file))

    assert isinstance(credentials.choose(with_password, Settings()), UrlPassword)
    assert credentials.choose(without, Settings()).secret() is None
    assert credentials.choose(without, by_file).secret() == SECRET
    assert credentials.choose(without, Settings(token_file=str(secret_file))).secret() == SECRET
    with pytest.raises(ConfigError, match="and the URL; keep exactly one") as refused:
        credentials.choose(with_password, by_file)
    assert SECRET not in str(refused.value)


def test_sqlite_takes_no_credential(secret_file: Path) -> None:
    url = StoreUrl.parse("sqlite:///fleet.db")
    assert credentials.choose(url, Settings()).secret() is None
    with pytest.raises(ConfigError, match="SQLite file takes no password"):
        credentials.choose(url, Settings(password_file=str(secret_file)))


def test_a_credential_is_safe_to_print(secret_file: Path) -> None:
    url = StoreUrl.parse(f"postgresql://u:{SECRET}@h/db")
    shown = repr([UrlPassword(url), SecretFile("token_file", str(secret_file))])
    assert SECRET not in shown
    assert str(secret_file) in shown


class Login:
    """A role that connects by one driver or the other."""

    def __init__(self, role: Role, driver: str) -> None:
        self.role = role
        self.url = StoreUrl.parse(role.url.replace("postgresql", f"postgresql+{driver}"))

    def engine(self, credential: credentials.Credential) -> sqlalchemy.Engine:
        engine = sqlalchemy.create_engine(
            self.url.sqlalchemy_url(),
            connect_args=self.url.connect_parameters(5),
            poolclass=sqlalchemy.NullPool,
        )
        credentials.present(credential, engine)
        return engine


@pytest.fixture(params=["psycopg2", "psycopg"])
def login(request: pytest.FixtureRequest, role: Role) -> Login:
    return Login(role, request.param)


def test_a_rotated_secret_is_used_by_the_next_connection(login: Login, secret_file: Path) -> None:
    engine = login.engine(SecretFile("token_file", str(secret_file)))
    login.role.rotate_password(SECRET)
    with engine.connect() as opened_before:
        login.role.rotate_password("rotated")
        secret_file.write_text("rotated\n")
        with engine.connect() as opened_after:
            user = sqlalchemy.text("SELECT current_user")
            assert opened_after.execute(user).scalar() == login.role.name
            assert opened_before.execute(user).scalar() == login.role.name


def test_a_refused_secret_is_in_no_message(login: Login, secret_file: Path) -> None:
    login.role.rotate_password("another")
    engine = login.engine(SecretFile("password_file", str(secret_file)))
    with pytest.raises(OperationalError) as refused:
        engine.connect()
    assert "password authentication failed" in str(refused.value)
    assert SECRET not in "".join(traceback.format_exception(refused.value))
    assert SECRET not in repr(engine)


def test_an_unreadable_secret_surfaces_as_itself(login: Login, tmp_path: Path) -> None:
    engine = login.engine(SecretFile("password_file", str(tmp_path / "gone")))
    with pytest.raises(StoreUnavailable, match=r"password_file .* cannot be read"):
        engine.connect()


def test_a_url_without_a_password_leaves_it_to_libpq(login: Login, tmp_path: Path) -> None:
    passfile = tmp_path / "pgpass"
    passfile.write_text(f"*:*:*:{login.role.name}:from-pgpass\n")
    passfile.chmod(0o600)
    login.role.rotate_password("from-pgpass")
    store = open_store(f"{login.url.reveal()}?passfile={passfile}", Settings())
    assert store.schema.version() is None
    store.close()


def test_a_password_in_the_url_is_in_no_error(login: Login) -> None:
    login.role.rotate_password("another")
    text = login.url.reveal().replace(login.role.name, f"{login.role.name}:{SECRET}", 1)
    store = open_store(text, Settings())
    with pytest.raises(StoreUnavailable, match="password authentication failed") as refused:
        store.schema.version()
    assert SECRET not in "".join(traceback.format_exception(refused.value))
    assert SECRET not in f"{store.url} {store.url!r} {store.settings!r}"
    store.close()
