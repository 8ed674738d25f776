"""The files of `examples/worker-fleet` fit the presets they are for."""

from __future__ import annotations

import configparser
import json
import os
import signal
import subprocess
import sys
import urllib.request
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
import yaml

from atomic_celery.store.urls import StoreUrl
from tests.cli.conftest import CommandLine, World, cli, project, store, world
from tests.provisioners.conftest import PRESETS
from tests.support.daemons import free_port
from tests.support.metadata import INSTANCE, MetadataService
from tests.support.programs import running
from tests.support.roles import Role
from tests.support.waiting import wait_until
from tests.support.workers import APPLICATION, ROOT, Fleet

__all__ = ["cli", "project", "store", "world"]  # fixtures

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


def test_the_parts_of_the_deployment_belong_together() -> None:
    worker, role = of("kubernetes/worker.yaml"), of("kubernetes/controller-role.yaml")
    account, binding, controller = all_of("kubernetes/controller.yaml")
    metrics, service = all_of("kubernetes/metrics.yaml")
    scaler = of("kubernetes/keda.yaml")
    parts = (worker, role, account, binding, controller, metrics, service, scaler)
    assert {part["metadata"]["namespace"] for part in parts} == {worker["metadata"]["namespace"]}
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    [subject] = binding["subjects"]
    assert subject["name"] == account["metadata"]["name"] == pod_of(controller)["serviceAccountName"]
    assert service["spec"]["selector"] == metrics["spec"]["template"]["metadata"]["labels"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == worker["metadata"]["name"]
    for deployment in (worker, controller, metrics):
        assert deployment["spec"]["selector"]["matchLabels"] == deployment["spec"]["template"]["metadata"]["labels"]
        pod = pod_of(deployment)
        secured = pod["securityContext"]
        assert secured["runAsNonRoot"]
        assert secured["fsGroup"] == secured["runAsUser"]  # so that it can read the Secret
        [secret] = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
        assert secret["defaultMode"] == 0o440
        [container] = pod["containers"]
        [mount] = [each for each in container["volumeMounts"] if each["name"] == "database"]
        assert f"{mount['mountPath']}/token" in container["command"]
        assert "subPath" not in mount


def test_what_keda_reads_is_what_the_metrics_deployment_serves(world: World, cli: CommandLine, tmp_path: Path) -> None:
    """The container's own command, but for the app, the address and the credential."""
    metrics, service = all_of("kubernetes/metrics.yaml")
    [trigger] = of("kubernetes/keda.yaml")["spec"]["triggers"]
    url = urlsplit(trigger["metadata"]["url"])
    [served] = service["spec"]["ports"]
    assert url.hostname == f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    assert url.port == served["port"]
    [container] = pod_of(metrics)["containers"]
    port = free_port()
    words = [*container["command"], *container["args"]]
    assert f"0.0.0.0:{url.port}" in words
    for number in range(17):
        world.publish(f"t{number}")

    own = {"proj": "app", f"0.0.0.0:{url.port}": f"127.0.0.1:{port}", "/run/secrets/database/token": "/dev/null"}
    command = [own.get(word, word) for word in words if word not in ("--token-file", "/run/secrets/database/token")]
    command[0] = f"{Path(sys.executable).parent}/celery"
    options = {"directory": cli.directory, "environment": cli.environment, "said": tmp_path / "said"}
    with running(command, **options) as said:
        answer = wait_until(lambda: fetch(f"http://127.0.0.1:{port}{url.path}"), 60, said)
        assert fetch(f"http://127.0.0.1:{port}{container['readinessProbe']['httpGet']['path']}") is not None
    assert json.loads(answer)[trigger["metadata"]["valueLocation"]] == 3  # 17 over 8 slots
    most = of("kubernetes/keda.yaml")["spec"]["maxReplicaCount"]
    assert json.loads(answer)["maxHosts"] == most


def fetch(url: str) -> str | None:
    """Return what is served there, if it is."""
    with suppress(OSError), urllib.request.urlopen(url, timeout=20) as answer:
        return str(answer.read().decode())
    return None


def pod_of(deployment: Any) -> Any:
    return deployment["spec"]["template"]["spec"]


def all_of(path: str) -> list[Any]:
    """Return the documents of a YAML file."""
    return list(yaml.safe_load_all((EXAMPLES / path).read_text()))


def dockerfile() -> list[tuple[str, str]]:
    """Return the instructions of the image, in order."""
    text = (EXAMPLES / "container" / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_image_runs_as_nobody_in_particular_and_holds_no_secret() -> None:
    last = dict(dockerfile())
    assert last["USER"] not in ("0", "root")
    assert last["STOPSIGNAL"] == "SIGTERM"
    assert not {"ARG", "CMD", "ENV", "SHELL"} & {word for word, _ in dockerfile()}


def in_a_container(command: list[str]) -> list[str]:
    """Return a command that runs another one as the first process of its own process table, where that is allowed."""
    apart = ["unshare", "--pid", "--fork", "--mount-proc"]
    try:
        allowed = subprocess.run([*apart, "true"], check=False, capture_output=True, timeout=30).returncode == 0
    except FileNotFoundError:
        allowed = False
    return [*apart, *command] if allowed else command


def test_a_container_that_is_stopped_drains(postgres_url: str, role: Role, tmp_path: Path) -> None:
    """The image's own entry point, but for the app and the place of the token: its process gets SIGTERM."""
    token = tmp_path / "token"
    token.write_text("s3cr3t")
    token.chmod(0o600)
    role.change_password("s3cr3t")
    own = {"proj": APPLICATION, "/run/secrets/atomic-db-token": str(token)}
    entry_point = [own.get(word, word) for word in json.loads(dict(dockerfile())["ENTRYPOINT"])]
    assert set(own.values()) < set(entry_point)
    entry_point[0] = f"{Path(sys.executable).parent}/celery"
    with closing(Fleet(postgres_url, tmp_path, broker=role.url)) as fleet:
        environ = {**os.environ, **fleet.env, "CELERY_BROKER_URL": fleet.broker, "PYTHONPATH": str(ROOT)}
        environ = {**environ, "TEST_BROKER": "atomic+sqlite:////nowhere/else", "C_FORCE_ROOT": "1"}
        command = in_a_container([*entry_point, "--slots", "1"])
        with (tmp_path / "said").open("wb") as said:
            started = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=said, stderr=subprocess.STDOUT)
        try:
            fleet.send("gate", "last", str(tmp_path))
            fleet.begun("last")
            first = psutil.Process(started.pid).children()[0] if command[0] == "unshare" else started
            os.kill(first.pid, signal.SIGTERM)
            wait_until(lambda: "draining" in (tmp_path / "said").read_text(), 60, (tmp_path / "said").read_text)
            assert started.poll() is None
            fleet.open_gate("last")
            assert started.wait(60) == 0
        finally:
            started.kill()
            started.wait(60)
        assert fleet.ledger.rows() == ["last"]
        assert fleet.store.hosts.list() == []


@pytest.mark.parametrize("cloud", INSTANCE)
def test_a_machine_learns_how_its_group_calls_it(cloud: str, tmp_path: Path) -> None:
    """By the line of the cloud-init example, for each cloud."""
    [line] = [line for line in of("cloud-init/worker.yaml")["runcmd"] if "provider-id" in line]
    assert "provider-id aws" in line
    own = {"provider-id aws": f"{EXAMPLES}/systemd/provider-id {cloud}", "/etc/atomic.env": str(tmp_path / "env")}
    for word, instead in own.items():
        line = line.replace(word, instead)
    with MetadataService(cloud) as service:
        environ = {**os.environ, "METADATA_URL": service.url, "no_proxy": "*"}
        run = subprocess.run(["sh", "-c", line], env=environ, check=False, capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stderr
        assert (tmp_path / "env").read_text() == f"ATOMIC_PROVIDER_ID={INSTANCE[cloud]}\n"
        (tmp_path / "env").unlink()
        environ["METADATA_URL"] = f"{service.url}/nowhere"
        assert subprocess.run(["sh", "-c", line], env=environ, check=False, capture_output=True, timeout=60).returncode
    assert not (tmp_path / "env").exists()  # no empty id, which would be nobody's


def test_cloud_init_writes_what_the_other_examples_are() -> None:
    config = of("cloud-init/worker.yaml")
    written = {file["path"]: file for file in config["write_files"]}
    script, unit = EXAMPLES / "systemd" / "provider-id", EXAMPLES / "systemd" / "atomic-worker.service"
    assert written["/usr/local/bin/provider-id"]["content"] == script.read_text()
    assert written["/usr/local/bin/provider-id"]["permissions"] == "0755"
    assert written["/etc/systemd/system/atomic-worker.service"]["content"] == unit.read_text()
    assert config["runcmd"][-1] == ["systemctl", "enable", "--now", "atomic-worker"]
    assert unit_of(unit)["Service"]["EnvironmentFile"] in written
    assert unit_of(unit)["Service"]["User"] in {user["name"] for user in config["users"]}
    url = written["/etc/atomic.env"]["content"].strip().partition("=")[2]
    assert StoreUrl.parse(url).password is None


def test_the_workflow_plans_as_many_jobs_as_it_is_asked_for(tmp_path: Path) -> None:
    """By the step's own script, as a runner runs it."""
    job = of("github-actions/atomic-workers.yml")["jobs"]["plan"]
    [step] = job["steps"]
    [name] = job["outputs"]
    for workers, numbers in (("1", [1]), ("3", [1, 2, 3])):
        environ = {**os.environ, "GITHUB_OUTPUT": str(tmp_path / workers), "WORKERS": workers}
        subprocess.run(["bash", "-e", "-c", step["run"]], env=environ, check=True, timeout=60)
        key, _, value = (tmp_path / workers).read_text().strip().partition("=")
        assert (key, json.loads(value)) == (name, numbers)


def test_a_run_serves_and_ends_by_itself_when_it_is_idle(postgres_url: str, role: Role, tmp_path: Path) -> None:
    """The job's last step, but for the app and how long it stays idle."""
    (tmp_path / "database-token").write_text("s3cr3t")
    (tmp_path / "database-token").chmod(0o600)
    role.change_password("s3cr3t")
    script = of("github-actions/atomic-workers.yml")["jobs"]["worker"]["steps"][-1]["run"]
    for word, instead in {"-A proj ": f"-A {APPLICATION} ", "120000": "1000"}.items():
        assert word in script
        script = script.replace(word, instead)
    with closing(Fleet(postgres_url, tmp_path, broker=role.url)) as fleet:
        fleet.send("note", "ran")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environ = {**os.environ, **fleet.env, "PATH": path, "RUNNER_TEMP": str(tmp_path), "C_FORCE_ROOT": "1"}
        environ |= {"ATOMIC_PROVIDER_ID": "19000000001", "PYTHONPATH": str(ROOT)}
        run = subprocess.run(
            ["bash", "-e", "-c", script],
            cwd=tmp_path,
            env=environ,
            check=False,
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert run.returncode == 0, run.stderr
        assert fleet.ledger.rows() == ["ran"]
        assert "instance=19000000001" in run.stdout


def unit_of(path: Path) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(path)
    return unit


def test_the_unit_ends_a_host_by_a_drain() -> None:
    unit = unit_of(EXAMPLES / "systemd" / "atomic-worker.service")
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
