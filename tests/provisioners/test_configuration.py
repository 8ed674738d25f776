"""A file is checked in full before anything runs, and the JSON Schema that is shipped says the same as the check."""

from __future__ import annotations

import copy
import importlib.resources
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomic_celery import provisioners
from atomic_celery.errors import ConfigError
from atomic_celery.fleet.provisioner import Permit
from atomic_celery.provisioners import CommandProvisioner, LocalProvisioner, from_mapping, load
from atomic_celery.provisioners.configuration import Commands, ListFormat, read
from tests.provisioners.conftest import JOURNAL, PRESETS

SCHEMA = json.loads(importlib.resources.files(provisioners).joinpath("provisioner.schema.json").read_text())
COMMAND: dict[str, Any] = {"kind": "command", "up": ["up", "{target}"], "down": ["down", "{id}"], "list": ["list"]}
LOCAL: dict[str, Any] = {"kind": "local", "app": "proj"}


def fits(given: Any) -> bool:
    return not list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(given))


GOOD: list[dict[str, Any]] = [
    COMMAND,
    LOCAL,
    {
        **LOCAL,
        "slots": 4,
        "options": ["-Q", "cpu"],
        "directory": "/var/lib/fleet",
        "$schema": "provisioner.schema.json",
    },
    {**COMMAND, "up": [["one", "{add}"], ["two", "{target}"]], "upEach": True, "timeoutMs": 5000},
    {**COMMAND, "down": [["kubectl", "delete", "{id}"], ["scale", "--replicas={remaining}"]]},
    {**COMMAND, "list": [["one"], ["two", "{name}", "{{.items}}"]]},
    {**COMMAND, "listFormat": {"items": "a.0.b", "id": "n", "state": "s", "since": "t", "hostId": "h", "gone": "d"}},
    {**COMMAND, "listFormat": {"states": {"UP": "running", "DOWN": None, "*": "failed"}}},
    {**COMMAND, "auth": {"githubApp": {"appId": 7, "installationId": "8", "repository": "acme/flows.js"}}},
    {**COMMAND, "timeoutMs": 5e3, "auth": {"githubApp": {"appId": 7.0, "installationId": 8.0}}},
    {**COMMAND, "list": ["list", "é😀"]},
]
BAD: list[tuple[Any, str]] = [
    ([], "a provisioner is a JSON object"),
    ({}, "kind must be command or local, got None"),
    ({"kind": ["command"]}, "kind must be command or local"),
    ({"kind": "script"}, "kind must be command or local, got 'script'"),
    ({"kind": "command", "up": ["u"]}, "down is missing; list is missing"),
    ({"kind": "local"}, "app is missing"),
    ({**LOCAL, "up": ["u"]}, "unknown key up"),
    ({**LOCAL, "slots": 0}, "slots must be a whole number from 1 to 86400000, got 0"),
    ({**LOCAL, "slots": True}, "slots must be a whole number"),
    ({**LOCAL, "options": "-Q"}, "options must be an array of texts"),
    ({**COMMAND, "timeoutMS": 5}, "unknown key timeoutMS; did you mean timeoutMs?"),
    ({**COMMAND, "timeoutMs": 1.5}, "timeoutMs must be a whole number from 1 to 86400000"),
    ({**COMMAND, "timeoutMs": 86_400_001}, "timeoutMs must be a whole number from 1 to 86400000"),
    ({**COMMAND, "upEach": "yes"}, "upEach must be true or false, got 'yes'"),
    ({**COMMAND, "up": "az vmss scale"}, "up must be an array of texts, a program and its arguments"),
    ({**COMMAND, "up": []}, "up must be an array of texts"),
    ({**COMMAND, "up": [""]}, "up must be an array of texts"),
    ({**COMMAND, "up": ["a", 3]}, "up must be an array of texts"),
    ({**COMMAND, "up": [["a"], "b"]}, "up must be an array of texts"),
    ({**COMMAND, "up": [["a"], []]}, "up must be an array of texts"),
    ({**COMMAND, "list": ["a", "b\0c"]}, "list: an argument holds NUL or half a surrogate pair"),
    ({**COMMAND, "list": ["a\0"]}, "list: an argument holds NUL"),
    ({**COMMAND, "up": [["a", "\ud800"]]}, "up: an argument holds NUL or half a surrogate pair"),
    ({**COMMAND, "listFormat": {"id": "\udc00"}}, r"listFormat\.id holds NUL or half a surrogate pair"),
    ({**LOCAL, "options": ["a\0"]}, "options: a text holds NUL"),
    ({**COMMAND, "up": ["a", "{id}"]}, r"unknown placeholder \{id\} in up; it has \{target\} and \{add\}"),
    (
        {**COMMAND, "down": [["a"], ["b", "-n={target}"]]},
        r"unknown placeholder \{target\} in down; it has \{id\} and \{remaining\}",
    ),
    ({**COMMAND, "list": ["a", "{id}"]}, r"unknown placeholder \{id\} in list; it has none"),
    ({**COMMAND, "listFormat": []}, "listFormat must be an object"),
    ({**COMMAND, "listFormat": {"ids": "x"}}, r"unknown key listFormat\.ids; did you mean listFormat\.id\?"),
    ({**COMMAND, "listFormat": {"id": ""}}, r"listFormat\.id must be a text"),
    ({**COMMAND, "listFormat": {"states": {}}}, r"listFormat\.states must be an object"),
    ({**COMMAND, "listFormat": {"states": {"A": "up"}}}, r"listFormat\.states\.A must be one of pending, running"),
    ({**COMMAND, "auth": {"githubapp": {}}}, r"unknown key auth\.githubapp; did you mean auth\.githubApp\?"),
    ({**COMMAND, "auth": {"githubApp": {"repository": "flows"}}}, r"repository must look like owner/name"),
    ({**COMMAND, "auth": {"githubApp": {"host": "https://x"}}}, r"host must be the name of a host"),
    ({**COMMAND, "auth": {"githubApp": {"repository": "acme/flows\n"}}}, r"repository must look like owner/name"),
    ({**COMMAND, "auth": {"githubApp": {"host": "x.ghe.com\n"}}}, r"host must be the name of a host"),
    ({**COMMAND, "auth": {"githubApp": {"appId": True}}}, r"appId must be a text or a whole number"),
    ({**COMMAND, "auth": {"githubApp": {"appId": ""}}}, r"appId must be a text"),
    ({**COMMAND, "auth": {"githubApp": {"installationId": "../x"}}}, r"installationId must be a number"),
    ({**COMMAND, "auth": {"githubApp": {"installationId": -1}}}, r"installationId must be a number"),
    ({**COMMAND, "auth": {"githubApp": {"token": "t"}}}, r"unknown key auth\.githubApp\.token"),
]


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("given", GOOD)
def test_what_is_right_is_read_and_fits_the_schema(given: dict[str, Any]) -> None:
    read(given)
    assert fits(given)


