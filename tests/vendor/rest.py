"""A small REST server for a vendor's command line: routes by method and path, and a log of what was asked."""

from __future__ import annotations

import json
import re
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

Route = Callable[..., Any]


class NoSuchThing(Exception):
    """A 404; carries the vendor's document."""

    def __init__(self, document: Any, status: int = 404) -> None:
        super().__init__(str(document))
        self.document, self.status = document, status


class Rest:
    """Serves the methods that `routes` names, `{"GET /things/(.+)": "thing"}`: each gets groups, query and body."""

    routes: ClassVar[dict[str, str]]

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.asked: list[tuple[str, str]] = []
        self.instead: tuple[int, Any] | None = None
        """What is said to everything, if anything."""
        self._lock = threading.RLock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)

    def answer(self, method: str, target: str, headers: Any, body: bytes) -> tuple[int, Any]:
        """Return the status and the document of an answer."""
        del headers
        url = urlsplit(target)
        with self._lock:
            self.asked.append((method, url.path))
            if self.instead is not None:
                return self.instead
            for route, name in self.routes.items():
                wanted, _, pattern = route.partition(" ")
                if re.fullmatch(wanted, method) and (found := re.fullmatch(pattern, url.path)):
                    given = json.loads(body) if body and body[:1] in b"{[" else None
                    query = {key: values[0] for key, values in parse_qs(url.query).items()}
                    try:
                        return 200, getattr(self, name)(*found.groups(), query=query, body=given)
                    except NoSuchThing as nothing:
                        return nothing.status, nothing.document
        return 404, {"message": f"no route for {method} {target}"}


def _handler(rest: Rest) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, document = rest.answer(self.command, self.path, self.headers, body)
            text = b"" if document is None else json.dumps(document).encode()
            self.send_response(204 if status == 200 and document is None else status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_POST(self) -> None:
            self.do_GET()

        def do_PUT(self) -> None:
            self.do_GET()

        def do_PATCH(self) -> None:
            self.do_GET()

        def do_DELETE(self) -> None:
            self.do_GET()

        def log_message(self, *arguments: Any) -> None:
            pass

    return Handler
