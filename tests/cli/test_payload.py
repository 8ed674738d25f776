from __future__ import annotations

import base64
import json
import pickle
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomic_celery import payload


def stored(body: object, *, headers: dict[str, object] | None = None, **fields: object) -> str:
    return json.dumps(
        {"body": json.dumps(body), "content-type": "application/json", "headers": headers or {}, **fields}
    )


def test_arguments_of_a_json_message_are_shown_as_reprs() -> None:
    call = payload.read(
        stored([[1, "two"], {"three": 3}, {"callbacks": None}], headers={"origin": "gen1@web", "retries": 2})
    )

    assert (call.args, call.kwargs, call.origin, call.retries) == ("[1, 'two']", "{'three': 3}", "gen1@web", 2)


@pytest.mark.parametrize("name", ["password", "API_KEY", "authToken", "client_secret", "Credentials", "passwd"])
def test_a_value_under_a_secret_name_is_masked_at_any_depth(name: str) -> None:
    call = payload.read(stored([[{"deep": [{name: "hunter2"}]}], {name: {"x": "hunter2"}, "user": "ada"}, {}]))

    assert "hunter2" not in call.args + call.kwargs
    assert payload.MASK in call.args
    assert "'user': 'ada'" in call.kwargs


def test_more_names_are_masked_when_the_project_says_so() -> None:
    call = payload.read(stored([[], {"customer_iban": "DE02", "user": "ada"}, {}]), ("iban",))

    assert call.kwargs == f"{{'customer_iban': '{payload.MASK}', 'user': 'ada'}}"


@pytest.mark.parametrize(
    "url", ["postgresql://ann:hunter2@db/shop", "atomic+redis://:hunter2@h:1", "x://a:hunter2@b@c"]
)
def test_the_password_of_a_url_is_masked_wherever_it_stands(url: str) -> None:
    call = payload.read(stored([[url, f"see {url} there"], {"at": [url]}, {}]))

    assert "hunter2" not in call.args + call.kwargs
    assert f"{url.partition(':')[0]}://" in call.kwargs


def test_a_compressed_body_is_unpacked() -> None:
    body = base64.b64encode(zlib.compress(b'[["hello"], {}, {}]')).decode()
    text = json.dumps(
        {"body": body, "headers": {"compression": "application/x-gzip"}, "properties": {"body_encoding": "base64"}}
    )

    assert payload.read(text).args == "['hello']"


class Bomb:
    """Says so when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return pytest.fail, ("unpickled",)


def test_a_pickle_is_never_loaded_and_celerys_own_repr_is_shown_masked() -> None:
    body = base64.b64encode(pickle.dumps(Bomb())).decode()
    headers = {"argsrepr": "(1, 2)", "kwargsrepr": "{'password': 'hunter2'}"}
    text = json.dumps({"body": body, "headers": headers, "properties": {"body_encoding": "base64"}})

    call = payload.read(text)

    assert call.args == "(1, 2)"
    assert call.kwargs == f"{{'password': '{payload.MASK}'}}"


def test_a_repr_that_cannot_be_masked_is_not_shown() -> None:
    text = json.dumps(
        {"body": "", "headers": {"argsrepr": "(<User token=hunter2>,)", "kwargsrepr": "{'password': 'hunt..."}}
    )

    call = payload.read(text)

    assert (call.args, call.kwargs) == (payload.UNREADABLE, payload.UNREADABLE)


def test_a_long_argument_is_cut() -> None:
    call = payload.read(stored([["x" * 10_000], {}, {}]))

    assert len(call.args) < 2100
    assert call.args.endswith("(10004 characters)")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["body", "headers", "properties"]), inner)
    ),
)


@given(st.text() | JSON.map(json.dumps))
def test_no_payload_makes_it_fail(text: str) -> None:
    assert isinstance(payload.read(text), payload.Call)


@given(JSON, JSON)
def test_no_body_and_headers_make_it_fail(body: object, headers: object) -> None:
    text = json.dumps({"body": json.dumps(body), "headers": headers, "properties": headers})

    assert isinstance(payload.read(text), payload.Call)