@pytest.mark.parametrize(("given", "complaint"), BAD)
def test_what_is_wrong_is_refused_by_both(given: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        read(given)
    assert not fits(given)


@pytest.mark.parametrize(
    ("command", "argument", "complaint"),
    [
        ("up", "{traget}", r"unknown placeholder \{traget\} in up; did you mean \{target\}\?"),
        ("up", "--count={Target}", r"unknown placeholder \{Target\} in up; did you mean \{target\}\?"),
        ("up", "{adds}", r"unknown placeholder \{adds\} in up; did you mean \{add\}\?"),
        ("down", "{ID}", r"unknown placeholder \{ID\} in down; did you mean \{id\}\?"),
        ("down", "to {remainig}", r"unknown placeholder \{remainig\} in down; did you mean \{remaining\}\?"),
    ],
)
def test_a_misspelt_placeholder_is_refused(command: str, argument: str, complaint: str) -> None:
    given = {**COMMAND, command: ["program", argument]}
    with pytest.raises(ConfigError, match=complaint):
        read(given)
    assert fits(given)  # a schema cannot say what is nearly a word


@pytest.mark.parametrize(
    "argument",
    [
        "{print $1}",
        "{other}",
        "{name: Name, state: State}",
        "[].{id:name}",
        '{"id": 1}',
        "{}",
        "{{.target}}",
        "{{traget}}",
        "${traget}",
        "{range .items[*]}{.metadata.name}{end}",
    ],
)
def test_braces_that_resemble_no_placeholder_are_handed_on(argument: str) -> None:
    for command in ("up", "down", "list"):
        assert isinstance(read({**COMMAND, command: ["program", argument]}), Commands)


WORDS = st.sampled_from(
    [
        "",
        "a",
        "a\n",
        "a\0",
        "\ud800",
        "😀",
        "{id}",
        "{target}",
        "acme/flows",
        "acme/flows\n",
        "h:1",
        "7",
        "running",
        "command",
    ]
)
LEAVES = st.none() | st.booleans() | st.integers(-2, 10**9) | st.sampled_from([0.0, 1.5, 2.0, 1e300]) | WORDS
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=2))
KEYS = {
    None: [
        "$schema",
        "kind",
        "up",
        "down",
        "list",
        "upEach",
        "timeoutMs",
        "listFormat",
        "auth",
        "app",
        "slots",
        "options",
    ],
    "listFormat": ["items", "id", "state", "since", "hostId", "gone", "states"],
    "githubApp": ["appId", "installationId", "privateKeyFile", "repository", "host", "apiUrl"],
}


@st.composite
def documents(draw: st.DrawFn) -> Any:
    """Draw a good document in which something has been replaced, added or taken away."""
    document = copy.deepcopy(draw(st.sampled_from(GOOD)))
    for _ in range(draw(st.integers(1, 2))):
        place, name = document, None
        while (inner := [key for key, value in place.items() if isinstance(value, dict)]) and draw(st.booleans()):
            name = draw(st.sampled_from(inner))
            place = place[name]
        key = draw(st.sampled_from(KEYS.get(name, ["running", "githubApp"])) | WORDS)
        if draw(st.integers(0, 3)) == 0:
            place.pop(key, None)
        else:
            place[key] = draw(VALUES)
    return document


