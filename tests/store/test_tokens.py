"""A token is made when a connection needs one, shared until it nears its end, and asked for once at a time."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from atomic_celery import setup_check
from atomic_celery.config import CLOUDS, Settings
from atomic_celery.errors import ConfigError, StoreUnavailable
from atomic_celery.store import clouds, credentials, tokens
from atomic_celery.store.clouds import Login, Minted
from atomic_celery.store.tokens import Token
from atomic_celery.store.urls import StoreUrl
from tests.store.test_credentials import Login as Role
from tests.store.test_credentials import login as login  # a fixture
from tests.support.clocks import ManualClock
from tests.support.waiting import wait_until

HOUR_S = 3600.0


class Cloud:
    """Makes tokens that are numbered, unless it is away."""

    def __init__(self, lives_s: float = HOUR_S) -> None:
        self.asked, self.away, self.lives_s = 0, False, lives_s

    def mint(self) -> Minted:
        self.asked += 1
        if self.away:
            raise StoreUnavailable(f"away, for the {self.asked}. time")
        return Minted(f"token-{self.asked}", self.lives_s)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_token_serves_until_it_nears_its_end(clock: ManualClock) -> None:
    token = Token("auth", Cloud().mint, 30, clock)
    assert [token.secret(), token.secret()] == ["token-1", "token-1"]
    clock.advance(HOUR_S - 121)
    assert token.secret() == "token-1"
    clock.advance(2)
    assert token.secret() == "token-2"


def test_a_token_of_minutes_is_used_for_half_its_life(clock: ManualClock) -> None:
    token = Token("auth", Cloud(lives_s=60).mint, 30, clock)
    token.secret()
    clock.advance(29)
    assert token.secret() == "token-1"
    clock.advance(2)
    assert token.secret() == "token-2"


def test_by_a_clock_that_is_fast_a_fresh_token_has_not_ended(clock: ManualClock) -> None:
    token = Token("auth", Cloud(lives_s=-1800).mint, 30, clock)
    assert [token.secret(), token.secret()] == ["token-1", "token-1"]
    clock.advance(31)
    assert token.secret() == "token-2"


@pytest.mark.parametrize("which", ["monotonic_s", "wall_s"])
def test_a_token_ends_by_whichever_clock_is_first(clock: ManualClock, which: str) -> None:
    token = Token("auth", Cloud().mint, 30, clock)
    token.secret()
    setattr(clock, which, getattr(clock, which) + HOUR_S)
    assert token.secret() == "token-2"


def test_a_slow_answer_does_not_lengthen_a_life(clock: ManualClock) -> None:
    def mint() -> Minted:
        clock.advance(100)
        return Minted(f"token-{clock.monotonic_s:g}", HOUR_S)

    token = Token("auth", mint, 30, clock)
    first = token.secret()
    clock.advance(HOUR_S - 121 - 100)
    assert token.secret() == first
    clock.advance(2)
    assert token.secret() != first


def test_while_the_cloud_is_away_a_token_is_used_to_its_end_and_no_longer(clock: ManualClock) -> None:
    cloud = Cloud()
    token = Token("auth", cloud.mint, 30, clock)
    token.secret()
    cloud.away = True
    clock.advance(HOUR_S - 1)
    assert token.secret() == "token-1"
    clock.advance(2)
    with pytest.raises(StoreUnavailable, match="away"):
        token.secret()
    cloud.away = False
    assert token.secret() == "token-4"


def test_a_doubted_token_is_replaced_and_its_successor_is_not(clock: ManualClock) -> None:
    token = Token("auth", Cloud().mint, 30, clock)
    used = token.secret()
    token.doubt(used)
    assert token.secret() == "token-2"
    token.doubt(used)  # a connection that failed late
    assert token.secret() == "token-2"


def test_a_doubted_token_is_better_than_none(clock: ManualClock) -> None:
    cloud = Cloud()
    token = Token("auth", cloud.mint, 30, clock)
    token.doubt(token.secret())  # the database was away, say
    cloud.away = True
    assert token.secret() == "token-1"
    cloud.away = False
    assert token.secret() == "token-3"


class Crowd:
    """Threads that all want the token while one request is in flight."""

    def __init__(self, answer: Callable[[], Minted], patience_s: float = 30) -> None:
        self.entered, self.let_go, self.asked = threading.Event(), threading.Event(), 0
        self._answer = answer
        self.token = Token("auth", self._mint, patience_s)
        self.got: list[str] = []

    def _mint(self) -> Minted:
        self.asked += 1
        self.entered.set()
        assert self.let_go.wait(60)
        return self._answer()

    def _want(self) -> None:
        try:
            self.got.append(self.token.secret())
        except StoreUnavailable as error:
            self.got.append(str(error))

    def token_or_nothing(self) -> str | None:
        try:
            return self.token.secret()
        except StoreUnavailable:
            return None

    def run(self, size: int) -> None:
        threads = [threading.Thread(target=self._want) for _ in range(size)]
        threads[0].start()
        assert self.entered.wait(60)
        for thread in threads[1:]:
            thread.start()
        wait_until(lambda: sum(map(_waits, threads)) == size)
        self.let_go.set()
        for thread in threads:
            thread.join(60)


def _waits(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code is not tokens._Request.wait.__code__:
        frame = frame.f_back
    return frame is not None


def test_one_request_is_in_flight_and_all_share_its_answer() -> None:
    crowd = Crowd(lambda: Minted("shared", HOUR_S))
    crowd.run(8)
    assert crowd.asked == 1
    assert crowd.got == ["shared"] * 8


def test_all_share_its_failure_too() -> None:
    def fail() -> Minted:
        raise StoreUnavailable("refused")

    crowd = Crowd(fail)
    crowd.run(8)
    assert crowd.asked == 1
    assert crowd.got == ["refused"] * 8


def test_nobody_waits_longer_than_its_patience_and_the_request_goes_on_for_the_next() -> None:
    crowd = Crowd(lambda: Minted("late", HOUR_S), patience_s=0.05)
    with pytest.raises(StoreUnavailable, match=r"auth: no token within 0\.05 s"):
        crowd.token.secret()
    with pytest.raises(StoreUnavailable, match="no token within"):
        crowd.token.secret()
    crowd.let_go.set()
    assert wait_until(crowd.token_or_nothing) == "late"
    assert crowd.asked == 1


def test_a_token_is_safe_to_print(clock: ManualClock) -> None:
    token = Token("auth aws", Cloud().mint, 30, clock)
    secret = token.secret()
    assert secret not in f"{token!r} {Minted(secret, 1)!r}"


def test_a_process_has_one_token_a_login_and_a_forked_child_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clouds, "minter", lambda cloud, login: Cloud().mint)
    tokens.of.cache_clear()
    here = tokens.of("aws", Login("db", 5432, "me"), 30)
    assert tokens.of("aws", Login("db", 5432, "me"), 30) is here
    assert tokens.of("aws", Login("db", 5432, "you"), 30) is not here
    here._lock.acquire()  # as another thread may, at the moment of the fork
    child = os.fork()
    if child == 0:
        fresh = tokens.of("aws", Login("db", 5432, "me"), 30).secret() == "token-1"
        os._exit(0 if fresh else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    tokens.of.cache_clear()


def test_a_connection_is_opened_with_the_token_and_an_expired_one_is_replaced(login: Role, clock: ManualClock) -> None:
    cloud = Cloud()
    login.role.rotate_password("token-1")
    engine = login.engine(Token("auth", cloud.mint, 30, clock))
    with engine.connect(), engine.connect():
        assert cloud.asked == 1

    login.role.rotate_password("token-2")  # as if the first had expired early
    with pytest.raises(OperationalError, match="password authentication failed"):
        engine.connect()
    with engine.connect():
        assert cloud.asked == 2

    clock.advance(HOUR_S)
    login.role.rotate_password("token-3")
    with engine.connect():
        assert cloud.asked == 3


@pytest.mark.parametrize("text", ["postgresql://h/db", "postgresql://u@/db", "postgresql://u@a,b/db"])
def test_a_token_needs_one_host_and_a_user(text: str) -> None:
    with pytest.raises(ConfigError, match="one host and a user"):
        clouds.login_of("aws", StoreUrl.parse(text), {})


def test_a_login_is_completed_from_the_environment_and_by_the_usual_port() -> None:
    environ = {"PGHOST": "db", "PGUSER": "me", "PGPORT": "6000"}
    assert clouds.login_of("aws", StoreUrl.parse("postgresql:///db"), environ) == Login("db", 6000, "me")
    assert clouds.login_of("aws", StoreUrl.parse("postgresql://you@h/db"), {}) == Login("h", 5432, "you")


def test_a_service_account_is_written_as_cloud_sql_knows_it() -> None:
    url = StoreUrl.parse("postgresql://worker%40acme.iam.gserviceaccount.com@h/db")
    with pytest.raises(ConfigError, match=r"write worker%40acme\.iam for the user"):
        clouds.login_of("gcp", url, {})


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_missing_library_is_named_with_its_extra(cloud: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=rf"pip install 'atomic_celery\[{cloud}\]'"):
        clouds.minter(cloud, Login("h", 5432, "u"))
    said = setup_check.examine("postgresql://u@127.0.0.1/db", Settings(auth=cloud)).text()
    assert f"fix: pip install 'atomic_celery[{cloud}]'" in said


def test_a_cloud_and_a_password_are_one_too_many(tmp_path: Path) -> None:
    url = StoreUrl.parse("postgresql://u:secret@h/db")
    with pytest.raises(ConfigError, match="auth aws and the URL; keep exactly one") as refused:
        credentials.choose(url, Settings(auth="aws"))
    assert "secret" not in str(refused.value)
    with pytest.raises(ConfigError, match="token_file and auth are set; a database takes exactly one credential"):
        Settings(auth="gcp", token_file=str(tmp_path))
    with pytest.raises(ConfigError, match="auth must be one of aws, gcp, azure, got 'ibm'"):
        Settings(auth="ibm")


def test_a_sqlite_file_has_no_cloud() -> None:
    with pytest.raises(ConfigError, match="SQLite file takes no password"):
        credentials.choose(StoreUrl.parse("sqlite:///fleet.db"), Settings(auth="azure"))
