"""`with fleet_controller(…)`: a controller beside a program's own work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from celery import Celery

from atomic_celery import errors, fleet_controller
from atomic_celery.fleet.controller import TERM
from atomic_celery.store.hosts import HostReport
from atomic_celery.store.store import Store
from tests.fleet.cloud import Cloud
from tests.store.test_hosts import host
from tests.support.waiting import wait_until


@pytest.fixture
def app(store: Store, broker_url: str, patient_terms: None) -> Iterator[Celery]:
    with closing(Celery("program", broker=broker_url, set_as_current=False)) as made:
        yield made


def test_it_leads_while_the_block_lasts_and_drains_what_is_idle_at_its_end(app: Celery, store: Store) -> None:
    cloud = Cloud()
    app.send_task("work")
    with fleet_controller(cloud, app=app, max_hosts=3, workers_per_host=1) as controller:
        wait_until(lambda: cloud.calls[:3] == ["list", "scale_to 1 +1", "list"], 60)
        assert controller.leads
        store.hosts.register(host("h1", provider_id="vm-1"))
        store.hosts.report("h1", "b1", HostReport(slots=1, busy=0, queues=(), idle_ms=10))
        store.queues.purge("celery")
    assert [drain.instance for drain in store.hosts.drains()] == ["vm-1"]
    standing = store.terms.look(TERM)
    assert standing is not None
    assert standing.free
    assert cloud.acts() == ["scale_to 1 +1"], "nothing removes it from here"


def test_an_error_in_the_block_ends_it_as_well(app: Celery, store: Store) -> None:
    def fail() -> None:
        with fleet_controller(Cloud(), app=app) as controller:
            wait_until(lambda: controller.leads, 60)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    standing = store.terms.look(TERM)
    assert standing is not None
    assert standing.free


def test_a_second_one_stands_by(app: Celery, store: Store) -> None:
    cloud = Cloud()
    with fleet_controller(Cloud(), app=app) as first:
        wait_until(lambda: first.leads, 60)
        with fleet_controller(cloud, app=app) as second:
            assert not second.leads
    assert cloud.calls == []


def test_what_makes_no_sense_is_said(app: Celery, store: Store) -> None:
    with pytest.raises(errors.ConfigError, match="no 'max_host'"), fleet_controller(Cloud(), app=app, max_host=3):
        pass
    with pytest.raises(errors.ConfigError, match="kind must be"), fleet_controller({"kind": "magic"}, app=app):
        pass
    with pytest.raises(errors.ConfigError, match="cannot be imported"), fleet_controller("no.such.cloud", app=app):
        pass


def test_a_database_without_tables_is_said(postgres_url: str) -> None:
    app = Celery("program", broker=f"atomic+{postgres_url}", set_as_current=False)
    with closing(app), pytest.raises(errors.SchemaMismatch), fleet_controller(Cloud(), app=app):
        pass
