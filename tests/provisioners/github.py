"""GitHub's side of an app's authentication, on this machine: checks a claim as the documentation says."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from email.utils import format_datetime
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

APP, INSTALLATION = "Iv23liExample", 12345678
Reply = tuple[int, dict[str, str], bytes]


@lru_cache
def key_pair() -> tuple[str, str]:
    """Return an app's private and public key."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private.decode(), public.decode()


class GitHub:
    """Answers at `url`. What it does instead of answering is set by `instead`."""

    def __init__(self, wall_s: Callable[[], float] = time.time) -> None:
        self.wall_s = wall_s
        self.asked: list[dict[str, Any]] = []
        self.refused: list[str] = []
        self.instead: Callable[[], Reply] | None = None
        self.dripping = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> GitHub:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.dripping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)

    @property
    def url(self) -> str:
        """Where its API is."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def token(self, number: int) -> str:
        """Return the token that it gives away as the *number*-th: in the long form that came in 2026."""
        return f"ghs_{APP}_eyJ0eXAi.eyJuIjo{number}.c2lnbmF0dXJl"

    def answer(self, path: str, authorization: str, body: bytes) -> Reply:
        """Return what is said to a request for a token."""
        asked = json.loads(body)
        self.asked.append({"path": path, "body": asked})
        if self.instead is not None:
            return self.instead()
        if reason := self._objection(authorization):
            self.refused.append(reason)
            return self.reply(401, {"message": reason, "documentation_url": "https://docs.github.com/rest"})
        if path != f"/app/installations/{INSTALLATION}/access_tokens":
            return self.reply(404, {"message": "Not Found"})
        ends = datetime.fromtimestamp(int(self.wall_s()) + 3600, timezone.utc)
        given = {"token": self.token(len(self.asked)), "expires_at": ends.strftime("%Y-%m-%dT%H:%M:%SZ"), **asked}
        return self.reply(201, given)

    def reply(self, status: int, document: Any, **headers: str) -> Reply:
        """Return an answer with the date of this server's clock."""
        now = datetime.fromtimestamp(self.wall_s(), timezone.utc)
        return status, {"Date": format_datetime(now, usegmt=True), **headers}, json.dumps(document).encode()

    def _objection(self, authorization: str) -> str | None:
        scheme, _, claim = authorization.partition(" ")
        if scheme != "Bearer":
            return "A JSON web token could not be decoded"
        try:
            said = jwt.decode(
                claim, key_pair()[1], algorithms=["RS256"], options={"verify_exp": False, "verify_iat": False}
            )
        except jwt.PyJWTError:
            return "A JSON web token could not be decoded"
        if str(said["iss"]) != APP:
            return "Integration not found"
        if said["iat"] > self.wall_s() + 1:
            return "'Issued at' claim ('iat') must be an Integer representing the time that the assertion was issued"
        if said["exp"] < self.wall_s():
            return "'Expiration time' claim ('exp') must be a numeric value representing the future time"
        if said["exp"] > self.wall_s() + 600:
            return "'Expiration time' claim ('exp') is too far in the future"
        return None


def _handler(github: GitHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, headers, answer = github.answer(self.path, self.headers.get("Authorization", ""), body)
            if status == 0:  # an answer that begins and does not end
                self._drip()
                return
            self.send_response_only(status)
            for name, value in {**headers, "Content-Length": str(len(answer))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        def _drip(self) -> None:
            self.send_response_only(201)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            with contextlib.suppress(OSError):  # the other side hung up
                while not github.dripping.wait(0.05):
                    self.wfile.write(b" ")

        def log_message(self, *arguments: Any) -> None:
            pass

    return Handler
