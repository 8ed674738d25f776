"""The options that `celery worker` gains, and the settings they and everything else amount to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click
from celery.bin.base import CeleryOption

from atomic_celery import config

_GROUP = "Atomic Options"


def _share(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Make a database option known to every connection of this process and its children."""
    del ctx
    if value is not None and param.name is not None:
        os.environ[param.name.upper()] = value
    return value


def _option(*names: str, **attributes: Any) -> click.Option:
    return CeleryOption(names, help_group=_GROUP, **attributes)


def _options() -> list[click.Option]:
    return [
        _option(
            "--slots",
            "atomic_slots",
            type=click.IntRange(min=1),
            help="Tasks this host runs at once; the same as -c. Default: half the CPUs, from 1 to 16.",
        ),
        _option("--label", "atomic_labels", multiple=True, metavar="KEY=VALUE", help="Shown in the list of hosts."),
        _option("--provider-id", "atomic_provider_id", help="What the provider calls this machine."),
        _option(
            "--idle-exit",
            "atomic_idle_exit_ms",
            type=click.IntRange(min=0),
            metavar="MS",
            help="Drain and exit once no task has run for so many milliseconds.",
        ),
        _option(
            "--metrics-listen",
            "atomic_metrics_listen",
            metavar="HOST:PORT",
            help="Serve what this worker does for Prometheus, at /metrics.",
        ),
        _option("--json", "atomic_json", is_flag=True, default=None, help="Print events as JSON, one object a line."),
        _option("--prefix", "atomic_prefix", callback=_share, help="Prefix of the tables."),
        _option(
            "--password-file",
            "atomic_password_file",
            callback=_share,
            type=click.Path(),
            help="File with the database password.",
        ),
        _option(
            "--token-file",
            "atomic_token_file",
            callback=_share,
            type=click.Path(),
            help="File with a password that changes; read for every new connection.",
        ),
        _option(
            "--auth",
            "atomic_auth",
            callback=_share,
            type=click.Choice(config.CLOUDS),
            help="Open the database with this machine's identity in its cloud.",
        ),
    ]


def install() -> None:
    """Add the options to `celery worker`. Safe to repeat."""
    from celery.bin.worker import worker

    present = {param.name for param in worker.params}
    worker.params += [option for option in _options() if option.name not in present]


def settings_of(conf: Mapping[str, Any], options: Mapping[str, Any]) -> config.Settings:
    """Return a worker's settings: its options, the environment, the app's configuration, the defaults.

    Raises:
        ConfigError: They are wrong, or do not fit each other.
    """
    said = {
        name.removeprefix("atomic_"): value
        for name, value in options.items()
        if name.startswith("atomic_") and value not in (None, ())
    }
    return config.from_sources(said, config.celery_keys(conf), config.django_keys())
