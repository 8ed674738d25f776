"""The event lines a host prints: ``name key=value …``, or one JSON object a line.

Worker events: ready, claimed, released (with its outcome), lost, draining, drained, stopped,
degraded, recovered.
"""

from __future__ import annotations

import json
import shlex
import threading
from datetime import datetime, timezone
from typing import TextIO

from atomic_celery.clock import Clock, SystemClock

Value = str | int | float | bool | None


class Lines:
    """Writes event lines to *stream*; safe from any thread, and never an error of the caller's."""

    def __init__(self, stream: TextIO | None, *, as_json: bool = False, clock: Clock | None = None) -> None:
        self._stream, self._as_json = stream, as_json
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()

    def say(self, event: str, **fields: Value) -> None:
        """Print *event* with the fields that are not None, in the order given."""
        self.say_all([(event, fields)])

    def say_all(self, events: list[tuple[str, dict[str, Value]]]) -> None:
        """Print several events with one write."""
        text = "".join(f"{self._line(event, fields)}\n" for event, fields in events)
        if self._stream is None or not text:
            return
        with self._lock:
            try:
                self._stream.write(_encodable(text, self._stream.encoding))
                self._stream.flush()
            except (OSError, ValueError):
                # Whoever read the lines has gone. The work goes on without a listener.
                self._stream = None

    def _line(self, event: str, fields: dict[str, Value]) -> str:
        known = {key: value for key, value in fields.items() if value is not None}
        if self._as_json:
            at = datetime.fromtimestamp(self._clock.now().wall_s, timezone.utc)
            return json.dumps({"event": event, "at": at.isoformat(timespec="milliseconds"), **known})
        return " ".join([event, *(f"{key}={shlex.quote(_plain(value))}" for key, value in known.items())])


def _encodable(text: str, encoding: str | None) -> str:
    """Return *text* with what the stream cannot write as an escape; without this one such line would be the last."""
    encoding = encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _plain(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
