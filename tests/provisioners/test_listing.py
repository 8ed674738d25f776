"""What a command line prints is read as it is meant, or refused; nothing is guessed."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomic_celery.errors import ProvisionerError
from atomic_celery.fleet.provisioner import Instance
from atomic_celery.provisioners import listing
from atomic_celery.provisioners.configuration import ListFormat

DEFAULT = ListFormat()
MOMENT_MS = 1_794_648_600_000  # 2026-11-14T09:30:00Z


def read(printed: Any, form: ListFormat = DEFAULT) -> list[Instance]:
    return listing.read(json.dumps(printed).encode(), form)


def one(**given: Any) -> Instance:
    [instance] = read([{"id": "vm-3", "state": "running", **given}])
    return instance


def test_the_default_format() -> None:
    instance = one(since="2026-11-14T09:30:00Z", hostId="h1")
    assert instance == Instance(id="vm-3", state="running", since_ms=MOMENT_MS, host_id="h1")
    assert one() == Instance(id="vm-3", state="running")


@pytest.mark.parametrize(
    "since",
    [
        MOMENT_MS,
        float(MOMENT_MS),
        "2026-11-14T09:30:00Z",
        "2026-11-14T09:30:00",
        "2026-11-14T09:30:00.000+00:00",
        "2026-11-14T09:30:00.0000001+00:00",
        "2026-11-14T01:30:00.000-08:00",
    ],
)
def test_a_moment_in_any_form_the_platforms_use(since: Any) -> None:
    assert one(since=since).since_ms == MOMENT_MS


@pytest.mark.parametrize("since", [None, "", 0, -1, "0001-01-01T00:00:00+12:00"])
def test_a_moment_that_is_not_known(since: Any) -> None:
    assert one(since=since, hostId=None).since_ms is None


def test_paths_lead_through_objects_and_arrays() -> None:
    form = ListFormat(items="Groups.1.Instances", id="meta.name", state="tags.0")
    printed = {"Groups": [{}, {"Instances": [{"meta": {"name": 7}, "tags": ["running"]}]}]}
    assert read(printed, form) == [Instance(id="7", state="running")]


def test_states_are_translated() -> None:
    form = ListFormat(states={"UP": "running", "GOING": None, "*": "pending"})
    printed = [{"id": name, "state": name} for name in ("UP", "GOING", "WHATEVER")]
    assert [(each.id, each.state) for each in read(printed, form)] == [("UP", "running"), ("WHATEVER", "pending")]


def test_what_is_being_deleted_is_left_out() -> None:
    form = ListFormat(gone="meta.deleted")
    printed = [
        {"id": "a", "state": "running", "meta": {"deleted": "2026-11-14T09:30:00Z"}},
        {"id": "b", "state": "running", "meta": {"deleted": None}},
        {"id": "c", "state": "running"},
    ]
    assert [each.id for each in read(printed, form)] == ["b", "c"]


@pytest.mark.parametrize(
    ("printed", "form", "complaint"),
    [
        ({"a": 1}, DEFAULT, "an array at the top, found an object"),
        (None, DEFAULT, "an array at the top, found None"),
        ({"items": None}, ListFormat(items="items"), "an array at items, found None"),
        ({}, ListFormat(items="items"), "an array at items, found nothing"),
        ({"Groups": []}, ListFormat(items="Groups.0.Instances"), r"an array at Groups\.0\.Instances, found nothing"),
        (["vm-3"], DEFAULT, "an id at id, found nothing"),
        ([{"state": "running"}], DEFAULT, "an id at id, found nothing"),
        ([{"id": "", "state": "running"}], DEFAULT, "an id at id, found ''"),
        ([{"id": True, "state": "running"}], DEFAULT, "an id at id, found True"),
        ([{"id": 1.5, "state": "running"}], DEFAULT, r"an id at id, found 1\.5"),
        ([{"id": "--force", "state": "running"}], DEFAULT, "an id cannot begin with a dash, found '--force'"),
        ([{"id": "a"}], DEFAULT, "'a': there must be a state at state, found nothing"),
        ([{"id": "a", "state": 3}], DEFAULT, "'a': there must be a state at state, found 3"),
        ([{"id": "a", "state": "UP"}], DEFAULT, "'a': its state must be one of"),
        ([{"id": "a", "state": "UP"}], ListFormat(states={"DOWN": "failed"}), "does not say what the state 'UP' means"),
        (
            [{"id": "a", "state": "running", "since": "soon"}],
            DEFAULT,
            "since must be .* found 'soon'",
        ),
        ([{"id": "a", "state": "running", "since": {}}], DEFAULT, "since must be milliseconds or ISO 8601"),
        ([{"id": "a", "state": "running", "since": True}], DEFAULT, "found True"),
        ([{"id": "a", "state": "running", "since": math.inf}], DEFAULT, "found inf"),
        ([{"id": "a", "state": "running", "since": math.nan}], DEFAULT, "found nan"),
        ([{"id": "a", "state": "running", "since": 10**100}], DEFAULT, "'a': since_ms must be whole milliseconds"),
        ([{"id": "a", "state": "running", "since": "9999-12-31T23:59:59-12:00"}], DEFAULT, "since_ms must be"),
        ([{"id": "a", "state": "running", "hostId": 5}], DEFAULT, "'a': hostId must be the id of a host, found 5"),
        ([{"id": "a", "state": "running", "hostId": "h\0"}], DEFAULT, "its host's id must be a text that a database"),
        ([{"id": "a\0b", "state": "running"}], DEFAULT, "must be a text that a database can store"),
        ([{"id": "a\ud800b", "state": "running"}], DEFAULT, "must be a text that a database can store"),
        ([{"id": "a" * 513, "state": "running"}], DEFAULT, "must not be longer than 512 bytes, got 513"),
        ([{"id": "a", "state": "x" * 300}], ListFormat(states={"UP": "running"}), "the state one of 300 characters"),
    ],
)
def test_what_does_not_match_is_malformed(printed: Any, form: ListFormat, complaint: str) -> None:
    with pytest.raises(ProvisionerError, match=complaint) as refused:
        read(printed, form)
    assert refused.value.code == "malformed"


@pytest.mark.parametrize(
    "printed",
    [b"", b"no hosts", b"[{", b"\xff\xfe", b"WARNING: x\n[]", b"[]\n[]", b"[" * 100_000, b"[1%s]" % (b"0" * 5000)],
    ids=lambda printed: printed[:10].decode(errors="replace"),
)
def test_what_is_no_json_is_malformed(printed: bytes) -> None:
    with pytest.raises(ProvisionerError, match="it printed no JSON") as refused:
        listing.read(printed, DEFAULT)
    assert refused.value.code == "malformed"


def test_an_instance_that_two_listings_have_counts_once_as_seen_last() -> None:
    first, second = read([{"id": "a", "state": "pending"}]), read([{"id": "a", "state": "running"}])
    assert listing.together([first, second]) == [Instance(id="a", state="running")]


NAMES = st.sampled_from(["id", "state", "since", "hostId", "items", "0", "a", "", "running", "UP", "2026-11-14"])
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
)
FORMS = st.builds(
    ListFormat,
    items=st.sampled_from(["", "items", "0", "items.0.a"]),
    id=st.sampled_from(["id", "a", "0.a"]),
    states=st.none() | st.dictionaries(NAMES, st.sampled_from(["running", "failed", None]), min_size=1, max_size=2),
    gone=st.none() | NAMES.filter(bool),
)


@given(DOCUMENTS.map(lambda document: json.dumps(document).encode()) | st.binary(max_size=50), FORMS)
def test_whatever_is_printed_is_read_or_malformed(printed: bytes, form: ListFormat) -> None:
    code = "malformed"
    try:
        listing.read(printed, form)
    except ProvisionerError as error:
        code = error.code
    assert code == "malformed"
