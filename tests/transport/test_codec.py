"""Messages survive the table, byte by byte."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import kombu
import pytest
from kombu import serialization

from atomic_celery import errors
from atomic_celery.store import Claimed, Store
from atomic_celery.transport import codec
from tests.transport.conftest import Connect
from tests.transport.inbox import publish

QUEUE = kombu.Queue("texts", routing_key="texts")
TEXTS = {
    "NUL": "before\0after",
    "half a surrogate pair": "a\ud800b",
    "the other half": "\udfff",
    "a whole pair": "\U0001f600",
    "accents": "naïve café",
    "escapes": '\\u0000 "quoted" \\',
    "controls": "".join(map(chr, range(32))),
}


def message(body: Any = "[[], {}, {}]", **parts: Any) -> codec.RawMessage:
    return {
        "body": body,
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"id": "t1", "task": "a.task", "root_id": "r1"},
        "properties": {"priority": 0},
        **parts,
    }


def claimed(payload: str, **parts: Any) -> Claimed:
    told = {"crashes": 0, "task_id": "t1", "revoked": False, "expired": False, "position": 1, **parts}
    return Claimed(id=7, fence=3, queue_id=1, priority=0, payload=payload, **told)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_any_text_comes_back_as_it_was(connect: Connect, text: str) -> None:
    connection = connect()
    publish(connection, QUEUE, {"said": text}, headers={"also": text})
    received = QUEUE(connection.default_channel).get()
    assert received.decode() == {"said": text}
    assert received.headers["also"] == text


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml"])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_any_serializer_and_compression_works(connect: Connect, serializer: str, compression: str | None) -> None:
    if serializer not in serialization.registry._encoders:
        pytest.skip(f"kombu has no {serializer} here")
    connection = connect()
    publish(connection, QUEUE, {"a": [1, "é"]}, serializer=serializer, compression=compression)
    received = QUEUE(connection.default_channel).get(accept=[serializer])
    assert received.decode() == {"a": [1, "é"]}


def test_bytes_of_any_value_come_back(connect: Connect) -> None:
    data = bytes(range(256)) * 3
    connection = connect()
    publish(connection, QUEUE, data, content_type="application/data", content_encoding="binary")
    assert QUEUE(connection.default_channel).get().body == data


def test_a_payload_of_64_mebibytes_fits(connect: Connect) -> None:
    data = "x" * (64 * 2**20)
    connection = connect()
    publish(connection, QUEUE, data)
    received = QUEUE(connection.default_channel).get()
    assert received.decode() == data


def test_a_body_of_text_is_readable_in_the_table(connect: Connect, store: Store) -> None:
    publish(connect(), QUEUE, {"name": "Zoe"})
    [view] = store.reads.messages()
    payload = json.loads(str(store.reads.payload(view.id)))
    assert json.loads(payload["body"]) == {"name": "Zoe"}
    assert "body_encoding" not in payload["properties"]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_task_may_be_called_anything(connect: Connect, store: Store, text: str) -> None:
    connection = connect()
    publish(connection, QUEUE, "x", headers={"id": "t1", "task": text, "root_id": text})
    assert QUEUE(connection.default_channel).get().headers["task"] == text
    [view] = store.reads.messages()
    assert view.task_name == view.root_id


def test_headers_may_hold_what_kombu_can_write(connect: Connect) -> None:
    odd = {
        "moment": datetime(2024, 2, 29, 12, tzinfo=timezone.utc),
        "number": Decimal("1.10"),
        "id": UUID("12345678123456781234567812345678"),
    }
    connection = connect()
    publish(connection, QUEUE, "x", headers=odd)
    assert QUEUE(connection.default_channel).get().headers == odd


def test_a_property_that_is_not_json_is_left_out(connect: Connect) -> None:
    connection = connect()
    publish(connection, QUEUE, "x", reply_to="me", signal=object())
    properties = QUEUE(connection.default_channel).get().properties
    assert properties["reply_to"] == "me"
    assert "signal" not in properties


@pytest.mark.parametrize(
    ("said", "stored"), [(None, 0), (0, 0), (5, 5), (9, 9), (10, 9), (-3, 0), ("7", 7), ("high", 0)]
)
def test_priorities_are_kept_within_0_and_9(said: Any, stored: int) -> None:
    assert codec.pack(message(properties={"priority": said}), "", "q").priority == stored


@pytest.mark.parametrize(
    ("eta", "due_ms"),
    [
        (None, None),
        ("2024-01-01T00:00:00+00:00", 1704067200000),
        ("2024-01-01T00:00:00Z", 1704067200000),
        ("2024-01-01T01:00:00.250+01:00", 1704067200250),
        ("2024-01-01T00:00:00", 1704067200000),
        ("next week", None),
        (12, None),
    ],
)
def test_an_eta_is_when_a_message_is_due(eta: Any, due_ms: int | None) -> None:
    headers = {"id": "t1", "task": "a.task", "eta": eta}
    assert codec.pack(message(headers=headers), "", "q").due_ms == due_ms


def test_a_claimed_message_waits_for_no_eta_any_more() -> None:
    headers = {"id": "t1", "task": "a.task", "eta": "2024-01-01T00:00:00+00:00"}
    raw = codec.unpack(claimed(codec.pack(message(headers=headers), "", "q").payload))
    assert "eta" not in raw["headers"]
    assert raw["headers"]["atomic_eta"] == "2024-01-01T00:00:00+00:00"


def test_an_eta_that_cannot_be_read_is_left_for_celery_to_refuse() -> None:
    headers = {"id": "t1", "task": "a.task", "eta": "next week"}
    raw = codec.unpack(claimed(codec.pack(message(headers=headers), "", "q").payload))
    assert raw["headers"]["eta"] == "next week"


def test_a_claim_rides_in_the_properties() -> None:
    raw = codec.unpack(claimed(codec.pack(message(), "exchange", "key").payload, crashes=2, revoked=True))
    assert raw["properties"]["delivery_tag"] == "7:3"
    assert raw["properties"]["delivery_info"] == {"exchange": "exchange", "routing_key": "key", "redelivered": True}
    assert raw["properties"]["atomic"] == {
        "id": 7,
        "fence": 3,
        "attempts": 3,
        "crashes": 2,
        "revoked": True,
        "expired": False,
        "waited_ms": None,
        "limited": False,
    }


def test_a_claim_is_not_published_again() -> None:
    raw = codec.unpack(claimed(codec.pack(message(), "", "q").payload))
    payload = json.loads(codec.pack(codec.without_claim(raw), "dead", "q").payload)
    assert "atomic" not in payload["properties"]
    assert "delivery_tag" not in payload["properties"]


def test_what_is_no_task_gets_an_id_that_a_second_attempt_keeps() -> None:
    properties: dict[str, Any] = {"priority": 0}
    first = codec.pack(message(headers={}, properties=properties), "", "q")
    second = codec.pack(message(headers={}, properties=properties), "", "q")
    other = codec.pack(message(headers={}, properties={"priority": 0}), "", "q")
    assert first.task_id == second.task_id != other.task_id
    assert first.task_name is None


def protocol_1(**facts: Any) -> codec.RawMessage:
    """Return a message as Celery makes it with ``task_protocol = 1``: all that it says stands in the body."""
    body = {"task": "a.task", "id": "t1", "args": [1], "kwargs": {}, "eta": None, "expires": None, "utc": True, **facts}
    return message(json.dumps(body), headers={}, properties={"priority": 0, "correlation_id": "t1"})


def test_a_task_of_protocol_1_is_known_by_its_id_and_name() -> None:
    packed = codec.pack(protocol_1(), "", "q")
    assert (packed.task_id, packed.task_name) == ("t1", "a.task")
    assert (packed.due_ms, packed.expires_ms) == (None, None)
    assert json.loads(json.loads(packed.payload)["body"])["args"] == [1]


def test_the_eta_of_protocol_1_is_when_it_is_due_and_celery_waits_for_it_no_more() -> None:
    packed = codec.pack(protocol_1(eta="2024-01-01T00:00:00+00:00"), "", "q")
    assert packed.due_ms == 1704067200000
    body = json.loads(codec.unpack(claimed(packed.payload))["body"])
    assert (body["eta"], body["task"], body["args"]) == (None, "a.task", [1])


def test_an_eta_of_protocol_1_that_cannot_be_read_is_left_for_celery_to_refuse() -> None:
    packed = codec.pack(protocol_1(eta="next week"), "", "q")
    assert packed.due_ms is None
    assert json.loads(json.loads(packed.payload)["body"])["eta"] == "next week"


def test_a_task_of_protocol_1_that_expires_is_celerys_to_revoke() -> None:
    packed = codec.pack(protocol_1(expires="2024-01-01T00:00:00+00:00"), "", "q")
    assert packed.expires_ms == 1704067200000
    assert codec.ends_revoked(codec.unpack(claimed(packed.payload, expired=True)))
    assert not codec.ends_revoked(codec.unpack(claimed(codec.pack(protocol_1(), "", "q").payload, expired=True)))


@pytest.mark.parametrize(
    "body",
    ['{"task": "a.task"}', '["task"]', '{"task": ', '"task"', '{"task": ' + "[" * 100_000, b'{"task": "\xff"}', None],
)
def test_what_only_looks_like_protocol_1_is_a_message_like_any_other(body: Any) -> None:
    packed = codec.pack(message(body, headers={}, properties={"publish_id": "p"}), "", "q")
    assert (packed.task_id, packed.task_name, packed.due_ms) == ("p", None, None)


@pytest.mark.parametrize("number", [float("inf"), float("nan"), "many"])
def test_numbers_that_are_none_are_as_if_they_were_not_there(number: Any) -> None:
    packed = codec.pack(message(properties={"priority": number, "expiration": number}), "", "q")
    assert (packed.priority, packed.lives_ms) == (0, None)


@pytest.mark.parametrize(
    ("body", "encoding"), [(None, None), (5, None), ([], "base64"), ("abc", "base64"), ("é", "base64"), ("x", "rot13")]
)
def test_a_body_that_kombu_could_not_read_is_refused_before_it_is_delivered(body: Any, encoding: str | None) -> None:
    payload = json.loads(codec.pack(message(), "", "q").payload)
    payload["body"], payload["properties"]["body_encoding"] = body, encoding
    with pytest.raises(ValueError, match=r"a body is text|padding|ASCII|character"):
        codec.unpack(claimed(json.dumps(payload)))


@pytest.mark.parametrize(
    ("name", "advice"), [("a\0b", "leave it out"), ("a\ud800b", "leave it out"), ("é" * 257, "choose a shorter one")]
)
def test_names_that_no_database_stores_are_refused(connect: Connect, store: Store, name: str, advice: str) -> None:
    channel = connect().default_channel
    producer = kombu.Producer(channel)
    QUEUE(channel).declare()
    refused = {
        "task id": lambda: producer.publish("x", routing_key="texts", headers={"id": name, "task": "a.task"}),
        "exchange": lambda: producer.publish("x", exchange=name, routing_key="texts"),
        "routing key": lambda: producer.publish("x", routing_key=name),
        "queue": lambda: channel.queue_declare(name),
    }
    for what, act in refused.items():
        with pytest.raises(errors.UnstorableName, match=f"the {what} .* {advice}"):
            act()
    with pytest.raises(errors.UnstorableName, match="the exchange"):
        channel.exchange_declare(name)
    with pytest.raises(errors.UnstorableName, match="the exchange"):
        channel.queue_bind("texts", name, "key")
    with pytest.raises(errors.UnstorableName, match="the routing key"):
        channel.queue_bind("texts", "exchange", name)
    assert store.reads.messages() == []
