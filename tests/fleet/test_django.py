"""`manage.py fleet_controller` and `fleet_metrics`: the same programs, for a fleet in Django's own database."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.admin_site.running import PROJECT, Site
from tests.fleet.test_serving import get
from tests.support.postgres import PostgresServer
from tests.support.waiting import wait_until
from tests.support.workers import LONG_TERM

CLOUD = "tests.fleet.folder_cloud"


@pytest.fixture(params=["sqlite", "psycopg"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    url = f"sqlite:///{tmp_path}/site.db"
    if request.param != "sqlite":
        url = request.getfixturevalue("postgres_url")
    made = Site({"SITE_DATABASE": url, "SITE_DRIVER": request.param, "ATOMIC_TEST_CLOUD": str(tmp_path), **LONG_TERM})
    assert made.manage("migrate").returncode == 0
    return made


def test_the_controller_decides_once_and_runs_until_it_is_told_to_end(site: Site, tmp_path: Path) -> None:
    dry = site.manage("fleet_controller", "--provisioner", CLOUD, "--min-hosts", "2", "--dry-run")
    assert dry.stdout == "0 hosts, below the least of 2 → add 2\n", dry.stderr
    assert site.manage("fleet_controller", "--provisioner", CLOUD, "--min-hosts", "2", "--once").returncode == 0
    assert len(list(tmp_path.glob("vm-*.json"))) == 2
    assert site.manage("fleet_controller").returncode == 64
    command = [sys.executable, "manage.py", "fleet_controller", "--provisioner", CLOUD, "--min-hosts", "3", "--json"]
    with subprocess.Popen(command, cwd=PROJECT, env=site.env, stdout=subprocess.PIPE, text=True) as program:
        try:
            wait_until(lambda: len(list(tmp_path.glob("vm-*.json"))) == 3, 60)
            program.send_signal(signal.SIGTERM)
            assert program.wait(60) == 0
        finally:
            program.kill()


def test_the_signal_is_served(site: Site) -> None:
    command = [sys.executable, "manage.py", "fleet_metrics", "--listen", "127.0.0.1:0", "--json"]
    with subprocess.Popen(command, cwd=PROJECT, env=site.env, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            ready = json.loads(program.stdout.readline())
            assert json.loads(get(ready["listen"], "/scaling")[1])["desiredHosts"] == 0
            program.send_signal(signal.SIGINT)
            assert program.wait(60) == 0
        finally:
            program.kill()


def test_status_gives_up_on_a_database_that_hangs_or_is_gone(own_postgres: PostgresServer) -> None:
    site = Site({"SITE_DATABASE": own_postgres.create_database(), "SITE_DRIVER": "psycopg"})
    assert site.manage("migrate").returncode == 0
    own_postgres.kill(signal.SIGSTOP)
    hung = site.manage("fleet_status")  # without a limit this would never end
    own_postgres.kill(signal.SIGCONT)
    assert hung.returncode == 1
    assert "shared store degraded: " in hung.stderr
    own_postgres.stop()
    gone = site.manage("fleet_status", "--json")
    assert (gone.returncode, gone.stdout) == (1, "")
    assert "shared store unknown: " in gone.stderr


def test_the_signal_of_a_database_that_hangs_is_503(own_postgres: PostgresServer) -> None:
    site = Site({"SITE_DATABASE": own_postgres.create_database(), "SITE_DRIVER": "psycopg"})
    assert site.manage("migrate").returncode == 0
    command = [sys.executable, "manage.py", "fleet_metrics", "--listen", "127.0.0.1:0", "--json"]
    with subprocess.Popen(command, cwd=PROJECT, env=site.env, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            ready = json.loads(program.stdout.readline())
            assert get(ready["listen"], "/scaling")[0] == 200
            own_postgres.kill(signal.SIGSTOP)
            wait_until(lambda: get(ready["listen"], "/scaling")[0] == 503, 60)
            own_postgres.kill(signal.SIGCONT)
            wait_until(lambda: get(ready["listen"], "/scaling")[0] == 200, 60)
        finally:
            program.kill()


def test_status_has_the_signal(site: Site) -> None:
    status = json.loads(site.manage("fleet_status", "--json").stdout)
    assert status["scaling"]["desiredHosts"] == 0


@pytest.mark.parametrize("command", ["fleet_controller", "fleet_metrics"])
def test_the_help_shows_the_command_that_one_types(site: Site, command: str) -> None:
    helped = site.manage(command, "--help")
    assert helped.returncode == 0, helped.stderr
    assert helped.stdout.startswith(f"Usage: manage.py {command} [OPTIONS]\n")
