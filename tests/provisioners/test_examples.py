"""The files of `examples/worker-fleet` fit the presets they are for."""

from __future__ import annotations

import configparser
import json
from typing import Any

import pytest
import yaml

from tests.provisioners.conftest import PRESETS

EXAMPLES = PRESETS.parent


def of(path: str) -> Any:
    """Return the content of a YAML or JSON file."""
    return yaml.safe_load((EXAMPLES / path).read_text())


def words(name: str) -> list[str]:
    """Return all words of a preset's commands."""
    given = json.loads((PRESETS / f"{name}.json").read_text())
    commands = [given[key] for key in ("up", "down", "list")]
    return [word for command in commands for part in command for word in ([part] if isinstance(part, str) else part)]


def test_the_deployment_is_the_one_that_the_preset_drives() -> None:
    worker = of("kubernetes/worker.yaml")
    name, labels = worker["metadata"]["name"], worker["spec"]["template"]["metadata"]["labels"]
    [selector] = {word.replace("DEPLOYMENT", name) for word in words("kubernetes") if word.startswith("app.")}
    assert selector in {f"{key}={value}" for key, value in labels.items()}
    assert worker["spec"]["selector"]["matchLabels"] == labels
    [container] = worker["spec"]["template"]["spec"]["containers"]
    assert container["command"][:2] == ["celery", "-A"]


def test_the_role_is_for_that_deployment_and_for_what_kubectl_does() -> None:
    role, worker = of("kubernetes/controller-role.yaml"), of("kubernetes/worker.yaml")
    assert role["metadata"]["namespace"] == worker["metadata"]["namespace"]
    granted = {rule["resources"][0]: (rule["verbs"], rule.get("resourceNames")) for rule in role["rules"]}
    name = [worker["metadata"]["name"]]
    assert granted == {
        "pods": (["get", "list", "delete"], None),
        "deployments": (["get"], name),
        "deployments/scale": (["get", "patch", "update"], name),
    }


def test_the_workflow_is_the_one_that_the_preset_dispatches() -> None:
    workflow = of("github-actions/atomic-workers.yml")
    assert "atomic-workers.yml" in words("github-actions")
    [given] = [word for word in words("github-actions") if word.startswith("workers=")]
    assert given.partition("=")[0] in workflow[True]["workflow_dispatch"]["inputs"]  # YAML reads `on` as a truth
    assert "concurrency" not in workflow
    last = workflow["jobs"]["worker"]["steps"][-1]
    assert last["env"] == {"ATOMIC_PROVIDER_ID": "${{ github.run_id }}"}
    assert "--idle-exit" in last["run"]


def test_the_unit_ends_a_host_by_a_drain() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(EXAMPLES / "systemd" / "atomic-worker.service")
    assert unit["Service"]["KillSignal"] == "SIGTERM"
    assert unit["Service"]["ExecStart"].startswith("/opt/proj/bin/celery -A proj worker -P atomic")
    assert int(unit["Service"]["TimeoutStopSec"]) >= 900


@pytest.mark.parametrize(
    ("path", "granted"),
    [
        (
            "roles/aws-controller.json",
            {
                "autoscaling:SetDesiredCapacity",
                "autoscaling:TerminateInstanceInAutoScalingGroup",
                "autoscaling:DescribeAutoScalingGroups",
            },
        ),
        (
            "roles/azure-controller.json",
            {
                "Microsoft.Compute/virtualMachineScaleSets/read",
                "Microsoft.Compute/virtualMachineScaleSets/write",
                "Microsoft.Compute/virtualMachineScaleSets/delete/action",
                "Microsoft.Compute/virtualMachineScaleSets/virtualMachines/read",
                "Microsoft.Compute/virtualMachineScaleSets/virtualMachines/delete",
            },
        ),
        (
            "roles/gcp-controller.yaml",
            {
                "compute.instanceGroupManagers.get",
                "compute.instanceGroupManagers.update",
                "compute.instances.delete",
                "compute.zoneOperations.get",
            },
        ),
    ],
)
def test_a_controller_s_role_grants_what_the_preset_needs_and_no_more(path: str, granted: set[str]) -> None:
    assert set(_actions(of(path))) == granted


def _actions(document: Any) -> list[str]:
    if isinstance(document, dict):
        own = document.get("Action", document.get("Actions", document.get("includedPermissions", [])))
        rest = [
            action
            for key, value in document.items()
            if key not in ("Actions", "includedPermissions")
            for action in _actions(value)
        ]
        return [*([own] if isinstance(own, str) else own), *rest]
    return [action for each in document for action in _actions(each)] if isinstance(document, list) else []
