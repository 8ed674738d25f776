"""Acting as a GitHub App: tokens for one repository and one permission, made for an hour and kept in no file.

The app's private key signs a claim to be the app; GitHub answers it with a token for one installation. Neither key,
claim nor token is ever printed, logged or stored.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from dateutil.parser import isoparse

from atomic_celery import errors, secret_files
from atomic_celery.clock import NEVER, Clock, Moment, SystemClock
from atomic_celery.fleet.provisioner import Permit
from atomic_celery.provisioners import configuration, web
from atomic_celery.provisioners.configuration import GithubAppSettings
from atomic_celery.provisioners.redaction import redact

_VARIABLES = {
    "app_id": "ATOMIC_GITHUB_APP_ID",
    "installation_id": "ATOMIC_GITHUB_APP_INSTALLATION_ID",
    "private_key_file": "ATOMIC_GITHUB_APP_PRIVATE_KEY_FILE",
    "repository": "ATOMIC_GITHUB_APP_REPOSITORY",
    "host": "ATOMIC_GITHUB_HOST",
    "api_url": "ATOMIC_GITHUB_API_URL",
}
_KEYS = {
    "app_id": "appId",
    "installation_id": "installationId",
    "private_key_file": "privateKeyFile",
    "repository": "repository",
    "host": "host",
    "api_url": "apiUrl",
}
_NEEDED = ("app_id", "installation_id", "private_key_file", "repository")
_GITHUB = "github.com"
_EARLY_S = 300.0
_CLAIM_LASTS_S = 540  # GitHub accepts 600
_CLAIM_BACKDATED_S = 60
_CLOCKS_DIFFER_S = 30.0
_SAID_AT_MOST = 1000
_INHERITED = ("GH_TOKEN", "GITHUB_TOKEN", "GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN", "GH_HOST")


@dataclass(frozen=True, slots=True)
class _App:
    app_id: str
    installation_id: str
    private_key_file: str
    owner: str
    repository: str
    host: str
    api_url: str


class GithubApp:
    """An app that `gh` acts as, under a token that is always good for 5 minutes more.

    Raises:
        ConfigError: Something is missing or wrong, or other users can read the private key.
    """

    def __init__(
        self, settings: GithubAppSettings, environ: Mapping[str, str] = os.environ, clock: Clock | None = None
    ) -> None:
        self._app = _complete(settings, environ)
        self._clock = clock or SystemClock()
        self._token, self._refresh_at = "", NEVER
        self._skew_s = 0.0  # GitHub's clock less this machine's
        _require_libraries()
        try:
            _read_key(self._app.private_key_file)
        except errors.ProvisionerError as error:
            raise errors.ConfigError(str(error)) from None

    def environ(self, environ: Mapping[str, str], timeout_s: float, permit: Permit) -> dict[str, str]:
        """Return *environ* for one `gh` command, with a token in it and no other credential of `gh`.

        Raises:
            ProvisionerError: auth, unavailable, timeout or malformed: there is no token.
            CallGivenUp: The permit ended.
        """
        if not self._token or self._refresh_at.reached(self._clock.now()):
            self._mint(timeout_s, permit)
        own = {name: value for name, value in environ.items() if name not in _INHERITED}
        on_server = _is_enterprise_server(self._app.host)
        own["GH_ENTERPRISE_TOKEN" if on_server else "GH_TOKEN"] = self._token
        return {**own, "GH_PROMPT_DISABLED": "1", **({} if self._app.host == _GITHUB else {"GH_HOST": self._app.host})}

    def _mint(self, timeout_s: float, permit: Permit) -> None:
        asked_at = self._clock.now()
        answer = self._ask(timeout_s, permit)
        if answer.status == 401 and self._corrects_the_clock(answer, asked_at):
            answer = self._ask(timeout_s, permit)
        if answer.status != 201:
            raise self._refusal(answer)
        # By GitHub's clock, which made the end; ours may be wrong.
        self._token, lives_s = _token_in(answer, _date_of(answer) or asked_at.wall_s)
        self._refresh_at = asked_at.later(lives_s - _EARLY_S)

    def _ask(self, timeout_s: float, permit: Permit) -> web.Answer:
        url = f"{self._app.api_url}/app/installations/{self._app.installation_id}/access_tokens"
        body = {"repositories": [self._app.repository], "permissions": {"actions": "write"}}
        headers = {
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {self._claim()}",
            "X-GitHub-Api-Version": "2022-11-28",
        }
        permit.require("asking GitHub for a token")
        return web.post(url, headers, body, timeout_s, permit)

    def _claim(self) -> str:
        import jwt

        now_s = int(self._clock.now().wall_s + self._skew_s)
        claim = {"iat": now_s - _CLAIM_BACKDATED_S, "exp": now_s + _CLAIM_LASTS_S, "iss": self._app.app_id}
        try:
            signed: str = jwt.encode(claim, _read_key(self._app.private_key_file), algorithm="RS256")
        except (TypeError, ValueError, jwt.PyJWTError):  # its text may quote the key
            raise errors.ProvisionerError(
                "auth", f"the private key {self._app.private_key_file} is no RSA key in PEM form"
            ) from None
        return signed

    def _corrects_the_clock(self, answer: web.Answer, asked_at: Moment) -> bool:
        """Take GitHub's time from a refusal; whether that may have been the reason for it."""
        now_s = _date_of(answer)
        if now_s is None or abs(now_s - asked_at.wall_s - self._skew_s) <= _CLOCKS_DIFFER_S:
            return False
        self._skew_s = now_s - asked_at.wall_s
        return True

    def _refusal(self, answer: web.Answer) -> errors.ProvisionerError:
        said = redact(answer.text("message"), {"TOKEN": self._token})[:_SAID_AT_MOST]
        limited = _is_limited(answer)
        if limited or answer.status >= 500:
            why = "limits the rate of requests" if limited else "has an error of its own"
            return errors.ProvisionerError("unavailable", f"{self._app.host} {why} ({answer.status}): {said}")
        what = f"a token for {self._app.owner}/{self._app.repository} to app {self._app.app_id}"
        return errors.ProvisionerError("auth", f"{self._app.host} refused {what} ({answer.status}): {said}")


