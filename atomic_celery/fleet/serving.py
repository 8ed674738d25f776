"""Counts over HTTP: ``/scaling`` for autoscalers, ``/metrics`` for Prometheus, ``/healthz`` for who restarts it.

A client that takes longer than `CLIENT_LIMIT_S` is cut off, and no more than `CLIENTS_AT_ONCE` are served at a time, so
that nobody can hold this up.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from atomic_celery.errors import ConfigError
from atomic_celery.fleet.exposition import FleetExposition

if TYPE_CHECKING:
    from atomic_celery.fleet.exposition import Exposition
    from atomic_celery.fleet.reading import Reader

Answer = tuple[int, str, bytes]
"""A status, a content type and a body."""

CLIENT_LIMIT_S = 10.0
CLIENTS_AT_ONCE = 32
_JSON = "application/json"


def address_of(listen: str) -> tuple[str, int]:
    """Read ``host:port``; an IPv6 address in brackets.

    Raises:
        ConfigError: It is none.
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535 or not host:
        raise ConfigError(f"an address to listen on looks like 127.0.0.1:9464, got {listen!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


class _Handler(BaseHTTPRequestHandler):
    """One request; a connection has no second one."""

    server: Server
    server_version, sys_version = "atomic_celery", ""

    def do_GET(self) -> None:
        """Answer."""
        status, content_type, body = self.server.pages.answer(self.path.partition("?")[0])
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing: scrapes are many, and say nothing of the fleet."""


class Pages:
    """What a process that has only metrics answers."""

    def __init__(self, exposition: Exposition) -> None:
        self._exposition = exposition

    def answer(self, path: str) -> Answer:
        """Return the status, the content type and the body for *path*."""
        if path == "/healthz":
            return 200, "text/plain; charset=utf-8", b"ok\n"
        if path == "/metrics":
            return 200, self._exposition.content_type, self._exposition.text()
        return 404, _JSON, _json({"error": "there are /metrics and /healthz"})


class SignalPages(Pages):
    """What a process that reads the scaling signal answers."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(FleetExposition(reader))
        self._reader = reader

    def answer(self, path: str) -> Answer:
        """Return the status, the content type and the body for *path*."""
        if path != "/scaling":
            return super().answer(path)
        scaling = self._reader.read().scaling
        if scaling is None:
            # Why is for the log of whoever runs this: an error may name the server and the user.
            return 503, _JSON, _json({"error": "the database cannot be read"})
        return 200, _JSON, _json(scaling.document())


class Server(ThreadingHTTPServer):
    """Serves *pages*.

    Args:
        listen: ``host:port``; port 0 takes any free one.

    Raises:
        ConfigError: The address cannot be listened on.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, listen: str, pages: Pages) -> None:
        self.pages = pages
        self._room = threading.BoundedSemaphore(CLIENTS_AT_ONCE)
        host, port = address_of(listen)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise ConfigError(f"cannot listen on {listen}: {error}") from error

    @property
    def address(self) -> str:
        """Where it listens, as ``host:port``."""
        host, port = self.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a client on a thread, if there is room for one more."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a client, and cut it off when it takes too long, however it does that."""
        limit = threading.Timer(CLIENT_LIMIT_S, _cut_off, (request,))
        limit.daemon = True
        limit.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            limit.cancel()
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away."""


def _cut_off(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _json(document: Mapping[str, object]) -> bytes:
    return f"{json.dumps(document)}\n".encode()
