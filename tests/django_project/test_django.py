"""A real Django project, run by its own manage.py, on each database and driver."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.postgres import Postgres
from tests.support.waiting import wait_until

PROJECT = Path(__file__).parent
ROOT = PROJECT.parent.parent


@dataclass(frozen=True)
class Project:
    """The project, with its databases."""

    environment: Mapping[str, str]

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run manage.py."""
        return self._run("manage.py", *arguments)

    @contextmanager
    def worker(self, log: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a worker that knows of its database what Django's settings say; its output goes to *log*."""
        command = [sys.executable, "-m", "celery", "-A", "proj", "worker", *options]
        with log.open("wb") as file:
            process = subprocess.Popen(command, cwd=PROJECT, env=self._env(log), stdout=file, stderr=file)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=PROJECT,
            env=self._env(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def _env(self, log: Path | None = None) -> dict[str, str]:
        beside = {} if log is None else {"ATOMIC_STATE_DIR": f"{log}.state"}
        return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{PROJECT}", **self.environment, **beside}


@pytest.fixture(params=["sqlite memory", "sqlite file", "psycopg2", "psycopg"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    """The project on each database and driver."""
    if request.param.startswith("sqlite"):
        environment = {
            "SHOP_DATABASE": f"sqlite:///{tmp_path}/a.db",
            "SHOP_OTHER_DATABASE": f"sqlite:///{tmp_path}/b.db",
        }
        if request.param == "sqlite file":
            environment["SHOP_TEST_FILES"] = "yes"  # Django's default for tests is a database in memory
        yield Project(environment)
        return
    server: Postgres = request.getfixturevalue("postgres")
    urls = [server.create_database() for _ in range(2)]
    yield Project({"SHOP_DRIVER": request.param, "SHOP_DATABASE": urls[0], "SHOP_OTHER_DATABASE": urls[1]})
    for url in urls:
        server.drop_database(url)


def test_the_project_s_own_tests(project: Project) -> None:
    run = project.manage("test", "--noinput")

    assert run.returncode == 0, run.stdout + run.stderr
    ran = re.search(r"^Ran (\d+) tests", run.stderr, re.MULTILINE)
    assert ran is not None
    assert int(ran[1]) >= 25


@pytest.mark.parametrize("project", ["sqlite file", "psycopg2", "psycopg"], indirect=True)
@pytest.mark.parametrize("pool", ["atomic", "prefork", "threads"])
def test_a_worker_runs_what_was_committed_and_nothing_else(project: Project, pool: str, tmp_path: Path) -> None:
    migrated = project.manage("migrate")
    assert migrated.returncode == 0, migrated.stderr

    with project.worker(tmp_path / "worker.log", "-P", pool, "-c", "2") as worker:
        taken = project.manage("take_orders", "6")
        assert taken.returncode == 0, taken.stderr
        log = tmp_path / "worker.log"
        wait_until(lambda: _handled(project) == {f"order-{n}": 1 for n in (0, 2, 4)}, 60, log.read_text)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0, log.read_text()

    assert "no order" not in log.read_text()
    assert _password(project) not in log.read_text()


@pytest.mark.parametrize("project", ["sqlite file", "psycopg2", "psycopg"], indirect=True)
def test_results_are_rows_of_django_celery_results(project: Project, tmp_path: Path) -> None:
    project = Project({**project.environment, "SHOP_RESULTS": "atomic+django-db"})
    migrated = project.manage("migrate")
    assert migrated.returncode == 0, migrated.stderr

    log = tmp_path / "worker.log"
    with project.worker(log, "-P", "atomic", "-c", "2") as worker:
        counted = project.manage("count_orders")
        assert (counted.returncode, counted.stdout) == (0, "2\n"), counted.stderr + log.read_text()
        shown = project.manage("results")
        assert shown.returncode == 0, shown.stderr
        assert sorted(json.loads(shown.stdout)) == [
            ["shop.tasks.count", '"([None, None],)"', "SUCCESS", "2"],
            ["shop.tasks.handle", "\"('kept-0',)\"", "SUCCESS", "null"],
            ["shop.tasks.handle", "\"('kept-1',)\"", "SUCCESS", "null"],
        ]
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0, log.read_text()


@pytest.mark.parametrize("project", ["psycopg2"], indirect=True)
@pytest.mark.parametrize(
    ("broker", "says"),
    [
        ("atomic+django://nowhere", "Django's DATABASES has no 'nowhere'; it has default, other"),
        ("atomic+django://default", "run: celery -A <your project> atomic migrate"),
    ],
)
def test_what_is_wrong_is_said(project: Project, broker: str, says: str, tmp_path: Path) -> None:
    wrong = Project({**project.environment, "SHOP_BROKER": broker})
    log = tmp_path / "worker.log"
    with wrong.worker(log, "-P", "atomic", "-c", "1") as worker:
        assert worker.wait(60) == 1
    assert says in log.read_text()
    assert _password(project) not in log.read_text()


def _handled(project: Project) -> dict[str, int]:
    shell = project.manage("handled")
    assert shell.returncode == 0, shell.stderr
    handled: dict[str, int] = json.loads(shell.stdout)
    return handled


def _password(project: Project) -> str:
    return urlsplit(project.environment["SHOP_DATABASE"]).password or "(none)"
