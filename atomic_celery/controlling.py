"""A fleet controller in a program's own process, for as long as a block lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery, current_app

from atomic_celery.fleet.controller import Controller
from atomic_celery.fleet.policy import Policy
from atomic_celery.fleet.provisioner import Provisioner
from atomic_celery.fleet.running import running
from atomic_celery.provisioners.loading import from_mapping, load
from atomic_celery.transport import broker


@contextmanager
def fleet_controller(
    provisioner: Provisioner | dict[str, Any] | str, *, app: Celery | None = None, **numbers: int | None
) -> Iterator[Controller]:
    """Run a fleet controller while the block lasts; at its end the idle hosts above the target are asked to drain.

    It is one of perhaps several: it leads only while no other does. Nothing removes the drained hosts afterwards
    unless another controller runs, or they end by themselves.

    Args:
        provisioner: What drives the platform: an object, the content of a JSON configuration, or what
            ``--provisioner`` takes.
        app: Whose broker is the fleet's database; None: the current app's.
        numbers: Of the policy (``max_hosts=20``, ``workers_per_host=8``), over those of the settings.

    Raises:
        ConfigError: The broker is no ``atomic+…`` database, or a number makes no sense.
        StoreUnavailable: The database cannot be reached.
        SchemaMismatch: Its tables are missing, older or newer.
    """
    with (app or current_app).connection_for_write() as connection:
        held = broker.borrow(connection)
        try:
            held.connect()
            policy = Policy.of(held.settings, **numbers)
            with running(
                Controller(held.store, _made(provisioner, held.store.journal), policy), drain_at_end=True
            ) as controller:
                yield controller
        finally:
            broker.give_back(held)


def _made(provisioner: Provisioner | dict[str, Any] | str, journal: str) -> Provisioner:
    if isinstance(provisioner, str):
        return load(provisioner, journal)
    return from_mapping(provisioner, journal) if isinstance(provisioner, dict) else provisioner
