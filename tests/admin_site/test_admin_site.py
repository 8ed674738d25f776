"""The admin site's own tests, its commands and its checks, on each database and driver."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.admin_site.running import Site
from tests.support.postgres import Postgres

TESTS = 52


@pytest.fixture(params=["sqlite", "psycopg2", "psycopg"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """The project on each database and driver."""
    yield from _site(request, request.param)


@pytest.fixture(params=["sqlite", "psycopg"])
def split_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """The same, where the fleet has a database of its own."""
    yield from _site(request, request.param, count=2)


def _site(request: pytest.FixtureRequest, driver: str, count: int = 1) -> Iterator[Site]:
    names = ("SITE_DATABASE", "SITE_FLEET_DATABASE")[:count]
    if driver == "sqlite":
        directory = request.getfixturevalue("tmp_path")
        yield Site({name: f"sqlite:///{directory}/{name}.db" for name in names})
        return
    server: Postgres = request.getfixturevalue("postgres")
    urls = {name: server.create_database() for name in names}
    yield Site({"SITE_DRIVER": driver, **urls})
    for url in urls.values():
        server.drop_database(url)


def ran(site: Site, label: str = "pages") -> int:
    """Run the site's own tests; return how many there were."""
    run = site.manage("test", "--noinput", label)
    assert run.returncode == 0, run.stdout + run.stderr
    found = re.search(r"^Ran (\d+) tests?", run.stderr, re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_the_pages(site: Site) -> None:
    assert ran(site) >= TESTS


def test_the_pages_of_a_fleet_that_has_a_database_of_its_own(split_site: Site) -> None:
    assert ran(split_site) >= TESTS


@pytest.mark.parametrize(
    ("site", "trouble", "why"),
    [
        ("psycopg2", "readonly", "read-only transaction"),
        ("psycopg", "readonly", "read-only transaction"),
        ("psycopg2", "locked", "statement timeout"),
        ("psycopg", "locked", "statement timeout"),
        ("sqlite", "locked", "database is locked"),
    ],
    indirect=["site"],
)
def test_the_overview_says_in_time_that_the_database_takes_no_writes(site: Site, trouble: str, why: str) -> None:
    assert site.manage("migrate").returncode == 0

    run = site.run([sys.executable, "-m", "tests.admin_site.probing", trouble])

    assert run.returncode == 0, run.stderr
    before, meanwhile, after = json.loads(run.stdout)
    for each in (before, after):
        assert (each["said"], each["status"]) == ("", 200)
        assert "answers" in each["text"]
    assert meanwhile["said"].startswith("shared store degraded: ")
    assert why in meanwhile["said"]
    assert meanwhile["status"] == 200
    assert "degraded" in meanwhile["text"]
    assert why in meanwhile["text"]


@pytest.mark.parametrize("site", ["sqlite", "psycopg"], indirect=True)
def test_commands_say_the_same_as_celery_s(site: Site) -> None:
    before = site.manage("fleet_status")
    assert before.returncode == 1
    assert "there are no atomic_ tables" in before.stderr
    assert site.manage("migrate").returncode == 0
    assert "nothing to do" in site.manage("atomic_migrate").stdout
    status, same = site.manage("fleet_status", "--json"), site.manage("atomic", "status", "--json")
    assert json.loads(status.stdout).keys() == json.loads(same.stdout).keys()
    assert "store" in site.manage("fleet_status").stdout
    assert site.manage("atomic_doctor").returncode == 0
    assert json.loads(site.manage("atomic_doctor", "--json").stdout)["findings"] == []
    assert site.manage("atomic", "messages", "show", "none").returncode == 1
    assert site.manage("atomic", "nonsense").returncode == 64
    assert "--json" in site.manage("atomic", "status", "--help").stdout


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
def test_no_model_differs_from_its_migration(site: Site) -> None:
    for prefix in ("atomic", "billing"):
        again = Site({**site.environment, "SITE_PREFIX": prefix})
        check = again.manage("makemigrations", "--check", "--dry-run")
        assert check.returncode == 0, check.stdout


def test_migrate_makes_the_tables_with_the_project_s_prefix_where_the_fleet_is(split_site: Site) -> None:
    billing = Site({**split_site.environment, "SITE_PREFIX": "billing"})
    assert billing.manage("migrate").returncode == 0
    assert billing.manage("fleet_status").returncode == 1
    assert billing.manage("migrate", "--database", "fleet").returncode == 0
    assert "prefix billing" in billing.manage("fleet_status").stdout


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
def test_checks_say_what_is_wrong_and_how_to_mend_it(site: Site) -> None:
    def said(*arguments: str, **environment: str) -> str:
        run = Site({**site.environment, **environment}).manage("check", *arguments)
        return run.stdout + run.stderr

    assert "no issues" in said()
    behind = said("--database", "default")
    assert "atomic_fleet.W002" in behind
    assert "Run: manage.py migrate\n" in behind
    assert "celery -A" not in behind
    assert "atomic_migrate" not in behind
    assert site.manage("migrate").returncode == 0
    assert "no issues" in said("--database", "default")
    assert "atomic_fleet.E001" in said(SITE_BROKER="atomic+django://nowhere")
    assert "atomic_fleet.E001" in said(SITE_PREFIX="No Good")
    assert "atomic_fleet.W001" in said(SITE_BROKER="redis://:hunter2@localhost/0")
    assert "hunter2" not in said(SITE_BROKER="redis://:hunter2@localhost/0")
    assert "atomic_fleet.W001" in said(SITE_SHOWN="atomic+sqlite:////tmp/elsewhere.db")
    unfenced = said(SITE_RESULTS="redis://:hunter2@localhost/0")
    assert "atomic_fleet.W003" in unfenced
    assert "hunter2" not in unfenced
    assert "atomic_fleet.I001" in said("--fail-level", "INFO", SITE_ATOMIC_REQUESTS="yes")
    assert "atomic_fleet.W004" in said(SITE_ATOMIC_REQUESTS="yes", SITE_EAGER="yes")
    fleet = {"SITE_FLEET_DATABASE": site.environment["SITE_DATABASE"]}
    assert "atomic_fleet.W005" in said(SITE_UNROUTED="yes", **fleet)
    assert "no issues" in said(**fleet)


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
@pytest.mark.skipif(find_spec("unfold") is None, reason="django-unfold is not installed; the extra browser has it")
def test_the_pages_render_in_another_theme(site: Site) -> None:
    themed = Site({**site.environment, "SITE_THEME": "unfold"})
    assert ran(themed, "pages.test_theme") == 1
