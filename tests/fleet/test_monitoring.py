"""The dashboard and the alert rules are well-formed and ask only for metrics that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from atomic_celery.fleet.exposition import FleetExposition, WorkerExposition, Working
from atomic_celery.fleet.policy import Policy
from atomic_celery.fleet.reading import Reader
from atomic_celery.store.store import Store

MONITORING = Path(__file__).parents[2] / "examples" / "monitoring"
DASHBOARD, RULES = MONITORING / "grafana-dashboard.json", MONITORING / "prometheus-rules.yml"


@pytest.fixture
def known(sqlite_store: Store) -> set[str]:
    """The names of every sample that is served."""
    working = Working(slots=1, busy=0, leases=0, draining=False, poll_failures=0, attempts={"succeeded": 1})
    expositions = (FleetExposition(Reader(sqlite_store, Policy())), WorkerExposition(lambda: working))
    text = "".join(exposition.text().decode() for exposition in expositions)
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


def expressions() -> list[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return shown + re.findall(r"^        expr: (.+)$", RULES.read_text(), re.MULTILINE)


def test_they_ask_only_for_what_is_served(known: set[str]) -> None:
    asked = {name for expression in expressions() for name in re.findall(r"atomic_\w+", expression)}
    assert asked <= known, asked - known
    assert len(expressions()) >= 20


def test_facts_of_the_fleet_are_not_summed_over_servers() -> None:
    """Two servers say the same of one fleet; only their own facts add up."""
    for expression in expressions():
        assert not re.search(r"(sum|avg)\((rate\()?atomic_(fleet|cluster)", expression), expression


def test_no_two_panels_lie_over_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_agrees() -> None:
    run = subprocess.run(["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
