"""The settings, checked once and together."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from atomic_celery import names
from atomic_celery.errors import ConfigError

MISSED = ("skip", "last", "all")
"""What may become of a periodic task's runs that nobody was there for."""

CLOUDS = ("aws", "gcp", "azure")
"""Whose identity of a machine may open a database."""

_PREFIX = re.compile(r"[a-z][a-z0-9_]{0,23}\Z")
_LABEL_KEY = re.compile(r"[A-Za-z0-9._-]{1,63}\Z")
_LABEL_VALUE_LENGTH = 255
_LONGEST_S = 10 * 365 * 24 * 3600
_MOST = {"s": _LONGEST_S, "ms": _LONGEST_S * 1000}
_MOST_OF_A_THING = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set.

    A field ``lease_s`` is the Celery setting ``atomic_lease`` and the variable ``ATOMIC_LEASE``; see `from_sources`.
    """

    prefix: str = "atomic"
    lease_s: float = 30.0
    renew_every_s: float = 10.0
    lease_margin_s: float = 1.0
    term_s: float = 20.0
    report_every_s: float = 5.0
    stale_after_s: float = 15.0
    recover_every_s: float = 2.0
    max_crashes: int = 5
    notify: bool = True
    statement_timeout_s: float = 10.0
    connect_timeout_s: float = 5.0
    shutdown_timeout_s: float | None = None
    idle_exit_ms: int | None = None
    metrics_listen: str | None = None
    revoked_keep_s: float = 7 * 24 * 3600.0
    beat_missed: str = "last"
    beat_name: str | None = None
    min_hosts: int = 0
    max_hosts: int = 10
    workers_per_host: int = 4
    scale_up_queue_depth: int | None = None
    scale_up_delay_ms: int = 20_000
    idle_drain_ms: int = 300_000
    boot_timeout_ms: int = 600_000
    slots: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    provider_id: str | None = None
    state_dir: str | None = None
    password_file: str | None = None
    token_file: str | None = None
    auth: str | None = None
    json: bool = False
    mask: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise ConfigError("; ".join(problems))

    @property
    def term_ms(self) -> int:
        """The term in the database's unit."""
        return round(self.term_s * 1000)

    @property
    def lease_ms(self) -> int:
        """The lease in the database's unit."""
        return round(self.lease_s * 1000)


def _problems(settings: Settings) -> Iterable[str]:
    yield from _number_problems(settings)
    if not _PREFIX.match(settings.prefix):
        yield (f"prefix must be 1 to 24 characters of a-z, 0-9 and _, starting with a letter, got {settings.prefix!r}")
    if settings.lease_margin_s <= 0 or settings.lease_s <= settings.lease_margin_s:
        yield f"lease must be longer than its margin of {settings.lease_margin_s:g} s, got {settings.lease_s:g}"
    if not 0 < settings.renew_every_s <= settings.lease_s / 3:
        yield f"renew_every must be in (0, lease / 3 = {settings.lease_s / 3:g}], got {settings.renew_every_s:g}"
    if settings.term_s <= settings.lease_margin_s:
        yield f"term must be longer than the lease's margin of {settings.lease_margin_s:g} s, got {settings.term_s:g}"
    if settings.beat_missed not in MISSED:
        yield f"beat_missed must be one of {', '.join(MISSED)}, got {settings.beat_missed!r}"
    if settings.statement_timeout_s >= settings.lease_s:
        yield f"statement_timeout must be shorter than the lease of {settings.lease_s:g} s"
    if settings.stale_after_s <= settings.report_every_s:
        yield f"stale_after must be longer than report_every ({settings.report_every_s:g} s)"
    for name in ("report_every_s", "recover_every_s", "statement_timeout_s", "connect_timeout_s"):
        if getattr(settings, name) <= 0:
            yield f"{_key(name)} must be above 0, got {getattr(settings, name):g}"
    if settings.max_crashes < 1:
        yield f"max_crashes must be at least 1, got {settings.max_crashes}"
    if settings.slots is not None and settings.slots < 1:
        yield f"slots must be at least 1, got {settings.slots}"
    if settings.auth is not None and settings.auth not in CLOUDS:
        yield f"auth must be one of {', '.join(CLOUDS)}, got {settings.auth!r}"
    credentials = [name for name in ("password_file", "token_file", "auth") if getattr(settings, name)]
    if len(credentials) > 1:
        yield f"{' and '.join(credentials)} are set; a database takes exactly one credential"
    for name in ("beat_name", "provider_id"):
        value = getattr(settings, name)
        if value is not None and not names.is_storable(value):
            yield f"{name} holds NUL or half a surrogate pair, which no database stores: {value!r}"
    yield from _label_problems(settings.labels)


