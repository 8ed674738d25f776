"""Existing projects need the URL and nothing else, in every program that Celery comes with."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from atomic_celery.store import Store
from tests.support.daemons import free_port
from tests.support.waiting import wait_until
from tests.transport.project import Project

APP = """
import os
from celery import Celery
app = Celery("proj", broker=os.environ["BROKER"])
app.conf.task_ignore_result = True
app.conf.event_queue_ttl = app.conf.event_queue_expires = 600  # flower may be busy

@app.task
def touch(path):
    open(path, "w").close()
"""

SEND = "from proj import touch; touch.delay({path!r})"

WORKER = ("-m", "celery", "-A", "proj", "worker", "-n", "w@proj", "-c", "1", "-l", "INFO")


@pytest.fixture
def project(tmp_path: Path, url: str) -> Project:
    project = Project(tmp_path, url)
    project.write("proj.py", APP)
    return project


@pytest.fixture
def running(project: Project) -> Iterator[ExitStack]:
    """What a test starts and does not end, ends with it."""
    with ExitStack() as processes:
        yield processes


def start(running: ExitStack, project: Project, *arguments: str) -> subprocess.Popen[str]:
    process = project.start(*arguments)
    running.callback(process.wait)
    running.callback(process.kill)
    return process


def succeed(run: subprocess.CompletedProcess[str]) -> str:
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def fetched(address: str) -> str:
    """Return what is there; nothing, if nobody answers yet."""
    with suppress(OSError), urllib.request.urlopen(address, timeout=30) as answer:
        return str(answer.read().decode())
    return ""


def test_a_producer(project: Project, store: Store) -> None:
    succeed(project.run("-c", SEND.format(path="x")))
    assert [view.task_name for view in store.reads.messages()] == ["proj.touch"]


@pytest.mark.parametrize("pool", ["solo", "atomic"])
def test_a_worker(project: Project, running: ExitStack, pool: str) -> None:
    start(running, project, *WORKER, "-P", pool)
    done = project.directory / "done"
    succeed(project.run("-c", SEND.format(path=str(done))))
    wait_until(done.exists, 60, project.log)


def test_the_commands(project: Project, running: ExitStack) -> None:
    start(running, project, *WORKER, "-P", "solo")
    wait_until(lambda: "ready" in project.log(), 60, project.log)
    asked = ("inspect", "ping", "-d", "w@proj", "-t", "60")
    answer = succeed(project.run("-m", "celery", "-A", "proj", *asked, "--json"))
    assert json.loads(answer.splitlines()[0])["w@proj"] == {"ok": "pong"}
    assert "pong" in succeed(project.run("-m", "celery", "-b", project.env["BROKER"], *asked))
    assert "celery" in succeed(project.run("-m", "celery", "-A", "proj", "list", "bindings"))


def test_a_django_project(tmp_path: Path, url: str, store: Store) -> None:
    project = Project(tmp_path, url)
    project.write("site_/__init__.py", "from site_.celery import app\n")
    project.write(
        "site_/settings.py",
        "import os\nSECRET_KEY = 'x'\nINSTALLED_APPS = ['site_']\nCELERY_BROKER_URL = os.environ['BROKER']\n"
        "CELERY_TASK_IGNORE_RESULT = True\n",
    )
    project.write(
        "site_/celery.py",
        "import os\nos.environ.setdefault('DJANGO_SETTINGS_MODULE', 'site_.settings')\nfrom celery import Celery\n"
        "app = Celery('site_')\napp.config_from_object('django.conf:settings', namespace='CELERY')\n"
        "app.autodiscover_tasks()\n",
    )
    project.write(
        "site_/tasks.py",
        "from celery import shared_task\n\n@shared_task\ndef touch(path):\n    open(path, 'w').close()\n",
    )
    project.write("send.py", "import django, site_\ndjango.setup()\nfrom site_.tasks import touch\ntouch.delay('x')\n")
    succeed(project.run("send.py"))
    assert [view.task_name for view in store.reads.messages()] == ["site_.tasks.touch"]


def test_flower(project: Project, running: ExitStack) -> None:
    pytest.importorskip("flower")
    port = free_port()
    project.env["FLOWER_UNAUTHENTICATED_API"] = "true"
    start(running, project, "-m", "celery", "-A", "proj", "flower", f"--port={port}", "--address=127.0.0.1")
    start(running, project, *WORKER, "-P", "solo", "-E")

    def workers() -> str:
        return fetched(f"http://127.0.0.1:{port}/api/workers?refresh=1")

    wait_until(lambda: '"w@proj"' in workers(), 90, project.log)
    done = project.directory / "done"
    succeed(project.run("-c", SEND.format(path=str(done))))

    def tasks() -> str:
        return fetched(f"http://127.0.0.1:{port}/api/tasks")

    wait_until(lambda: "proj.touch" in tasks() and "SUCCESS" in tasks(), 60, project.log)


def test_importing_the_package_is_enough_where_entry_points_are_lost(tmp_path: Path, url: str, store: Store) -> None:
    project = Project(tmp_path, url, entry_points=False)
    project.write("proj.py", APP)
    refused = project.run("-c", SEND.format(path="x"))
    assert "No such transport: atomic" in refused.stderr
    project.write("proj.py", f"import atomic_celery\n{APP}")
    succeed(project.run("-c", SEND.format(path="x")))
    assert [view.task_name for view in store.reads.messages()] == ["proj.touch"]


def loaded_by(project: Project, code: str) -> set[str]:
    names: list[str] = json.loads(
        succeed(project.run("-c", f"{code}; import sys, json; print(json.dumps([*sys.modules]))"))
    )
    return set(names)


def test_importing_kombu_loads_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    without = loaded_by(Project(tmp_path / "bare", "", entry_points=False), "import kombu.serialization, celery")
    ours = loaded_by(Project(tmp_path, ""), "import kombu.serialization") - without
    assert {name for name in ours if name.startswith("atomic")} == {"atomic_celery", "atomic_celery._register"}
    assert not {name for name in ours if name.partition(".")[0] in ("sqlalchemy", "psycopg2", "django")}
    assert "celery.app.base" not in ours


@pytest.mark.parametrize("missing", ["celery", "celery.concurrency", "kombu.transport"])
def test_importing_kombu_never_fails_for_it(tmp_path: Path, missing: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None; import kombu.serialization as s; print([*s.registry._encoders])"
    )
    assert "atomic-json" in succeed(Project(tmp_path, "").run("-c", code))


@pytest.mark.parametrize("first", ["", "import kombu\n", "import celery.bin.celery\n", "import celery._state\n"])
def test_the_first_group_of_a_process_is_sent_in_one_statement(tmp_path: Path, first: str) -> None:
    project = Project(tmp_path, "atomic+sqlite:///x.db")
    asked = "print(hasattr(group.apply_async, 'sends_together'), app.finalized)"
    assert succeed(project.run("-c", f"{first}{APP}from celery import group\n{asked}")) == "True False\n"


@pytest.mark.parametrize(
    "first", ["celery", "kombu", "kombu.pools", "celery.app.base", "celery.bin.celery", "atomic_celery"]
)
def test_tasks_are_sent_under_their_limits_whatever_is_imported_first(first: str) -> None:
    program = f"import {first}; from celery import Celery; Celery('x'); print(Celery.send_task.knows_limits)"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "True\n"