def _is_limited(answer: web.Answer) -> bool:
    """Whether GitHub asks to come back later; of a secondary limit only the words may say so."""
    if answer.status != 403:
        return answer.status == 429
    no_more = answer.headers.get("x-ratelimit-remaining") == "0"
    return no_more or "retry-after" in answer.headers or "rate limit" in answer.text("message").lower()


def _date_of(answer: web.Answer) -> float | None:
    try:
        return parsedate_to_datetime(answer.headers["date"]).timestamp()
    except (KeyError, ValueError):
        return None


def _token_in(answer: web.Answer, now_s: float) -> tuple[str, float]:
    """Return the token of an answer and how long it lives, by the clock of whoever made it."""
    token, ends = answer.text("token"), answer.text("expires_at")
    try:
        expires: datetime = isoparse(ends)
    except ValueError:
        token = ""
    if not re.fullmatch(r"[!-~]+", token):  # it goes into an environment
        raise errors.ProvisionerError("malformed", "GitHub's answer has no token, or none with an end")
    if expires.tzinfo is None:
        expires = expires.replace(tzinfo=timezone.utc)
    return token, expires.timestamp() - now_s


def _complete(settings: GithubAppSettings, environ: Mapping[str, str]) -> _App:
    said = replace(
        settings,
        **{
            item.name: getattr(settings, item.name) or environ.get(_VARIABLES[item.name]) or None
            for item in fields(settings)
        },
    )
    missing = [f"{_KEYS[name]} or {_VARIABLES[name]}" for name in _NEEDED if not getattr(said, name)]
    if missing:
        raise errors.ConfigError(f"auth.githubApp needs {', '.join(missing)}")
    given = {key: value for name, key in _KEYS.items() if (value := getattr(said, name))}
    if problems := configuration.problems_of_github_app(given):
        raise errors.ConfigError("; ".join(problems))
    owner, _, repository = str(said.repository).partition("/")
    host = (said.host or _GITHUB).lower()
    api_url = (said.api_url or _api_url(host)).rstrip("/")
    _require_https(api_url)
    return _App(
        str(said.app_id), str(said.installation_id), str(said.private_key_file), owner, repository, host, api_url
    )


def _api_url(host: str) -> str:
    return f"https://{host}/api/v3" if _is_enterprise_server(host) else f"https://api.{host}"


def _is_enterprise_server(host: str) -> bool:
    return host != _GITHUB and not host.endswith(".ghe.com")


def _require_https(api_url: str) -> None:
    try:
        parts = urlsplit(api_url)
        port = parts.port
    except ValueError as error:
        raise errors.ConfigError(f"auth.githubApp.apiUrl makes no sense: {error}") from None
    local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if not parts.hostname or port == 0 or parts.scheme not in (("http", "https") if local else ("https",)):
        raise errors.ConfigError("auth.githubApp.apiUrl must begin with https:// (http:// for localhost only)")


def _read_key(path: str) -> str:
    """Return the private key, as long as nobody else can read it."""
    try:
        content = secret_files.read(path)
    except OSError as error:
        raise errors.ProvisionerError("auth", f"cannot read the private key {path}: {error.strerror}") from None
    if content.is_exposed:
        raise errors.ProvisionerError(
            "auth", f"other users can read the private key {path} (mode {content.mode:04o}): chmod 600 {path}"
        )
    return content.text


def _require_libraries() -> None:
    missing = [name for name in ("jwt", "cryptography") if importlib.util.find_spec(name) is None]
    if missing:
        raise errors.ConfigError(f"auth.githubApp needs {' and '.join(missing)}: pip install 'atomic_celery[fleet]'")
