"""A real Django project, run by its own manage.py, on each database and driver."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.postgres import Postgres

PROJECT = Path(__file__).parent
ROOT = PROJECT.parent.parent


@dataclass(frozen=True)
class Project:
    """The project, with its databases."""

    environment: Mapping[str, str]

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run manage.py."""
        return self._run("manage.py", *arguments)

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=PROJECT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{PROJECT}", **self.environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


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
