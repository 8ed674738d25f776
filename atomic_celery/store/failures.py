"""What a driver's error means, in our own words."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from atomic_celery import errors

if TYPE_CHECKING:
    import sqlite3

_MIGRATE = "run: celery -A <your project> atomic migrate"
_CONFLICTS = frozenset({"40001", "40P01"})
_BUSY = _CONFLICTS | {"53300", "55P03", "57014"}
_UNAVAILABLE = frozenset({"25006", "25P03", "57P01", "57P02", "57P03", "57P05", "58000", "58030"})
_UNAVAILABLE_CLASSES = ("08", "28", "3D", "53")
_REFUSED_CLASSES = ("22", "23", "54")  # data, integrity, and limits of the program
_NO_TABLES = frozenset({"42P01", "42703", "3F000"})
_FORBIDDEN = "42501"
_RIGHTS = (
    "the database user needs SELECT, INSERT, UPDATE and DELETE on all tables of the prefix, USAGE on their sequences"
)
_NOT_OWNER = "only the role that made the tables may change them: migrate as that role"
_NO_SCHEMA = re.compile(r"permission denied for schema (?P<name>\S+)")
_NO_SESSION = frozenset({"26000", "42P05"})
_SQLITE_BUSY = ("database is locked", "database table is locked", "database schema is locked")
_SQLITE_NO_TABLES = ("no such table", "no such column", "has no column")


def translate(error: Exception) -> errors.StoreError:
    """Return the error of ours that says what *error* says."""
    driver = sys.modules.get("sqlite3")  # no Python needs to have it
    if driver is not None and isinstance(error, driver.Error):
        return _from_sqlite(error, driver)
    text, state = _first_line(error), _sqlstate(error)
    if state is None:
        # Without a code it never reached the server, or its answer never reached us.
        kind = type(error).__name__
        if kind in ("OperationalError", "InterfaceError", "DatabaseError", "ConnectionTimeout"):
            return errors.StoreUnavailable(text)
        if kind == "DataError" or isinstance(error, ValueError | OverflowError):
            return errors.StoreRefused(text)
        return errors.StoreError(text)
    if state in _BUSY:
        return errors.StoreBusy(text)
    if state in _NO_TABLES:
        return errors.SchemaMismatch(text, _MIGRATE)
    if state == _FORBIDDEN:
        return errors.StoreForbidden(text, _missing_right(text))
    if state in _NO_SESSION:
        return errors.StoreError(f"{text}; behind a pooler in transaction mode set atomic_notify = False")
    if state in _UNAVAILABLE or state.startswith(_UNAVAILABLE_CLASSES):
        return errors.StoreUnavailable(text)
    if state.startswith(_REFUSED_CLASSES):
        return errors.StoreRefused(f"{text} (SQLSTATE {state})")
    return errors.StoreError(f"{text} (SQLSTATE {state})")


def _missing_right(text: str) -> str:
    if schema := _NO_SCHEMA.search(text):
        return (
            f"who makes the tables needs GRANT USAGE, CREATE ON SCHEMA {schema['name']} TO the database user; "
            "who only uses them needs GRANT USAGE"
        )
    return _NOT_OWNER if "must be owner" in text else _RIGHTS


def is_conflict(error: BaseException | None) -> bool:
    """Whether the database undid something because of what somebody else did at the same time."""
    return _sqlstate(error) in _CONFLICTS


def _from_sqlite(error: sqlite3.Error, driver: Any) -> errors.StoreError:
    text = _first_line(error)
    if text.startswith(_SQLITE_BUSY):
        return errors.StoreBusy(text)
    if any(words in text for words in _SQLITE_NO_TABLES):
        return errors.SchemaMismatch(text, _MIGRATE)
    if isinstance(error, driver.DataError | driver.IntegrityError):
        return errors.StoreRefused(text)
    if isinstance(error, driver.DatabaseError) and not isinstance(error, driver.ProgrammingError):
        return errors.StoreUnavailable(text)
    return errors.StoreError(text)


def _sqlstate(error: Any) -> str | None:
    state = getattr(error, "pgcode", None) or getattr(error, "sqlstate", None)
    return str(state) if state else None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
