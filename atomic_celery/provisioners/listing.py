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
    except ValueError as error:
        raise _malformed(f"it printed no JSON: {error}") from None
    items = document if form.items == "" else _at(document, form.items)
    if not isinstance(items, list):
        what = "nothing" if items is _ABSENT else f"{_shown(items)}"
        raise _malformed(f"there must be an array at {form.items or 'the top'}, found {what}")
    return [instance for item in items for instance in _instance(item, form)]


def together(listings: list[list[Instance]]) -> list[Instance]:
    """Return the instances of several listings, each once: as the last one saw it."""
    return list({instance.id: instance for listing in listings for instance in listing}.values())


def _instance(item: Any, form: ListFormat) -> Iterator[Instance]:
    identifier = _identifier(_at(item, form.id), form.id)
    if form.gone is not None and _at(item, form.gone) not in (_ABSENT, None):
        return
    said = _at(item, form.state)
    if not isinstance(said, str):
        raise _malformed(f"instance {identifier!r}: there must be a state at {form.state}, found {_shown(said)}")
    state: Any = said
    if form.states is not None:
        if said not in form.states and "*" not in form.states:
            raise _malformed(f"instance {identifier!r}: listFormat.states does not say what the state {said!r} means")
        state = form.states.get(said, form.states.get("*"))
        if state is None:
            return
    host = _at(item, form.host_id)
    yield Instance(
        id=identifier,
        state=state,
        since_ms=_moment_ms(_at(item, form.since), identifier, form.since),
        host_id=host if isinstance(host, str) and host else None,
    )


def _identifier(value: Any, path: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise _malformed(f"there must be an id at {path}, found {_shown(value)}")
    if str(value).startswith("-"):  # a program would take it for an option
        raise _malformed(f"an id cannot begin with a dash, found {_shown(value)}")
    return str(value)


def _moment_ms(value: Any, identifier: str, path: str) -> int | None:
    if value is _ABSENT or value is None or value == "":
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value)
    try:
        moment = isoparse(value)
    except (TypeError, ValueError):
        raise _malformed(
            f"instance {identifier!r}: {path} must be milliseconds or ISO 8601, found {_shown(value)}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return round(moment.timestamp() * 1000)


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
    return "nothing" if value is _ABSENT else repr(value)[:_SHOWN]


def _malformed(why: str) -> ProvisionerError:
    return ProvisionerError("malformed", f"the list command: {why}")
