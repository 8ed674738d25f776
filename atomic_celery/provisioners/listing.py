"""Reading the instances out of what a platform's command line prints.

Whatever does not match is `malformed`, and nothing is left out on a guess: an instance that is overlooked is one too
many a minute later.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timezone
from typing import Any

from dateutil.parser import isoparse

from atomic_celery.errors import ProvisionerError
from atomic_celery.fleet.provisioner import Instance
from atomic_celery.provisioners.configuration import ListFormat

_ABSENT = object()
_SHOWN = 200


def read(printed: bytes, form: ListFormat) -> list[Instance]:
    """Return the instances in *printed*, in its order.

    Raises:
        ProvisionerError: malformed.
    """
    try:
        document = json.loads(printed)
    except (RecursionError, ValueError) as error:
        raise _malformed(f"it printed no JSON: {error}") from None
    items = document if form.items == "" else _at(document, form.items)
    if not isinstance(items, list):
        raise _malformed(f"there must be an array at {form.items or 'the top'}, found {_shown(items)}")
    return [instance for item in items for instance in _instance(item, form)]


def together(listings: list[list[Instance]]) -> list[Instance]:
    """Return the instances of several listings, each once: as the last one saw it."""
    return list({instance.id: instance for listing in listings for instance in listing}.values())


def _instance(item: Any, form: ListFormat) -> Iterator[Instance]:
    identifier = _identifier(_at(item, form.id), form.id)
    which = f"instance {_shown(identifier)}"
    if form.gone is not None and _at(item, form.gone) not in (_ABSENT, None):
        return
    said = _at(item, form.state)
    if not isinstance(said, str):
        raise _malformed(f"{which}: there must be a state at {form.state}, found {_shown(said)}")
    state: Any = said
    if form.states is not None:
        if said not in form.states and "*" not in form.states:
            raise _malformed(f"{which}: listFormat.states does not say what the state {_shown(said)} means")
        state = form.states.get(said, form.states.get("*"))
        if state is None:
            return
    yield Instance(
        id=identifier,
        state=state,
        since_ms=_moment_ms(_at(item, form.since), which, form.since),
        host_id=_host(_at(item, form.host_id), which, form.host_id),
    )


def _identifier(value: Any, path: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise _malformed(f"there must be an id at {path}, found {_shown(value)}")
    if str(value).startswith("-"):  # a program would take it for an option
        raise _malformed(f"an id cannot begin with a dash, found {_shown(value)}")
    return str(value)


def _moment_ms(value: Any, which: str, path: str) -> int | None:
    """Read a moment; one that is not after 1970 is how a platform says that it does not know."""
    if value is _ABSENT or value is None or value == "":
        return None
    try:
        moment_ms = int(value) if type(value) in (int, float) else _iso_ms(value)
    except (OverflowError, TypeError, ValueError):
        raise _malformed(f"{which}: {path} must be milliseconds or ISO 8601, found {_shown(value)}") from None
    return moment_ms if moment_ms > 0 else None


def _iso_ms(text: str) -> int:
    moment = isoparse(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return round(moment.timestamp() * 1000)


def _host(value: Any, which: str, path: str) -> str | None:
    if value is _ABSENT or value is None or value == "":
        return None
    if not isinstance(value, str):
        raise _malformed(f"{which}: {path} must be the id of a host, found {_shown(value)}")
    return value


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        if isinstance(value, dict):
            value = value.get(part, _ABSENT)
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return _ABSENT
    return value


def _shown(value: Any) -> str:
    """Show a value whole or not at all: of a piece of a secret nobody could tell that it is one."""
    if value is _ABSENT:
        return "nothing"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    return repr(value) if len(str(value)) <= _SHOWN else f"one of {len(str(value))} characters"


def _malformed(why: str) -> ProvisionerError:
    return ProvisionerError("malformed", f"the list command: {why}")
