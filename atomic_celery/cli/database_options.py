"""The options that say which tables, and how the database is opened: of the group, and of each of its commands."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from atomic_celery import config

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS: dict[str, dict[str, Any]] = {
    "prefix": {"metavar": "PREFIX", "help": "Prefix of the tables (default: atomic)."},
    "password_file": {"type": click.Path(), "help": "File with the database password."},
    "token_file": {"type": click.Path(), "help": "File with a password that changes."},
    "auth": {"type": click.Choice(config.CLOUDS), "help": "Use this machine's identity in its cloud."},
}


def accept(function: Command) -> Command:
    """Take the options; `taken` picks what was said."""
    for name, attributes in reversed(_OPTIONS.items()):
        function = click.option(f"--{name.replace('_', '-')}", name, **attributes)(function)
    return function


def taken(arguments: dict[str, Any]) -> dict[str, Any]:
    """Take what was said out of *arguments*.

    It is put into the environment, too: programs that a command starts, as workers on this machine, find the same
    database.
    """
    said = {name: value for name in _OPTIONS if (value := arguments.pop(name)) is not None}
    os.environ.update({f"ATOMIC_{name.upper()}": value for name, value in said.items()})
    return said
