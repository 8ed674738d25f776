"""One request over HTTP that ends in time, whatever the other side does."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any

from atomic_celery import clock, errors
from atomic_celery.fleet.provisioner import Permit

_LOOK_EVERY_S = 0.05
_MOST_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, repr=False)
class Answer:
    """What a server said."""

    status: int
    headers: Mapping[str, str]
    """Their names in lower case."""
    body: bytes

    def text(self, name: str) -> str:
        """Return a text of its JSON object; empty where there is none."""
        try:
            value = json.loads(self.body)[name]
        except (KeyError, RecursionError, TypeError, ValueError):
            return ""
        return value if isinstance(value, str) else ""


def post(url: str, headers: Mapping[str, str], body: Any, timeout_s: float, permit: Permit) -> Answer:
    """Send *body* as JSON and return the answer, whatever its status. Redirections are not followed.

    Raises:
        ProvisionerError: unavailable, or timeout.
        CallGivenUp: The permit ended; the answer will be dropped.
    """
    request = urllib.request.Request(
        url,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "User-Agent": "atomic_celery", **headers},
        method="POST",
    )
    exchange = _Exchange(request, timeout_s)
    give_up_at_s = clock.monotonic_s() + timeout_s
    while not exchange.over.wait(_LOOK_EVERY_S):
        permit.require(f"{request.host} answered")
        if clock.monotonic_s() >= give_up_at_s:
            raise errors.ProvisionerError("timeout", f"{request.host} did not answer within {timeout_s:g} s")
    return exchange.answer()


class _Exchange:
    """A request on a thread of its own: a socket's timeout does not bound a server that sends byte by byte."""

    def __init__(self, request: urllib.request.Request, timeout_s: float) -> None:
        self.over = threading.Event()
        self._request, self._timeout_s = request, timeout_s
        self._answer: Answer | None = None
        self._failure: Exception | None = None
        threading.Thread(target=self._run, name="atomic-web", daemon=True).start()

    def answer(self) -> Answer:
        """Return it, once the exchange is over."""
        if self._answer is not None:
            return self._answer
        reason = getattr(self._failure, "reason", self._failure)
        if isinstance(reason, TimeoutError):
            raise errors.ProvisionerError("timeout", f"{self._request.host} did not answer in time")
        raise errors.ProvisionerError("unavailable", f"{self._request.host} cannot be reached: {reason}")

    def _run(self) -> None:
        try:
            self._answer = self._exchange()
        except Exception as failure:  # raised again where somebody waits
            self._failure = failure
        finally:
            self.over.set()

    def _exchange(self) -> Answer:
        opener = urllib.request.build_opener(_Stay)
        try:
            response = opener.open(self._request, timeout=self._timeout_s)
        except urllib.error.HTTPError as refusal:
            response = refusal
        with response:
            headers: Message = response.headers
            return Answer(
                response.status, {name.lower(): value for name, value in headers.items()}, response.read(_MOST_BYTES)
            )


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_arguments: Any, **_options: Any) -> None:
        """Do not follow: what we prove who we are with is for one server."""
