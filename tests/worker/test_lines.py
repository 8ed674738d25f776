"""Event lines: for people and shells, or for programs."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex

import pytest

from atomic_celery.lines import Lines
from tests.support.clocks import ManualClock


def test_a_line_is_a_name_and_values_that_a_shell_reads_back() -> None:
    out = io.StringIO()
    Lines(out).say("ready", host="h 1", slots=4, journal="a'b", idle=True, instance=None)
    assert shlex.split(out.getvalue()) == [
        "ready",
        "host=h 1",
        "slots=4",
        "journal=a'b",
        "idle=true",
    ]


def test_json_lines_say_when_and_keep_types() -> None:
    out = io.StringIO()
    lines = Lines(out, as_json=True, clock=ManualClock(wall_s=0.25))
    lines.say("degraded", failures=2, retry_in_ms=2000, why=None)
    assert json.loads(out.getvalue()) == {
        "event": "degraded",
        "at": "1970-01-01T00:00:00.250+00:00",
        "failures": 2,
        "retry_in_ms": 2000,
    }


def test_several_lines_are_written_at_once_and_in_order() -> None:
    out = io.StringIO()
    Lines(out).say_all([("claimed", {"child": "a"}), ("claimed", {"child": "b"})])
    assert out.getvalue() == "claimed child=a\nclaimed child=b\n"


@pytest.mark.parametrize(("encoding", "said"), [("ascii", r"caf\xe9"), ("utf-8", r"caf\udce9")])
def test_what_the_stream_cannot_write_is_escaped_and_more_lines_follow(encoding: str, said: str) -> None:
    raw = io.BytesIO()
    lines = Lines(io.TextIOWrapper(raw, encoding=encoding))
    lines.say("degraded", error="café" if encoding == "ascii" else b"caf\xe9".decode(errors="surrogateescape"))
    lines.say("recovered")
    assert raw.getvalue().decode().splitlines() == [f"degraded error='{said}'", "recovered"]


def test_a_reader_that_went_away_costs_nothing_but_its_lines() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w")
    lines = Lines(stream)
    lines.say("ready")
    lines.say("drained")
    Lines(None).say("ready")
    with contextlib.suppress(BrokenPipeError):  # what could not be written is tried again here
        stream.close()
