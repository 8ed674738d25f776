"""What may stand in the JSON file of a provisioner, checked in full; `provisioner.schema.json` says the same.

Nothing in it is a credential, and none of it is written to the database.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atomic_celery import names
from atomic_celery.errors import ConfigError
from atomic_celery.fleet.provisioner import INSTANCE_STATES, InstanceState

Argv = tuple[str, ...]

_PLACEHOLDERS = {"up": ("target", "add"), "down": ("id", "remaining"), "list": ()}
PLACEHOLDER = re.compile(r"\{(target|add|id|remaining)\}")
_BRACED = re.compile(r"(?<![{$])\{([A-Za-z_-]+)\}(?!\})")
"""A single word in braces; not a template's ``{{id}}``, nor a shell's ``${id}``."""
_NEAR = 0.75
"""How much alike a misspelt placeholder and the right one are, as `difflib` counts it."""
_DEFAULT_TIMEOUT_MS = 120_000
_MOST = 86_400_000
"""What counts have for a bound: in milliseconds, a day."""
_NOT_PASSED_ON = "holds NUL or half a surrogate pair, which no program can be given"
_REPOSITORY = re.compile(r"[A-Za-z0-9-]+/[A-Za-z0-9._-]+\Z")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFormat:
    """Where the instances are in what `list` prints. Paths are dotted; a part that is a number counts from 0."""

    items: str = ""
    """The path to the array; empty: it is all there is."""
    id: str = "id"
    state: str = "state"
    since: str = "since"
    host_id: str = "hostId"
    gone: str | None = None
    """Where something stands in an instance that is being deleted, and is left out; None: its state tells."""
    states: Mapping[str, InstanceState | None] | None = None
    """What the platform's states mean; None leaves an instance out, ``*`` is any other state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GithubAppSettings:
    """The GitHub App that `gh` acts as. What is None here comes from the environment."""

    app_id: str | None = None
    installation_id: str | None = None
    private_key_file: str | None = None
    repository: str | None = None
    host: str | None = None
    api_url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Three commands that drive a platform."""

    up: tuple[Argv, ...]
    down: tuple[Argv, ...]
    list: tuple[Argv, ...]
    up_each: bool = False
    timeout_ms: int = _DEFAULT_TIMEOUT_MS
    list_format: ListFormat = field(default_factory=ListFormat)
    github_app: GithubAppSettings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalWorkers:
    """Workers on this machine."""

    app: str
    directory: str | None = None
    slots: int | None = None
    options: Argv = ()


def read(given: Any) -> Commands | LocalWorkers:
    """Read the content of a JSON file.

    Raises:
        ConfigError: It makes no sense; says everything that is wrong with it.
    """
    if not isinstance(given, Mapping):
        raise ConfigError("a provisioner is a JSON object with a kind: command or local")
    kind = given.get("kind")
    if kind not in ("command", "local"):
        raise ConfigError(f"kind must be command or local, got {kind!r}")
    keys = _COMMAND_KEYS if kind == "command" else _LOCAL_KEYS
    problems = [*_unknown(given, keys, ""), *_missing(given, keys), *_wrong(given, keys, "")]
    if problems:
        raise ConfigError("; ".join(problems))
    return _read_commands(given) if kind == "command" else _read_local(given)


def problems_of_github_app(given: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the settings of an app, wherever they come from."""
    return list(_check_object(_GITHUB_APP_KEYS)(given, "auth.githubApp"))


def _read_commands(given: Mapping[str, Any]) -> Commands:
    app = given.get("auth", {}).get("githubApp")
    commands = {name: _commands(given[name]) for name in _PLACEHOLDERS}
    return Commands(
        **commands,
        up_each=given.get("upEach", False),
        timeout_ms=_whole(given.get("timeoutMs", _DEFAULT_TIMEOUT_MS)) or _DEFAULT_TIMEOUT_MS,
        list_format=ListFormat(**_fields(given.get("listFormat", {}), _LIST_FORMAT_KEYS)),
        github_app=None if app is None else GithubAppSettings(**_fields(_as_text(app), _GITHUB_APP_KEYS)),
    )


def _read_local(given: Mapping[str, Any]) -> LocalWorkers:
    said = _fields({key: value for key, value in given.items() if key not in ("$schema", "kind")}, _LOCAL_KEYS)
    return LocalWorkers(**{**said, "slots": _whole(said.get("slots")), "options": tuple(said.get("options", ()))})


def _commands(value: Sequence[Any]) -> tuple[Argv, ...]:
    """One command, or several, as several."""
    return (tuple(value),) if isinstance(value[0], str) else tuple(map(tuple, value))


def _fields(given: Mapping[str, Any], keys: Mapping[str, _Key]) -> dict[str, Any]:
    return {keys[name].field or name: value for name, value in given.items()}


def _as_text(given: Mapping[str, Any]) -> dict[str, str]:
    return {name: value if isinstance(value, str) else str(_whole(value)) for name, value in given.items()}


def _unknown(given: Mapping[str, Any], keys: Mapping[str, _Key], where: str) -> Iterator[str]:
    for name in given:
        if name not in keys:
            near = difflib.get_close_matches(str(name), keys, n=1)
            hint = f"; did you mean {where}{near[0]}?" if near else f"; known are {', '.join(keys)}"
            yield f"unknown key {where}{name}{hint}"


def _missing(given: Mapping[str, Any], keys: Mapping[str, _Key]) -> Iterator[str]:
    yield from (f"{name} is missing" for name, key in keys.items() if key.required and name not in given)


