"""Counts over HTTP: ``/scaling`` for autoscalers, ``/metrics`` for Prometheus, ``/healthz`` for who restarts it.

A client that takes longer than `CLIENT_LIMIT_S` is cut off, and no more than `CLIENTS_AT_ONCE` are served at a time:
when more come, those go first that have been connected for longest and have asked nothing. So nobody can hold this up.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import socketserver
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any

from atomic_celery import clock
from atomic_celery.errors import ConfigError
from atomic_celery.fleet.exposition import FleetExposition

if TYPE_CHECKING:
    from atomic_celery.fleet.exposition import Exposition
    from atomic_celery.fleet.reading import Reader

Answer = tuple[int, str, bytes]
"""A status, a content type and a body."""

CLIENT_LIMIT_S = 10.0
CLIENTS_AT_ONCE = 100
_JSON = "application/json"
_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%\w+)?)\]|([^\s:\[\]]+)):([0-9]{1,5})")


def address_of(listen: str) -> tuple[str, int]:
    """Read ``host:port``; an IPv6 address in brackets.

    Raises:
        ConfigError: It is none.
    """
    found = _ADDRESS.fullmatch(listen)
    if found is None or int(found[3]) > 65_535:
        raise ConfigError(f"an address to listen on looks like 127.0.0.1:9464 or [::1]:9464, got {listen!r}")
    return found[1] or found[2], int(found[3])


class _Handler(BaseHTTPRequestHandler):
    """One request; a connection has no second one."""

    server: Server
    server_version, sys_version = "atomic_celery", ""

    def do_GET(self) -> None:
        """Answer."""
        self.server.clients.has_asked(self.request)
        self._answer(*self.server.pages.answer(self.path.partition("?")[0]))

    do_HEAD = do_GET  # noqa: N815

    def send_error(self, code: int, *_: str | None, **__: str | None) -> None:
        """Refuse a request that is none, or that asks for something else than to look; repeats nothing of it."""
        self.request_version = "HTTP/1.0"  # also to garbage, which would pass for a version that knows no errors
        if code == 501:
            return self._answer(405, _JSON, _json({"error": "there are GET and HEAD"}), Allow="GET, HEAD")
        return self._answer(code, _JSON, _json({"error": self.responses.get(code, ("refused", ""))[0]}))

    def _answer(self, status: int, content_type: str, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing: scrapes are many, and say nothing of the fleet."""


class Pages:
    """What a process that has only metrics answers."""

    _there_are = "there are /metrics and /healthz"

    def __init__(self, exposition: Exposition) -> None:
        self._exposition = exposition

    def answer(self, path: str) -> Answer:
        """Return the status, the content type and the body for *path*."""
        if path == "/healthz":
            return 200, "text/plain; charset=utf-8", b"ok\n"
        if path == "/metrics":
            return 200, self._exposition.content_type, self._exposition.text()
        return 404, _JSON, _json({"error": self._there_are})


class SignalPages(Pages):
    """What a process that reads the scaling signal answers."""

    _there_are = "there are /metrics, /scaling and /healthz"

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


class Clients:
    """Who is connected, since when, and whether they have said what they want. Safe from any thread."""

    def __init__(self) -> None:
        # The oldest first, as dictionaries are.
        self._silent: dict[socket.socket, float] = {}
        self._asking: dict[socket.socket, float] = {}
        self._lock = threading.Lock()

    def enter(self, client: socket.socket) -> bool:
        """Note who has come; False: there is no room, as everybody has asked something and waits for the answer."""
        with self._lock:
            if len(self._silent) + len(self._asking) >= CLIENTS_AT_ONCE:
                if not self._silent:
                    return False
                self._cut_off(self._silent, next(iter(self._silent)))
            self._silent[client] = clock.monotonic_s()
            return True

    def has_asked(self, client: socket.socket) -> None:
        """Note that somebody has said what they want."""
        with self._lock:
            if client in self._silent:
                self._asking[client] = self._silent.pop(client)

    def leave(self, client: socket.socket) -> None:
        """Forget somebody, before the connection is closed: its descriptor may be another one's at once."""
        with self._lock:
            self._silent.pop(client, None)
            self._asking.pop(client, None)

    def cut_off_the_slow(self) -> None:
        """Let those go that have been here for too long, whatever they do."""
        with self._lock:
            latest_s = clock.monotonic_s() - CLIENT_LIMIT_S
            for clients in (self._silent, self._asking):
                for client in [client for client, since_s in clients.items() if since_s <= latest_s]:
                    self._cut_off(clients, client)

    @staticmethod
    def _cut_off(clients: dict[socket.socket, float], client: socket.socket) -> None:
        del clients[client]
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


class Server(socketserver.ThreadingTCPServer):
    """Serves *pages*.

    `http.server` has one that asks the name service for its own name first, and may wait long for it.

    Args:
        listen: ``host:port``; port 0 takes any free one.

    Raises:
        ConfigError: The address cannot be listened on.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, listen: str, pages: Pages) -> None:
        self.pages, self.clients = pages, Clients()
        host, port = address_of(listen)
        try:
            self.address_family = _family_of(host)
            super().__init__((host, port), _Handler)
        except (OSError, UnicodeError) as error:  # the latter: a name that no name service could have
            raise ConfigError(f"cannot listen on {listen}: {error}") from error

    @property
    def address(self) -> str:
        """Where it listens, as ``host:port``."""
        host, port = self.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    def service_actions(self) -> None:
        """Cut off who is too slow; called before each look for new clients."""
        self.clients.cut_off_the_slow()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a client on a thread, if there is room for one more."""
        if self.clients.enter(request):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Let go of a client, however it ended."""
        self.clients.leave(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away."""


def _family_of(host: str) -> socket.AddressFamily:
    """Return the kind of address to listen on: the old one where a name has both."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return min((each[0] for each in found), key=lambda family: family != socket.AF_INET)


def _json(document: Mapping[str, object]) -> bytes:
    return f"{json.dumps(document)}\n".encode()
