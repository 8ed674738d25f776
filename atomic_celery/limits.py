"""What a task says of its limits, read where it is sent and where it arrives.

| attribute of the task | meaning |
|---|---|
| ``atomic_max_running = 5`` | so many run at once, over all hosts |
| ``atomic_rate_limit = "100/m"`` | so many start within any minute (``s``, ``m``, ``h``), over all hosts |
| ``atomic_key = "tenant-{args[0]}"`` | each key counts by itself; filled in with a call's ``args`` and ``kwargs`` |
| ``atomic_unique = "queued"`` | a second call is not stored while one of that key waits (``"unfinished"``: or runs) |
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from fractions import Fraction
from string import Formatter
from typing import Any, get_args

from kombu.utils.json import JSONEncoder

from atomic_celery import errors, names
from atomic_celery.store.records import Limit, NewMessage, UniqueUntil

MAX_RUNNING, RATE_LIMIT, KEY, UNIQUE = "atomic_max_running", "atomic_rate_limit", "atomic_key", "atomic_unique"

LONGEST_KEY = 500
_PERIODS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000}
_FINEST_RATE = 10_000  # 0.0001/h is the slowest that is exact
_UNIQUE = get_args(UniqueUntil)


@dataclass(frozen=True, slots=True)
class Declared:
    """What holds for one call of a task."""

    limit: Limit | None = None
    unique_key: str | None = None
    unique_until: UniqueUntil | None = None


NOTHING = Declared()
_sent: ContextVar[Declared] = ContextVar("atomic_declared", default=NOTHING)


def of_call(task: Any, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, *, retries: int = 0) -> Declared:
    """Return what *task* says of a call with these arguments.

    Args:
        retries: How often the call has been retried. A retry waits by right: nobody else's call is in its way.

    Raises:
        ConfigError: An attribute of the task is wrong.
        LimitKeyError: Its key cannot be filled in with these arguments.
    """
    if not says_anything(task):
        return NOTHING
    key = _key_of(task, args or (), kwargs or {})
    unique = _unique_of(task)
    limit = limit_of_call(task, args or (), kwargs or {}) if is_limited(task) else None
    if unique is None or (retries and unique == "queued"):
        return Declared(limit)
    by = key if key is not None else _digest(task, args or (), kwargs or {})
    return Declared(limit, f"{task.name}:{by}", unique)


def limit_of_call(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Limit:
    """Return the limit under which a call of *task*, which is limited, runs; see `of_call`."""
    limit, key = of_task(task), _key_of(task, args, kwargs)
    return limit if key is None else replace(limit, name=f"{task.name}:{key}")


def of_task(task: Any) -> Limit:
    """Return what all keys of *task* have in common; one without values if it is not limited.

    Raises:
        ConfigError: An attribute of the task is wrong.
    """
    starts, period_ms = _rate_of(task)
    return Limit(task.name, task.name, _max_running_of(task), starts, period_ms)


def is_limited(task: Any) -> bool:
    """Whether *task* limits how many run or start."""
    return getattr(task, MAX_RUNNING, None) is not None or getattr(task, RATE_LIMIT, None) is not None


def says_anything(task: Any) -> bool:
    """Whether *task* has any of the attributes."""
    return is_limited(task) or getattr(task, UNIQUE, None) is not None


def differs_by_call(task: Any) -> bool:
    """Whether what *task* says depends on the arguments."""
    return says_anything(task) and (getattr(task, KEY, None) is not None or getattr(task, UNIQUE, None) is not None)


@contextmanager
def sending(declared: Declared) -> Iterator[None]:
    """Let the task that is sent here be what *declared* says."""
    token = _sent.set(declared)
    try:
        yield
    finally:
        _sent.reset(token)


def apply(new: list[NewMessage]) -> list[NewMessage]:
    """Add to a task's messages what is declared of it here; of several queues only the first one's has the key."""
    declared = _sent.get()
    if declared is NOTHING or not new or new[0].task_name is None:
        return new
    first, *others = (replace(message, limit=declared.limit) for message in new)
    return [replace(first, unique_key=declared.unique_key, unique_until=declared.unique_until), *others]


def _max_running_of(task: Any) -> int | None:
    value = getattr(task, MAX_RUNNING, None)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise _wrong(task, MAX_RUNNING, value, "a whole number above 0")
    return value


def _rate_of(task: Any) -> tuple[int | None, int | None]:
    """Return how many starts in how many milliseconds."""
    value = getattr(task, RATE_LIMIT, None)
    if value is None:
        return None, None
    count, _, unit = str(value).partition("/")
    try:
        per_period = Fraction(count.strip()).limit_denominator(_FINEST_RATE)
        period_ms = _PERIODS_MS[unit.strip() or "s"]
    except (ValueError, ZeroDivisionError, KeyError):
        raise _wrong(task, RATE_LIMIT, value, 'a number, or one with a unit: "100/m", "10/s", "0.5/h"') from None
    if per_period <= 0:
        raise _wrong(task, RATE_LIMIT, value, "above 0; leave it out where there is no limit")
    return per_period.numerator, period_ms * per_period.denominator


def _unique_of(task: Any) -> UniqueUntil | None:
    value = getattr(task, UNIQUE, None)
    if value is not None and value not in _UNIQUE:
        raise _wrong(task, UNIQUE, value, " or ".join(map(repr, _UNIQUE)))
    return value


def _key_of(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    template = getattr(task, KEY, None)
    if template is None:
        return None
    if not isinstance(template, str):
        raise _wrong(task, KEY, template, 'text such as "tenant-{args[0]}"')
    try:
        key = _KeyFormatter().format(template, args=args, kwargs=kwargs)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise errors.LimitKeyError(task.name, template, f"{type(error).__name__}: {error}") from error
    if len(key) > LONGEST_KEY or not names.is_storable(key):
        raise errors.LimitKeyError(task.name, template, f"a key is at most {LONGEST_KEY} characters, without NUL")
    return key


def _digest(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return a key that calls with the same arguments have in common."""
    try:
        text = json.dumps([list(args), dict(kwargs)], cls=JSONEncoder, sort_keys=True)
    except (TypeError, ValueError) as error:
        reason = f"its arguments are not JSON ({error}); set {KEY} to say which calls are the same"
        raise errors.LimitKeyError(task.name, "", reason) from error
    return hashlib.sha256(text.encode()).hexdigest()


class _KeyFormatter(Formatter):
    """``str.format`` that looks into arguments by index and name, and never at attributes."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ARG002  # the base's
        """Return what ``{args[0]}`` or ``{kwargs[name]}`` names."""
        first, _, rest = field_name.partition("[")
        if first not in ("args", "kwargs") or not rest:
            raise ValueError(f"{{{field_name}}} is not args[number] or kwargs[name]")
        found: Any = kwargs[first]
        for step in rest.removesuffix("]").split("]["):
            found = found[int(step)] if isinstance(found, list | tuple) else _item(found, step)
        return found, first

    def convert_field(self, value: Any, conversion: Any) -> Any:
        """Let only ready-made text and numbers in: what else an argument prints as may change from call to call."""
        value = super().convert_field(value, conversion)
        if not isinstance(value, str | int | float):
            raise TypeError(f"{type(value).__name__} is not text or a number")
        return value


def _item(found: Any, name: str) -> Any:
    if not isinstance(found, Mapping):
        raise TypeError(f"{type(found).__name__} has no item {name!r}")
    return found[name]


def _wrong(task: Any, name: str, value: Any, wanted: str) -> errors.ConfigError:
    return errors.ConfigError(f"{task.name}: {name} must be {wanted}, got {value!r}")
