"""A network between a worker and its database that a test can break, and mend again.

| fault | open connections | new connections | after `restore` |
|---|---|---|---|
| `pause` | held: bytes arrive later | accepted, held | all held bytes arrive |
| `blackhole` | swallowed: bytes never arrive | accepted, swallowed | those connections are cut |
| `drop` | cut | refused | accepted again |
| `hold(request)` | held from that request on | the same | all held bytes arrive |
| `drop_next_response(request)` | who sends it: carried out, then cut | as usual | as usual |

*request* is a part of a statement's text, as psycopg2 sends it. (psycopg 3 sends a statement that
it repeats by a name only.)
"""

from __future__ import annotations

import contextlib
import enum
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from urllib.parse import urlsplit

CHUNK_BYTES = 65536
READY_FOR_QUERY = b"Z\x00\x00\x00\x05"


class Mode(enum.Enum):
    """What the network does at the moment."""

    FORWARD = enum.auto()
    PAUSE = enum.auto()
    BLACKHOLE = enum.auto()
    DROP = enum.auto()


class Proxy:
    """A TCP proxy on 127.0.0.1 in front of *host*:*port*, forwarding from `start` on."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = _bound(0)
        self.port = int(self._listener.getsockname()[1])
        self._changed = threading.Condition()
        self._mode = Mode.FORWARD
        self._held_request: bytes | None = None
        self._doomed: Doomed | None = None
        self._links: set[Link] = set()

    @classmethod
    def before(cls, url: str) -> Proxy:
        """Return one in front of the server that a database's URL names."""
        parts = urlsplit(url)
        return cls(str(parts.hostname), int(parts.port or 5432))

    def __enter__(self) -> Proxy:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def url(self, server_url: str) -> str:
        """Return *server_url* with the proxy's address in place of the server's."""
        parts = urlsplit(server_url)
        user, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}").geturl()

    @property
    def connection_count(self) -> int:
        """How many connections are open through the proxy."""
        with self._changed:
            return len(self._links)

    def links(self) -> list[Link]:
        """Return the connections that are open through the proxy."""
        with self._changed:
            return list(self._links)

    def start(self) -> None:
        """Accept connections."""
        self._listener.listen()
        threading.Thread(target=self._accept, args=[self._listener], daemon=True).start()

    def pause(self) -> None:
        """Hold every byte, either way, until `restore`."""
        self._become(Mode.PAUSE)

    def blackhole(self) -> None:
        """Accept everything and answer nothing."""
        self._become(Mode.BLACKHOLE)

    def drop(self) -> None:
        """Cut every connection and refuse new ones."""
        self._become(Mode.DROP)
        _close(self._listener)
        # Bound but not listening: the port stays ours, and connecting is refused.
        self._listener = _bound(self.port)
        self._cut(self.links())

    def hold(self, request: bytes) -> None:
        """Hold each connection that sends *request* (part of a statement), before it arrives."""
        with self._changed:
            self._held_request = request

    def drop_next_response(self, request: bytes, *, after: bytes | None = None) -> threading.Event:
        """Let the server carry out the next *request*, but lose its answer and the connection.

        Args:
            after: Only on a connection that sent this before.

        Returns:
            An event that is set once the answer was lost.
        """
        doomed = Doomed(request, after)
        with self._changed:
            self._doomed = doomed
        return doomed.lost

    def restore(self) -> None:
        """Forward again, whatever was broken before."""
        self._cut([link for link in self.links() if link.swallowed])
        with self._changed:
            refusing = self._mode is Mode.DROP
            self._held_request = None
            self._doomed = None
            for link in self._links:
                link.held = False
        self._become(Mode.FORWARD)
        if refusing:
            self.start()

    def close(self) -> None:
        """Cut every connection and stop."""
        self._become(Mode.DROP)
        _close(self._listener)
        self._cut(self.links())

    def admit(self, link: Link) -> bool:
        """Wait until *link* may pass on what it has read; False: throw it away.

        Raises:
            ConnectionAbortedError: The link was cut while it waited.
        """
        with self._changed:
            link.waiting = self._holds(link)
            self._changed.wait_for(lambda: link.cut or not self._holds(link))
            link.waiting = False
            if link.cut:
                raise ConnectionAbortedError
            return self._mode is not Mode.BLACKHOLE

    def inspect(self, link: Link, request: bytes) -> None:
        """Look for the requests that a test waits for."""
        with self._changed:
            if self._held_request and self._held_request in request:
                link.held = True
            if self._doomed and self._doomed.sentenced(link, request):
                link.doomed, self._doomed = self._doomed, None

    def forget(self, link: Link) -> None:
        """Count *link* no longer."""
        with self._changed:
            self._links.discard(link)

    def _holds(self, link: Link) -> bool:
        return link.held or self._mode is Mode.PAUSE

    def _become(self, mode: Mode) -> None:
        with self._changed:
            self._mode = mode
            self._changed.notify_all()

    def _cut(self, links: list[Link]) -> None:
        with self._changed:
            for link in links:
                link.cut = True
            self._changed.notify_all()
        for link in links:
            link.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        link = Link(self, client, server)
        with self._changed:
            refused = self._mode is Mode.DROP
            self._links.add(link)
        if refused:
            link.close()
        else:
            link.start()


class Doomed:
    """A request whose answer will be lost."""

    def __init__(self, request: bytes, after: bytes | None) -> None:
        self._request, self._after = request, after
        self._ready: set[Link] = set()
        self.lost = threading.Event()

    def sentenced(self, link: Link, request: bytes) -> bool:
        """Whether this is the request, sent on a connection that met the condition."""
        if self._after is not None and link not in self._ready:
            if self._after not in request:
                return False
            self._ready.add(link)
            request = request.partition(self._after)[2]
        return self._request in request


class Link:
    """One client's connection and its counterpart to the server."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._threads = [
            threading.Thread(target=self._pump, args=[self._requests], daemon=True),
            threading.Thread(target=self._pump, args=[self._responses], daemon=True),
        ]
        self.cut = False
        self.doomed: Doomed | None = None
        self.held = False
        self.swallowed = False
        self.waiting = False

    def start(self) -> None:
        """Forward in both directions."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End both connections; whoever waits on them notices at once."""
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._proxy.forget(self)

    def _pump(self, forward: Callable[[], None]) -> None:
        with contextlib.suppress(OSError):
            forward()
        self.close()

    def _requests(self) -> None:
        while chunk := self._client.recv(CHUNK_BYTES):
            self._proxy.inspect(self, chunk)
            self._pass_on(chunk, self._server)

    def _responses(self) -> None:
        lost = b""
        while chunk := self._server.recv(CHUNK_BYTES):
            if self.doomed is None:
                self._pass_on(chunk, self._client)
                continue
            lost += chunk
            # The server has committed once it says that it is ready for the next query.
            if lost[-6:-1] == READY_FOR_QUERY:
                self.close()
                self.doomed.lost.set()
                return

    def _pass_on(self, chunk: bytes, receiver: socket.socket) -> None:
        if self._proxy.admit(self):
            receiver.sendall(chunk)
        else:
            self.swallowed = True


def _bound(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    return listener


def _close(listener: socket.socket) -> None:
    # Closing alone does not wake a thread that accepts; shutting down does, where it is allowed.
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