def _number_problems(settings: Settings) -> Iterable[str]:
    """Name the numbers that are out of all bounds, or none (NaN): no comparison would find those."""
    for name in _FIELD_NAMES:
        value = getattr(settings, name)
        most = _MOST.get(name.rpartition("_")[2], _MOST_OF_A_THING)
        if isinstance(value, int | float) and not 0 <= value <= most:
            yield f"{_key(name)} must be a number from 0 to {most}, got {value:g}"


def _label_problems(labels: Mapping[str, str]) -> Iterable[str]:
    for key, value in labels.items():
        if not _LABEL_KEY.match(key):
            yield f"label {key!r}: a key is 1 to 63 letters, digits, '.', '_' or '-'"
        if len(value) > _LABEL_VALUE_LENGTH:
            yield f"label {key!r}: a value has at most {_LABEL_VALUE_LENGTH} characters"
        if not names.is_storable(value):
            yield f"label {key!r}: a value holds no NUL and no half of a surrogate pair, got {value!r}"


def from_sources(*sources: Mapping[str, Any], env: Mapping[str, str] | None = None) -> Settings:
    """Build the settings from mappings, the first that knows a key wins.

    Args:
        sources: Mappings of unprefixed keys (``lease``, ``slots``), most important first; None counts as unset.
        env: ``ATOMIC_*`` variables are looked up here, after the first source and before the others.

    Raises:
        ConfigError: An unknown key (with the nearest known one), a value of the wrong type, or values that
            do not fit each other.
    """
    first, *others = sources or ({},)
    merged: dict[str, Any] = {}
    for source in (first, _environment(os.environ if env is None else env), *others):
        for key, value in source.items():
            if value is not None:
                merged.setdefault(_field_of(key), value)
    return Settings(**{name: _convert(name, value) for name, value in merged.items()})


def celery_keys(conf: Mapping[str, Any]) -> dict[str, Any]:
    """Pick the ``atomic_*`` keys out of a Celery configuration, unprefixed.

    A configuration with a namespace, as Django projects have, says ``CELERY_ATOMIC_LEASE`` for ``atomic_lease``.
    """
    namespace = str(getattr(conf, "prefix", None) or "").lower()
    names = {key: key.lower().removeprefix(namespace) for key in conf}
    return {name[len("atomic_") :]: conf[key] for key, name in names.items() if name.startswith("atomic_")}


def django_keys() -> Mapping[str, Any]:
    """Return what Django's ``settings.ATOMIC`` says, in a process that has Django's settings; unprefixed keys."""
    django = sys.modules.get("django.conf")
    return getattr(django.settings, "ATOMIC", {}) if django is not None and django.settings.configured else {}


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    """Only known names: other programs' ``ATOMIC_*`` variables are none of our business."""
    return {key: env[f"ATOMIC_{key.upper()}"] for key in _FIELDS if f"ATOMIC_{key.upper()}" in env}


def _key(field_name: str) -> str:
    return field_name[:-2] if field_name.endswith("_s") else field_name


_FIELDS: dict[str, dataclasses.Field[Any]] = {_key(f.name): f for f in dataclasses.fields(Settings)}
_FIELD_NAMES = [field.name for field in _FIELDS.values()]


def _field_of(key: str) -> str:
    try:
        return _FIELDS[key].name
    except KeyError:
        near = difflib.get_close_matches(key, _FIELDS, n=1)
        hint = f"; did you mean 'atomic_{near[0]}'?" if near else ""
        raise ConfigError(f"unknown setting 'atomic_{key}'{hint}") from None


def _convert(name: str, value: Any) -> Any:
    kind = str(_FIELDS[_key(name)].type)
    convert = next(convert for word, convert in _CONVERTERS if kind.startswith(word))
    try:
        return convert(value)
    except (OverflowError, TypeError, ValueError) as error:
        raise ConfigError(f"atomic_{_key(name)}: expected {kind}, got {value!r}") from error


_BOOLEAN_WORDS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def _boolean(value: Any) -> bool:
    if not isinstance(value, str):
        return bool(value)
    if value.lower() not in _BOOLEAN_WORDS:
        raise ValueError(value)
    return _BOOLEAN_WORDS[value.lower()]


def _labels(value: Any) -> dict[str, str]:
    """Accept a mapping, ``key=value`` strings, or one string of them with commas."""
    if isinstance(value, Mapping):
        return {str(key): str(item) for key, item in value.items()}
    pairs = value.split(",") if isinstance(value, str) else list(value)
    return dict(_label(pair) for pair in pairs if pair)


def _words(value: Any) -> tuple[str, ...]:
    """Accept a sequence of words, or one string of them with commas."""
    words = value.split(",") if isinstance(value, str) else list(value)
    return tuple(filter(None, (str(word).strip() for word in words)))


def _label(pair: str) -> tuple[str, str]:
    key, equals, value = pair.partition("=")
    if not equals:
        raise ValueError(pair)
    return key.strip(), value


_CONVERTERS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("bool", _boolean),
    ("int", int),
    ("float", float),
    ("Mapping", _labels),
    ("tuple", _words),
    ("str", str),
)
