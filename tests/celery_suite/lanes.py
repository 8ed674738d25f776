"""What Celery's suite is run on: a broker, a result backend and a pool; and how to run it there."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.celery_suite.checkout import TESTS, borrow
from tests.support.workers import ROOT

LONGEST_S = 3600.0
_POOL = "return 'prefork'"
_ONLY_REDIS = "if not manager.app.conf.result_backend.startswith('redis'):"
"""How canvas tests ask for a backend that can do all of the canvas; ours can."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One way to run the suite; *name* heads its column in docs/compatibility.md.

    Attributes:
        results: A result backend; empty: our tables in the broker's database.
    """

    name: str
    broker: str = ""
    results: str = ""
    pool: str = "prefork"

    def environment(self, ours: str, redis: str) -> dict[str, str]:
        """Return what tells the suite where its broker and its results are."""
        urls = {"": ours, "redis": redis}
        return {
            "TEST_BROKER": urls[self.broker],
            "TEST_BACKEND": urls.get(self.results, self.results),
            "TEST_ROWS": ours,
            "DJANGO_SETTINGS_MODULE": "tests.results.site" if self.in_django else "",
            "PYTHONPATH": str(ROOT) if self.in_django else "",
        }

    @property
    def in_django(self) -> bool:
        """Whether its results are Django's rows."""
        return self.results == DJANGO


DJANGO = "atomic+django-db"


LANES = (
    Lane("atomic"),
    Lane("atomic, `-P atomic`", pool="atomic"),
    Lane(f"`-P atomic`, `{DJANGO}`", results=DJANGO, pool="atomic"),
    Lane("atomic, results in Redis", results="redis"),
    Lane("Redis", broker="redis", results="redis"),
)


def run(lane: Lane, file: str, ours: str, redis_port: int, directory: Path) -> dict[str, str]:
    """Run one file of the suite and return how each of its tests ended: passed, failed or skipped."""
    borrow(directory)
    _change(directory / TESTS / "conftest.py", _POOL, f"return {lane.pool!r}")
    _change(directory / TESTS / "test_canvas.py", _ONLY_REDIS, "if False:")
    report = directory / "report.xml"
    log = directory / "output.log"
    with log.open("wb") as output:
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-v", "-p", "celery.contrib.pytest", "-p", "no:cacheprovider"),
                *(("-p", "tests.celery_suite.rows") if lane.in_django else ()),
                *("--timeout", "300", "--junitxml", str(report), str(TESTS / file)),
            ],
            check=False,  # its report says what failed
            cwd=directory,
            env=os.environ
            | lane.environment(ours, f"redis://127.0.0.1:{redis_port}")
            | {"REDIS_HOST": "127.0.0.1", "REDIS_PORT": str(redis_port), "WORKER_LOGLEVEL": "INFO"},
            stderr=subprocess.STDOUT,
            stdout=output,
            timeout=LONGEST_S,
        )
    assert report.exists(), log.read_text(errors="replace")[-4000:]
    return endings(report)


def endings(report: Path) -> dict[str, str]:
    """Read pytest's report: `test_canvas.py::test_chord::test_simple_chord` → how it ended."""
    return {_name(case): _ending(case) for case in ElementTree.parse(report).iter("testcase")}


def _name(case: ElementTree.Element) -> str:
    _, module_and_class = case.attrib["classname"].split("t.integration.")
    return "::".join([module_and_class.replace(".", ".py::"), case.attrib["name"]])


def _ending(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "passed" if case.find("skipped") is None else "skipped"


def _change(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text, f"{file.name} has changed: there is no {old!r} in it"
    file.write_text(text.replace(old, new), encoding="utf-8")