def _wrong(given: Mapping[str, Any], keys: Mapping[str, _Key], where: str) -> Iterator[str]:
    for name, value in given.items():
        if name in keys:
            yield from keys[name].check(value, f"{where}{name}")


def _check_object(keys: Mapping[str, _Key]) -> Any:
    def check(value: Any, where: str) -> Iterator[str]:
        if not isinstance(value, Mapping):
            yield f"{where} must be an object"
            return
        yield from _unknown(value, keys, f"{where}.")
        yield from _wrong(value, keys, f"{where}.")

    return check


def _check_command(value: Any, where: str) -> Iterator[str]:
    several = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    for argv in several:
        if not isinstance(argv, list) or not argv or not all(isinstance(part, str) for part in argv) or not argv[0]:
            yield f"{where} must be an array of texts, a program and its arguments, or an array of such arrays"
            return
        for part in argv:
            if not names.is_storable(part):
                yield f"{where}: an argument {_NOT_PASSED_ON}, got {part!r}"
            yield from _check_placeholders(part, where)


def _check_placeholders(part: str, where: str) -> Iterator[str]:
    """Find placeholders of other commands, and what is nearly one of this: a platform would get it as it stands.

    The schema has no notion of nearness and lets the latter pass.
    """
    known = _PLACEHOLDERS[where]
    for word in PLACEHOLDER.findall(part):
        if word not in known:
            has = " and ".join(f"{{{name}}}" for name in known) or "none"
            yield f"unknown placeholder {{{word}}} in {where}; it has {has}"
    for word in _BRACED.findall(part):
        near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=_NEAR)
        if near and not PLACEHOLDER.fullmatch(f"{{{word}}}"):
            yield f"unknown placeholder {{{word}}} in {where}; did you mean {{{near[0]}}}?"


def _check_text(value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, str) or not value:
        yield f"{where} must be a text, got {value!r}"
    elif not names.is_storable(value):
        yield f"{where} {_NOT_PASSED_ON}, got {value!r}"


def _check_id(value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, str) and _whole(value) is None:
        yield f"{where} must be a text or a whole number, got {value!r}"
    elif isinstance(value, str):
        yield from _check_text(value, where)


def _check_number(value: Any, where: str) -> Iterator[str]:
    if not re.fullmatch(r"[0-9]+", str(_whole(value)) if not isinstance(value, str) else value):
        yield f"{where} must be a number: it ends the URL of its settings page; got {value!r}"


def _check_flag(value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, bool):
        yield f"{where} must be true or false, got {value!r}"


def _check_count(value: Any, where: str) -> Iterator[str]:
    number = _whole(value)
    if number is None or not 1 <= number <= _MOST:
        yield f"{where} must be a whole number from 1 to {_MOST}, got {value!r}"


def _whole(value: Any) -> int | None:
    """Return a whole number; in JSON, 5.0 and 5e3 are some."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _check_texts(value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        yield f"{where} must be an array of texts"
    elif not all(map(names.is_storable, value)):
        yield f"{where}: a text {_NOT_PASSED_ON}, got {value!r}"


def _check_states(value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, Mapping) or not value:
        yield f"{where} must be an object that says what the platform's states mean"
        return
    for name, state in value.items():
        if state is not None and state not in INSTANCE_STATES:
            yield f"{where}.{name} must be one of {', '.join(INSTANCE_STATES)} or null, got {state!r}"


def _check_repository(value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, str) or not _REPOSITORY.match(value):
        yield f"{where} must look like owner/name, got {value!r}"


def _check_host(value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, str) or not _HOST.match(value):
        yield f"{where} must be the name of a host, got {value!r}"


@dataclass(frozen=True, slots=True)
class _Key:
    check: Any
    required: bool = False
    field: str | None = None


_LIST_FORMAT_KEYS = {
    "items": _Key(_check_text),
    "id": _Key(_check_text),
    "state": _Key(_check_text),
    "since": _Key(_check_text),
    "hostId": _Key(_check_text, field="host_id"),
    "gone": _Key(_check_text),
    "states": _Key(_check_states),
}
_GITHUB_APP_KEYS = {
    "appId": _Key(_check_id, field="app_id"),
    "installationId": _Key(_check_number, field="installation_id"),
    "privateKeyFile": _Key(_check_text, field="private_key_file"),
    "repository": _Key(_check_repository),
    "host": _Key(_check_host),
    "apiUrl": _Key(_check_text, field="api_url"),
}
_AUTH_KEYS = {"githubApp": _Key(_check_object(_GITHUB_APP_KEYS))}
_COMMAND_KEYS = {
    "$schema": _Key(_check_text),
    "kind": _Key(_check_text, required=True),
    "up": _Key(_check_command, required=True),
    "down": _Key(_check_command, required=True),
    "list": _Key(_check_command, required=True),
    "upEach": _Key(_check_flag),
    "timeoutMs": _Key(_check_count),
    "listFormat": _Key(_check_object(_LIST_FORMAT_KEYS)),
    "auth": _Key(_check_object(_AUTH_KEYS)),
}
_LOCAL_KEYS = {
    "$schema": _Key(_check_text),
    "kind": _Key(_check_text, required=True),
    "app": _Key(_check_text, required=True),
    "directory": _Key(_check_text),
    "slots": _Key(_check_count),
    "options": _Key(_check_texts),
}
