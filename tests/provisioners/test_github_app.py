"""Acting as a GitHub App: for one repository and one permission, for an hour, and nothing of it is ever shown."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from atomic_celery.errors import CallGivenUp, ConfigError, ProvisionerError
from atomic_celery.fleet.provisioner import Permit
from atomic_celery.provisioners import from_mapping
from atomic_celery.provisioners.configuration import GithubAppSettings
from atomic_celery.provisioners.github_app import GithubApp
from tests.provisioners.conftest import JOURNAL, PRESETS
from tests.provisioners.github import APP, INSTALLATION, GitHub, Reply, key_pair
from tests.support.clocks import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall_s=1_800_000_000)


@pytest.fixture
def github(clock: ManualClock) -> Iterator[GitHub]:
    with GitHub(lambda: clock.wall_s) as github:
        yield github


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "app.pem"
    path.write_text(key_pair()[0])
    path.chmod(0o600)
    return path


@pytest.fixture
def settings(github: GitHub, key_file: Path) -> GithubAppSettings:
    return GithubAppSettings(
        app_id=APP,
        installation_id=str(INSTALLATION),
        private_key_file=str(key_file),
        repository="acme/flows",
        api_url=github.url,
    )


@pytest.fixture
def app(settings: GithubAppSettings, clock: ManualClock) -> GithubApp:
    return GithubApp(settings, {}, clock)


def token(app: GithubApp, permit: Permit, timeout_s: float = 30) -> str:
    return app.environ({}, timeout_s, permit)["GH_TOKEN"]


def test_a_token_is_for_one_repository_and_one_permission(app: GithubApp, github: GitHub, permit: Permit) -> None:
    assert token(app, permit) == github.token(1)
    [asked] = github.asked
    assert asked["body"] == {"repositories": ["flows"], "permissions": {"actions": "write"}}
    assert asked["path"] == f"/app/installations/{INSTALLATION}/access_tokens"


def test_a_token_lasts_an_hour_and_is_replaced_5_minutes_early(
    app: GithubApp, github: GitHub, permit: Permit, clock: ManualClock
) -> None:
    first = token(app, permit)
    clock.advance(3600 - 301)
    assert token(app, permit) == first
    clock.advance(2)
    assert token(app, permit) == github.token(2) != first


@pytest.mark.parametrize("which", ["monotonic_s", "wall_s"])
def test_a_token_ends_by_whichever_clock_is_first(
    app: GithubApp, github: GitHub, permit: Permit, clock: ManualClock, which: str
) -> None:
    token(app, permit)
    setattr(clock, which, getattr(clock, which) + 3400)
    assert token(app, permit) == github.token(2)


@pytest.mark.parametrize("skew_s", [-3600, -90, -30, 0, 30, 400, 3600])
def test_a_clock_that_is_wrong_does_not_matter(
    app: GithubApp, github: GitHub, permit: Permit, clock: ManualClock, skew_s: float
) -> None:
    github.wall_s = lambda: clock.wall_s + skew_s
    first = token(app, permit)
    assert first in (github.token(1), github.token(2))
    clock.advance(3600 - 301)
    assert token(app, permit) == first
    clock.advance(2)
    assert token(app, permit) != first
    assert len(github.refused) <= 1  # the skew is remembered


def test_a_command_gets_the_token_and_no_other_credential_of_gh(app: GithubApp, github: GitHub, permit: Permit) -> None:
    inherited = {"PATH": "/bin", "GH_TOKEN": "old", "GITHUB_TOKEN": "old", "GH_ENTERPRISE_TOKEN": "old", "GH_HOST": "x"}
    given = app.environ(inherited, 30, permit)
    assert given == {"PATH": "/bin", "GH_TOKEN": github.token(1), "GH_PROMPT_DISABLED": "1"}
    assert inherited["GH_TOKEN"] == "old"


@pytest.mark.parametrize(
    ("host", "variable"), [("ghe.example.com", "GH_ENTERPRISE_TOKEN"), ("acme.ghe.com", "GH_TOKEN")]
)
def test_gh_is_told_which_host_it_is_for(
    settings: GithubAppSettings, github: GitHub, permit: Permit, clock: ManualClock, host: str, variable: str
) -> None:
    given = GithubApp(replace(settings, host=host), {}, clock).environ({}, 30, permit)
    assert given == {variable: github.token(1), "GH_HOST": host, "GH_PROMPT_DISABLED": "1"}


@pytest.mark.parametrize(
    ("host", "url"),
    [
        (None, "https://api.github.com"),
        ("GitHub.com", "https://api.github.com"),
        ("acme.ghe.com", "https://api.acme.ghe.com"),
        ("ghe.example.com", "https://ghe.example.com/api/v3"),
    ],
)
def test_the_api_has_its_usual_place(settings: GithubAppSettings, host: str | None, url: str) -> None:
    assert GithubApp(replace(settings, host=host, api_url=None), {})._app.api_url == url


@pytest.mark.parametrize(
    "url",
    ["http://github.example.com", "http://10.0.0.1/api/v3", "ftp://x", "https://", "api.github.com", "https://x:0"],
)
def test_only_https_will_do(settings: GithubAppSettings, url: str) -> None:
    with pytest.raises(ConfigError, match="must begin with https://"):
        GithubApp(replace(settings, api_url=url), {})


@pytest.mark.parametrize("url", ["https://[::1", "https://x:99999", "https://x:port"])
def test_a_url_that_makes_no_sense_is_refused_at_the_start(settings: GithubAppSettings, url: str) -> None:
    with pytest.raises(ConfigError, match="apiUrl makes no sense"):
        GithubApp(replace(settings, api_url=url), {})


@pytest.mark.parametrize("url", ["http://localhost:1", "http://127.0.0.1:1", "http://[::1]:1/", "https://x/api/v3/"])
def test_plain_http_will_do_on_this_machine(settings: GithubAppSettings, url: str) -> None:
    assert GithubApp(replace(settings, api_url=url), {})._app.api_url == url.rstrip("/")


ENVIRONMENT = {
    "ATOMIC_GITHUB_APP_ID": "from-environment",
    "ATOMIC_GITHUB_APP_INSTALLATION_ID": "99",
    "ATOMIC_GITHUB_APP_REPOSITORY": "other/repository",
    "ATOMIC_GITHUB_HOST": "ghe.example.com",
    "ATOMIC_GITHUB_API_URL": "https://api.example.com",
}


def test_what_the_file_leaves_out_comes_from_the_environment(key_file: Path) -> None:
    environ = {**ENVIRONMENT, "ATOMIC_GITHUB_APP_PRIVATE_KEY_FILE": str(key_file)}
    app = GithubApp(GithubAppSettings(repository="acme/flows"), environ)._app
    assert (app.app_id, app.installation_id, app.private_key_file) == ("from-environment", "99", str(key_file))
    assert (app.owner, app.repository) == ("acme", "flows")  # the file wins
    assert (app.host, app.api_url) == ("ghe.example.com", "https://api.example.com")


def test_everything_that_is_missing_is_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"needs appId or ATOMIC_GITHUB_APP_ID, installationId or .*, repository or"):
        GithubApp(GithubAppSettings(), {})


def test_the_environment_is_checked_like_the_file(settings: GithubAppSettings) -> None:
    with pytest.raises(ConfigError, match="must look like owner/name"):
        GithubApp(replace(settings, repository=None), {"ATOMIC_GITHUB_APP_REPOSITORY": "flows"})
    for number in ("../../x", "²", "-1"):
        with pytest.raises(ConfigError, match="installationId must be a number"):
            GithubApp(replace(settings, installation_id=None), {"ATOMIC_GITHUB_APP_INSTALLATION_ID": number})
    with pytest.raises(ConfigError, match="host must be the name of a host"):
        GithubApp(settings, {"ATOMIC_GITHUB_HOST": "https://ghe.example.com"})


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_key_that_others_can_read_is_refused(settings: GithubAppSettings, key_file: Path, mode: int) -> None:
    key_file.chmod(mode)
    with pytest.raises(ConfigError, match=rf"other users can read the private key .*\(mode {mode:04o}\): chmod 600"):
        GithubApp(settings, {})


def test_a_key_that_is_missing_is_refused(settings: GithubAppSettings) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the private key /gone\.pem: No such file"):
        GithubApp(replace(settings, private_key_file="/gone.pem"), {})


@pytest.mark.timeout(20)
def test_a_key_that_is_no_file_keeps_nobody_waiting(settings: GithubAppSettings, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(ConfigError, match=r"cannot read the private key .*it is no regular file"):
        GithubApp(replace(settings, private_key_file=str(tmp_path / "fifo")), {})


def test_an_end_without_a_zone_is_utc(
    app: GithubApp, github: GitHub, permit: Permit, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        ends = datetime.fromtimestamp(clock.wall_s + 3600, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
        github.instead = lambda: github.reply(201, {"token": "ghs_first", "expires_at": ends})
        token(app, permit)
        github.instead = None
        clock.advance(3600 - 301)
        assert token(app, permit) == "ghs_first"
        clock.advance(2)
        assert token(app, permit) != "ghs_first"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_key_that_others_can_read_later_is_refused_then(
    app: GithubApp, github: GitHub, key_file: Path, permit: Permit
) -> None:
    key_file.chmod(0o644)
    with pytest.raises(ProvisionerError, match="other users can read the private key") as refused:
        token(app, permit)
    assert refused.value.code == "auth"
    assert github.asked == []


def test_a_file_that_holds_no_key_is_named_and_not_quoted(
    settings: GithubAppSettings, key_file: Path, permit: Permit
) -> None:
    key_file.write_text("-----BEGIN RSA PRIVATE KEY-----\nnot-a-key\n-----END RSA PRIVATE KEY-----\n")
    with pytest.raises(ProvisionerError, match="is no RSA key in PEM form") as refused:
        token(GithubApp(settings, {}), permit)
    assert refused.value.code == "auth"
    assert "not-a-key" not in str(refused.value)


def test_another_app_s_key_is_refused(app: GithubApp, github: GitHub, permit: Permit) -> None:
    github.instead = lambda: github.reply(401, {"message": "Integration not found"})
    with pytest.raises(
        ProvisionerError, match=r"refused a token for acme/flows to app Iv23liExample \(401\)"
    ) as refused:
        token(app, permit)
    assert refused.value.code == "auth"
    assert len(github.asked) == 1


FAILURES: list[tuple[Callable[[GitHub], Reply], str, str]] = [
    (lambda github: github.reply(403, {"message": "Resource not accessible"}), "auth", "403"),
    (lambda github: github.reply(404, {"message": "Not Found"}), "auth", "404"),
    (lambda github: github.reply(422, {"message": "The permissions requested are not granted"}), "auth", "422"),
    (
        lambda github: github.reply(403, {"message": "x"}, **{"Retry-After": "60"}),
        "unavailable",
        "limits",
    ),
    (lambda github: github.reply(403, {"message": "x"}, **{"X-RateLimit-Remaining": "0"}), "unavailable", "limits"),
    (
        lambda github: github.reply(403, {"message": "You have exceeded a secondary rate limit."}),
        "unavailable",
        "limits",
    ),
    (lambda github: github.reply(429, {"message": "slow down"}), "unavailable", "limits the rate of requests"),
    (lambda github: github.reply(500, {"message": "Server Error"}), "unavailable", "an error of its own"),
    (lambda github: (503, {}, b"<html>"), "unavailable", "503"),
    (lambda github: github.reply(302, {}, Location="http://127.0.0.1:1/steal"), "auth", "302"),
    (lambda github: (201, {}, b"<html>"), "malformed", "no token"),
    (lambda github: github.reply(201, {"token": ""}), "malformed", "no token"),
    (lambda github: github.reply(201, {"token": "ghs_x", "expires_at": "soon"}), "malformed", "none with an end"),
    (
        lambda github: github.reply(201, {"token": "ghs_\0", "expires_at": "2126-01-01T00:00:00Z"}),
        "malformed",
        "no token",
    ),
    (lambda github: github.reply(201, {"token": "a b", "expires_at": "2126-01-01T00:00:00Z"}), "malformed", "no token"),
    (lambda github: github.reply(201, ["token"]), "malformed", "no token"),
    (lambda github: (201, {"Date": "the day before"}, b"[" * 100_000), "malformed", "no token"),
]


@pytest.mark.parametrize(("instead", "code", "said"), FAILURES)
def test_a_failure_has_its_code(
    app: GithubApp, github: GitHub, permit: Permit, instead: Callable[[GitHub], Reply], code: str, said: str
) -> None:
    github.instead = lambda: instead(github)
    with pytest.raises(ProvisionerError, match=said) as failed:
        token(app, permit)
    assert failed.value.code == code
    github.instead = None
    assert token(app, permit).startswith("ghs_")


def test_a_github_that_cannot_be_reached_is_unavailable(settings: GithubAppSettings, permit: Permit) -> None:
    with pytest.raises(ProvisionerError, match="cannot be reached") as failed:
        token(GithubApp(replace(settings, api_url="http://127.0.0.1:1"), {}), permit)
    assert failed.value.code == "unavailable"


@pytest.mark.parametrize("how", ["silent", "dripping"])
def test_a_github_that_does_not_finish_is_a_timeout(app: GithubApp, github: GitHub, permit: Permit, how: str) -> None:
    def silent() -> Reply:
        github.dripping.wait(60)
        return github.reply(500, {})

    github.instead = (lambda: (0, {}, b"")) if how == "dripping" else silent
    with pytest.raises(ProvisionerError, match=r"did not answer") as failed:
        token(app, permit, timeout_s=0.5)
    assert failed.value.code == "timeout"


def test_a_request_that_is_given_up_is_not_waited_for(app: GithubApp, github: GitHub) -> None:
    given_up = threading.Event()

    def give_up() -> Reply:
        given_up.set()
        return 0, {}, b""

    github.instead = give_up
    with pytest.raises(CallGivenUp):
        token(app, Permit(lambda: True, given_up), timeout_s=60)


def test_nothing_is_asked_without_the_right_to(app: GithubApp, github: GitHub) -> None:
    with pytest.raises(CallGivenUp):
        token(app, Permit(lambda: False, threading.Event()))
    assert github.asked == []


def test_a_secret_in_an_answer_is_not_repeated(app: GithubApp, github: GitHub, permit: Permit) -> None:
    github.instead = lambda: github.reply(403, {"message": f"bad token {github.token(7)}"})
    with pytest.raises(ProvisionerError) as refused:
        token(app, permit)
    assert github.token(7) not in str(refused.value)
    assert "eyJ" not in str(refused.value)


def test_a_long_answer_is_cut_and_no_half_of_a_secret_is_left(app: GithubApp, github: GitHub, permit: Permit) -> None:
    secret = github.token(7)
    github.instead = lambda: github.reply(403, {"message": f"{'x' * 980} {secret}{secret * 1000}"})
    with pytest.raises(ProvisionerError) as refused:
        token(app, permit)
    assert len(str(refused.value)) < 1200
    assert "ghs_" not in str(refused.value)


def preset_with(settings: GithubAppSettings, **commands: Any) -> dict[str, Any]:
    given: dict[str, Any] = json.loads(
        (PRESETS / "github-actions.json").read_text().replace("OWNER/REPOSITORY", "acme/flows")
    )
    given["auth"]["githubApp"] |= {
        "appId": settings.app_id,
        "installationId": INSTALLATION,
        "privateKeyFile": settings.private_key_file,
        "apiUrl": settings.api_url,
    }
    return {**given, **commands}


@pytest.fixture
def real_github(key_file: Path) -> Iterator[tuple[GitHub, GithubAppSettings]]:
    with GitHub() as github:
        yield github, GithubAppSettings(app_id=APP, private_key_file=str(key_file), api_url=github.url)


def test_only_gh_gets_the_token(
    real_github: tuple[GitHub, GithubAppSettings],
    programs: Callable[[str, str], Path],
    permit: Permit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    github, settings = real_github
    monkeypatch.setenv("GH_TOKEN", "the-controller-s-own")
    for name in ("gh", "other"):
        programs(name, f"echo {name} $GH_TOKEN >> {tmp_path}/noted; echo '[]'")
    made = from_mapping(preset_with(settings, list=[["gh"], ["other"], ["gh"]]), JOURNAL)
    assert list(made.list(permit)) == []
    noted = (tmp_path / "noted").read_text().splitlines()
    assert noted == [f"gh {github.token(1)}", "other the-controller-s-own", f"gh {github.token(1)}"]


def test_a_command_that_prints_its_token_is_not_quoted(
    real_github: tuple[GitHub, GithubAppSettings], programs: Callable[[str, str], Path], permit: Permit
) -> None:
    _github, settings = real_github
    programs("gh", 'echo "refused: $GH_TOKEN" >&2; exit 1')
    with pytest.raises(ProvisionerError) as refused:
        from_mapping(preset_with(settings), JOURNAL).list(permit)
    assert str(refused.value) == "the list command gh exited with 1: refused: [redacted]"
