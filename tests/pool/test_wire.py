"""Frames survive every way in which a stream can be cut."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from atomic_celery.concurrency import wire
from atomic_celery.concurrency.tokens import TokenPipe

frames = st.builds(
    wire.Frame,
    kind=st.integers(0, 255),
    entry=st.integers(0, 2**32 - 1),
    ticket=st.integers(0, 2**64 - 1),
    at_s=st.floats(allow_nan=False),
    payload=st.binary(max_size=100),
)


def encoded(frame: wire.Frame) -> bytes:
    length = len(frame.payload)
    return wire.header(frame.kind, frame.ticket, entry=frame.entry, at_s=frame.at_s, length=length) + frame.payload


@given(st.lists(frames, max_size=20), st.lists(st.integers(1, 60)))
def test_frames_arrive_whole_however_the_stream_is_cut(sent: list[wire.Frame], cuts: list[int]) -> None:
    stream = b"".join(map(encoded, sent))
    reader, received, at = wire.FrameReader(), [], 0
    for size in cuts:
        received += reader.feed(stream[at : at + size])
        at += size
    received += reader.feed(stream[at:])
    assert received == sent


def test_a_token_goes_to_one_taker_only() -> None:
    pipe = TokenPipe()
    try:
        assert pipe.take(1) == 0
        pipe.put(5)
        assert [pipe.take(2), pipe.take(10), pipe.take(1)] == [2, 3, 0]
    finally:
        pipe.close()


def test_tokens_are_kept_when_the_other_side_is_gone() -> None:
    pipe = TokenPipe()
    os.close(pipe.read_fd)
    pipe.put(1)  # no child, no error
    pipe.read_fd = os.open(os.devnull, os.O_RDONLY)
    pipe.close()
