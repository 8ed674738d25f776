"""The dashboard and the alert rules are well-formed and ask only for metrics that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from atomic_celery.fleet.exposition import FleetExposition, WorkerExposition, Working
from atomic_celery.fleet.policy import Policy
from atomic_celery.fleet.reading import Reader
from atomic_celery.store.store import Store
from atomic_celery.tally import Tally
from tests.support.promtool import promtool

MONITORING = Path(__file__).parents[2] / "examples" / "monitoring"
DASHBOARD, RULES = MONITORING / "grafana-dashboard.json", MONITORING / "prometheus-rules.yml"
RULE_TESTS = MONITORING / "prometheus-rules.test.yml"
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "fleets.md"
VALUES = {"busy", "idle", "succeeded", "failed", "retried", "crashed"}
"""All that a label ever says, but for the bounds of a histogram."""


@pytest.fixture
def families(sqlite_store: Store) -> list[Metric]:
    """All that a metrics server and a worker serve."""
    working = Working(slots=1, busy=0, leases=0, draining=False, poll_failures=0, totals=Tally().totals())
    expositions = (FleetExposition(Reader(sqlite_store, Policy())), WorkerExposition(lambda: working))
    text = "".join(exposition.text().decode() for exposition in expositions)
    return list(text_string_to_metric_families(text))


def rules() -> list[dict[str, Any]]:
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def expressions() -> list[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return shown + [rule["expr"] for rule in rules()]


def test_they_ask_only_for_what_is_served(families: list[Metric]) -> None:
    known = {sample.name for family in families for sample in family.samples}
    asked = {name for expression in expressions() for name in re.findall(r"atomic_\w+", expression)}
    assert asked <= known, asked - known
    assert len(expressions()) >= 30


def test_facts_of_the_fleet_are_not_summed_over_servers_and_those_of_processes_are() -> None:
    """Two servers say the same of one fleet; only their own facts add up."""
    for expression in expressions():
        assert not re.search(r"(sum|avg)[^(]*(\([^()]*\) )?\((rate\()?atomic_(fleet|cluster)", expression), expression
        assert not re.search(r"(max|min|avg)[^(]*(\([^()]*\) )?\((rate\()?atomic_instance", expression), expression


def test_every_metric_is_of_a_family_that_says_how_to_add_it_up(families: list[Metric]) -> None:
    for family in families:
        assert re.fullmatch(r"atomic_(fleet|cluster|instance)_[a-z_]+", family.name)
        assert family.documentation
        for sample in family.samples:
            assert set(sample.labels) <= {"state", "outcome", "le"}, sample
            assert {value for name, value in sample.labels.items() if name != "le"} <= VALUES, sample


def test_every_metric_of_the_guide_is_served_and_the_other_way_round(families: list[Metric]) -> None:
    """What a worker counts beside that is a part of a histogram, or the same under another label."""
    [section] = re.findall(r"## The scaling signal\n(.+?)\n## ", GUIDE.read_text(), re.DOTALL)
    named = set(re.findall(r"`(atomic_(?:fleet|cluster|instance)_[a-z_]+[a-z])", section))
    served = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    assert named == served


def test_an_outcome_that_has_not_been_seen_is_a_zero(families: list[Metric]) -> None:
    """Prometheus sees no increase from nothing to one."""
    [attempts] = [family for family in families if family.name == "atomic_instance_attempts"]
    counted = {sample.labels["outcome"]: sample.value for sample in attempts.samples}
    assert counted == dict.fromkeys(["succeeded", "failed", "retried", "crashed"], 0)


def test_each_alert_is_shown_to_fire_and_not_to() -> None:
    shown: dict[str, set[bool]] = {rule["alert"]: set() for rule in rules()}
    for test in yaml.safe_load(RULE_TESTS.read_text())["tests"]:
        for case in test["alert_rule_test"]:
            shown[case["alertname"]].add(bool(case.get("exp_alerts")))
    assert all(outcomes == {True, False} for outcomes in shown.values()), shown


def test_alerts_keep_fleets_apart() -> None:
    """One that is well must not hide another one that is not."""
    for rule in rules():
        if "absent" not in rule["expr"]:
            folds = len(re.findall(r"\b(?:sum|max|min|avg)\b", rule["expr"]))
            assert folds == len(re.findall(r"by \(job", rule["expr"])) > 0, rule["alert"]


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


def test_promtool_agrees_with_the_rules_and_what_makes_them_fire() -> None:
    promtool("check", "rules", RULES)
    promtool("test", "rules", RULE_TESTS)


def test_promtool_understands_what_the_dashboard_asks(tmp_path: Path) -> None:
    asked = [expression.replace("$fleet", ".*").replace("$workers", ".*") for expression in expressions()]
    records = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(asked)]
    file = tmp_path / "dashboard.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": records}]}))
    promtool("check", "rules", file)
