"""Databases as Django wants them said, for the settings of projects that tests run."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit


def database(url: str, **sqlite_options: Any) -> dict[str, Any]:
    """Return Django's settings of the database at *url*; on SQLite with these options, and patient with writers."""
    parts = urlsplit(url.removeprefix("atomic+"))
    if parts.scheme == "sqlite":
        options = {"timeout": 60, **sqlite_options}
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": parts.path[1:], "OPTIONS": options}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": parts.username,
        "PASSWORD": parts.password,
        "HOST": parts.hostname,
        "PORT": parts.port,
    }
