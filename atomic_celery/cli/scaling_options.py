"""The options of the scaling policy; each is a setting, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from atomic_celery.fleet.policy import Policy

Command = TypeVar("Command", bound=Callable[..., Any])

_Option = tuple[str, str, str, str]

_SIZE: tuple[_Option, ...] = (
    ("--min-hosts", "min_hosts", "N", "Hosts kept however idle."),
    ("--max-hosts", "max_hosts", "N", "Hosts never exceeded."),
    ("--workers-per-host", "workers_per_host", "N", "The slots that hosts start with."),
)
_PACE: tuple[_Option, ...] = (
    ("--scale-up-queue-depth", "scale_up_queue_depth", "N", "Messages allowed to wait before hosts are added."),
    ("--scale-up-delay", "scale_up_delay_ms", "MS", "For how long more than that wait first."),
    ("--idle-drain", "idle_drain_ms", "MS", "How long a host holds nothing before it is drained."),
    ("--boot-timeout", "boot_timeout_ms", "MS", "Time that a new instance has to register a host."),
)


def size(function: Command) -> Command:
    """Take how many hosts there may be, and how large they are."""
    return _with(_SIZE, function)


def pace(function: Command) -> Command:
    """Take how soon hosts are added and drained."""
    return _with(_PACE, function)


def _with(options: tuple[_Option, ...], function: Command) -> Command:
    for flag, name, metavar, meaning in reversed(options):
        default = Policy.__dataclass_fields__[name].default
        shown = "as many as --workers-per-host" if default is None else default
        text = f"{meaning} Default: atomic_{name}, {shown}."
        function = click.option(flag, name, type=click.IntRange(min=0), metavar=metavar, help=text)(function)
    return function