@settings(max_examples=400, deadline=None)
@given(documents() | VALUES)
def test_the_schema_and_the_check_agree_on_whatever_is_given(given_: Any) -> None:
    try:
        read(given_)
    except ConfigError:
        assert not fits(given_)
    else:
        assert fits(given_)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError, match=r"unknown key updown.*down is missing.*upEach must be.*timeoutMs must be"):
        read({"kind": "command", "up": ["u"], "list": ["l"], "updown": [], "upEach": 1, "timeoutMs": 0})


@pytest.mark.parametrize("path", sorted(PRESETS.glob("*.json")), ids=lambda path: path.stem)
def test_a_preset_fits_the_schema(path: Path) -> None:
    given = json.loads(path.read_text())
    assert fits(given)
    assert isinstance(read(given), Commands)


def test_what_is_not_said_has_the_documented_default() -> None:
    commands = read(COMMAND)
    assert isinstance(commands, Commands)
    assert (commands.timeout_ms, commands.up_each, commands.github_app) == (120_000, False, None)
    assert commands.list_format == ListFormat()
    assert commands.up == (("up", "{target}"),)


def test_the_kind_decides_what_it_is(tmp_path: Path) -> None:
    assert isinstance(from_mapping(COMMAND, JOURNAL), CommandProvisioner)
    assert isinstance(from_mapping({**LOCAL, "directory": str(tmp_path)}, JOURNAL), LocalProvisioner)


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_a_file_is_loaded(tmp_path: Path) -> None:
    assert load(write(tmp_path / "fleet.json", json.dumps(COMMAND)), JOURNAL).kind == "command"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", r"fleet\.json is no JSON"),
        ("[" * 100_000, r"fleet\.json is no JSON"),
        ('{"kind": "local", "app": "a", "app": "b"}', r"fleet\.json is no JSON: an object has app twice"),
        ('{"kind": "x"}', r"fleet\.json: kind must be command or local"),
    ],
    ids=["cut off", "deep", "twice", "kind"],
)
def test_a_file_that_makes_no_sense_is_named(tmp_path: Path, content: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load(write(tmp_path / "fleet.json", content), JOURNAL)


def test_a_file_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"cannot read the provisioner /gone/fleet\.json: No such file"):
        load("/gone/fleet.json", JOURNAL)


MODULE = """
class Cloud:
    kind = "my-cloud"
    def list(self, permit): return []
    def scale_to(self, target, permit, *, add): ...
    def drain(self, instance_id, permit): ...

provisioner = Cloud()
def make(): return Cloud()
class Half:
    kind = "half"
    def list(self, permit): return []
class Needy(Cloud):
    def __init__(self, needs): ...
def leave(): raise SystemExit(3)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    write(tmp_path / "a_fleet_module.py", MODULE)
    write(tmp_path / "a_broken_module.py", "1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    return "a_fleet_module"


@pytest.mark.parametrize("name", ["", ":provisioner", ":Cloud", ":make"])
def test_a_module_s_object_is_loaded(module: str, name: str) -> None:
    assert load(f"{module}{name}", JOURNAL).kind == "my-cloud"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("a_fleet_module:gone", "the module a_fleet_module has no gone"),
        ("a_fleet_module:Half", "has no scale_to, drain"),
        ("a_fleet_module:Needy", r"a_fleet_module:Needy cannot be made: TypeError: .*missing 1 required"),
        ("a_fleet_module:leave", r"a_fleet_module:leave cannot be made: SystemExit: 3"),
        ("a_broken_module", "a_broken_module cannot be imported: ZeroDivisionError: division by zero"),
        ("no_such_module_at_all", "cannot be imported: No module named 'no_such_module_at_all'"),
        ("", r"a provisioner is a file\.json or package\.module\[:object\], got ''"),
        (":provisioner", r"a file\.json or package\.module\[:object\], got ':provisioner'"),
        (".relative", r"got '\.relative'"),
    ],
)
def test_a_module_without_a_provisioner_is_refused(module: str, name: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load(name, JOURNAL)


CLOUD = """
class cloud:
    vms = []
    @classmethod
    def list(cls): return list(cls.vms)
    @classmethod
    def create(cls): cls.vms.append(type("VM", (), {"name": f"vm-{len(cls.vms)}", "created_ms": 1_794_648_600_000}))
    @classmethod
    def delete(cls, name): cls.vms = [vm for vm in cls.vms if vm.name != name]
"""


def test_the_provisioner_of_the_guide_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, permit: Permit) -> None:
    page = (PRESETS.parents[2] / "docs" / "guides" / "fleets" / "provisioners.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    write(tmp_path / "a_guide_s_cloud.py", f"{CLOUD}\n{code}")
    monkeypatch.syspath_prepend(tmp_path)
    made = load("a_guide_s_cloud", JOURNAL)
    made.scale_to(3, permit, add=2)
    assert [instance.id for instance in made.list(permit)] == ["vm-0", "vm-1"]
    made.drain("vm-0", permit)
    assert [(each.id, each.state, each.since_ms) for each in made.list(permit)] == [
        ("vm-1", "running", 1_794_648_600_000)
    ]
