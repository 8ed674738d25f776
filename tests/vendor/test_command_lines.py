"""The presets drive the vendors' own command lines, against servers of this machine (-m vendor)."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
import trustme

from atomic_celery.errors import ProvisionerError
from atomic_celery.fleet.provisioner import Permit, Provisioner
from atomic_celery.provisioners import from_mapping
from tests.provisioners.conftest import JOURNAL, PRESETS, ids, permit, preset, states
from tests.provisioners.github import APP, INSTALLATION, key_pair
from tests.provisioners.test_examples import EXAMPLES, of
from tests.support.daemons import free_port
from tests.support.metadata import MetadataService
from tests.support.waiting import wait_until
from tests.vendor.rest import Rest
from tests.vendor.servers import AzureManager, Compute, Github, Kubernetes

pytestmark = [pytest.mark.vendor, pytest.mark.timeout(600)]  # gcloud takes seconds to start
__all__ = ["permit"]  # a fixture


@pytest.fixture(autouse=True)
def own_programs_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Prefer what is installed beside this Python, and leave this user's configuration alone."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))


def require(program: str, package: str) -> None:
    if shutil.which(program) is None:
        pytest.fail(f"{program} is not installed: {package}", pytrace=False)


def drive(made: Provisioner, permit: Permit, settle: Callable[[], object], settled: str = "running") -> None:
    """Add three, remove the second of them, and see that it was that one and no other."""
    assert list(made.list(permit)) == []
    made.scale_to(3, permit, add=3)
    assert len(made.list(permit)) == 3
    settle()
    first, second, third = ids(made.list(permit))
    assert states(made.list(permit)) == {settled}

    made.drain(second, permit)
    assert ids(made.list(permit)) == [first, third]
    made.drain(second, permit)
    made.drain("12345", permit)
    assert ids(made.list(permit)) == [first, third]

    made.scale_to(3, permit, add=1)
    assert len(made.list(permit)) == 3
    assert {first, third} < set(ids(made.list(permit)))


def needed(asked: list[tuple[str, str]], rights: dict[str, set[str]]) -> set[str]:
    """Return which rights of *rights*, by method and path, what was *asked* takes."""
    found: set[str] = set()
    for method, path in asked:
        [matching] = [given for pattern, given in rights.items() if re.fullmatch(pattern, f"{method} {path}")]
        found |= matching
    return found


def granted(policy: Any) -> set[str]:
    """Return what a policy of AWS's allows."""
    actions = [statement["Action"] for statement in policy["Statement"]]
    return {action for given in actions for action in ([given] if isinstance(given, str) else given)}


def code_of(provisioner: Provisioner, permit: Permit, server: Rest, status: int, document: object) -> str:
    """Return the code of a listing while the server says nothing else."""
    server.instead = status, document
    try:
        provisioner.list(permit)
    except ProvisionerError as error:
        return error.code
    finally:
        server.instead = None
    return "well"


def wrong(name: str, **names: str) -> Provisioner:
    return from_mapping(preset(name, names), JOURNAL)


@pytest.fixture
def moto(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """AWS, as moto serves it, with an empty group."""
    require("aws", "pip install 'atomic_celery[vendor]'")
    port = free_port()
    with open(tmp_path / "moto.log", "wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            env={**os.environ, "MOTO_RECORDER_FILEPATH": str(tmp_path / "recorded")},
            stdout=log,
            stderr=log,
        )
    url = f"http://127.0.0.1:{port}"
    for name, value in {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing-secret",
        "AWS_DEFAULT_REGION": "eu-central-1",
    }.items():
        monkeypatch.setenv(name, value)
    try:
        wait_until(lambda: _answers(url), 60, lambda: (tmp_path / "moto.log").read_text())
        _make_group()
        yield url
    finally:
        server.kill()
        server.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/moto-api/data.json", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _make_group() -> None:
    import boto3

    ec2, autoscaling = boto3.client("ec2"), boto3.client("autoscaling")
    template = {"ImageId": ec2.describe_images()["Images"][0]["ImageId"], "InstanceType": "t3.small"}
    ec2.create_launch_template(LaunchTemplateName="worker", LaunchTemplateData=template)
    autoscaling.create_auto_scaling_group(
        AutoScalingGroupName="a-group",
        LaunchTemplate={"LaunchTemplateName": "worker"},
        MinSize=0,
        MaxSize=20,
        DesiredCapacity=0,
        AvailabilityZones=["eu-central-1a"],
    )


def recorder(moto: str, verb: str) -> bytes:
    """Ask moto's recorder of requests for something."""
    request = urllib.request.Request(f"{moto}/moto-api/recorder/{verb}", method="GET" if "download" in verb else "POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())


def test_aws(moto: str, permit: Permit) -> None:
    recorder(moto, "reset-recording")
    recorder(moto, "start-recording")
    drive(from_mapping(preset("aws-asg"), JOURNAL), permit, lambda: None)
    recorded = [json.loads(line) for line in recorder(moto, "download-recording").splitlines()]
    bodies = [base64.b64decode(each["body"]).decode() if each["body_encoded"] else each["body"] for each in recorded]
    asked = {f"autoscaling:{action}" for body in bodies for action in re.findall(r"\bAction=(\w+)", body)}
    assert asked == granted(of("roles/aws-controller.json"))
    with pytest.raises(ProvisionerError, match=r"an array at AutoScalingGroups\.0\.Instances") as refused:
        wrong("aws-asg", GROUP="another-group").list(permit)
    assert refused.value.code == "malformed"


def test_aws_without_credentials(permit: Permit, monkeypatch: pytest.MonkeyPatch) -> None:
    require("aws", "pip install 'atomic_celery[vendor]'")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    for name in [name for name in os.environ if name.startswith("AWS_") and "KEY" in name]:
        monkeypatch.delenv(name)
    with pytest.raises(ProvisionerError) as refused:
        from_mapping(preset("aws-asg"), JOURNAL).list(permit)
    assert refused.value.code == "auth"


def test_every_state_that_aws_knows_is_in_the_preset() -> None:
    import botocore.session

    model = botocore.session.get_session().get_service_model("autoscaling")
    assert set(model.shape_for("LifecycleState").enum) <= set(preset("aws-asg")["listFormat"]["states"])


@pytest.fixture
def kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubernetes]:
    require("kubectl", "apt-get install kubernetes-client")
    with Kubernetes() as server:
        configuration = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.port}"}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        (tmp_path / "kubeconfig").write_text(json.dumps(configuration))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        yield server


LEAST_PRIVILEGE = {
    "pods": {"GET", "DELETE"},
    "deployments": {"GET"},
    "deployments/scale": {"GET", "PATCH", "PUT"},
}


def test_kubectl(kubernetes: Kubernetes, permit: Permit) -> None:
    def settle() -> None:
        kubernetes.running = dict.fromkeys(kubernetes.running, True)

    made = from_mapping(preset("kubernetes"), JOURNAL)
    drive(made, permit, settle)
    assert kubernetes.replicas == 3

    used: dict[str, set[str]] = {}
    for method, path in kubernetes.asked:
        if "/namespaces/fleet/" in path:
            kind, _name, *part = [*path.partition("/namespaces/fleet/")[2].split("/"), ""][:3]
            used.setdefault("/".join(filter(None, [kind, *part])), set()).add(method)
    assert all(methods <= LEAST_PRIVILEGE[resource] for resource, methods in used.items()), used

    with pytest.raises(ProvisionerError, match="not found") as refused:
        wrong("kubernetes", DEPLOYMENT="another").scale_to(1, permit, add=1)
    assert refused.value.code == "exit"
    with pytest.raises(ProvisionerError, match="forbidden") as refused:
        wrong("kubernetes", NAMESPACE="another").list(permit)
    assert refused.value.code == "auth"
    for status, reason, code in ((401, "Unauthorized", "auth"), (429, "TooManyRequests", "exit")):
        document = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": reason}
        assert code_of(made, permit, kubernetes, status, {**document, "code": status}) == code


@pytest.fixture
def github(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Github]:
    require("gh", "pip install 'atomic_celery[vendor]'")
    authority, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(tls)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with Github(tls) as server:
        yield server


def test_gh(github: Github, permit: Permit, tmp_path: Path) -> None:
    (tmp_path / "app.pem").write_text(key_pair()[0])
    (tmp_path / "app.pem").chmod(0o600)
    given = json.loads((PRESETS / "github-actions.json").read_text().replace("OWNER/REPOSITORY", "acme/flows"))
    given["auth"]["githubApp"] |= {
        "appId": APP,
        "installationId": INSTALLATION,
        "privateKeyFile": str(tmp_path / "app.pem"),
        "host": f"localhost:{github.port}",
        "apiUrl": f"https://localhost:{github.port}",
    }

    def settle() -> None:
        github.states = dict.fromkeys(github.states, "in_progress")

    provisioner = from_mapping(given, JOURNAL)
    provisioner.list(permit)
    github.asked.clear()
    provisioner.list(permit)
    assert len(github.asked) == 10  # 3 600 an hour: what the documentation says of rate limits
    drive(provisioner, permit, settle)
    states = ("requested", "waiting", "pending", "queued", "in_progress", "completed")
    github.states = {19_000_000_100 + number: state for number, state in enumerate(states)}
    assert [run.state for run in provisioner.list(permit)] == ["pending"] * 4 + ["running"]
    assert github.tokens == {"token ghs_a_token"}
    for status, message, code in (
        (401, "Bad credentials", "auth"),
        (403, "Resource not accessible by integration", "auth"),
        (403, "API rate limit exceeded for installation ID 12345678.", "exit"),
        (403, "You have exceeded a secondary rate limit.", "exit"),
        (502, "Server Error", "exit"),
    ):
        assert code_of(provisioner, permit, github, status, {"message": message}) == code, message


@pytest.fixture
def compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compute]:
    if shutil.which("gcloud") is None:
        pytest.skip(
            "gcloud is not installed, and is in neither Debian nor PyPI: https://cloud.google.com/sdk/docs/install"
        )
    (tmp_path / "token").write_text("a-token")
    with Compute() as server:
        for name, value in {
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": server.url,
            "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(tmp_path / "token"),
            "CLOUDSDK_CONFIG": str(tmp_path / "gcloud"),
            "CLOUDSDK_CORE_PROJECT": "acme",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
        }.items():
            monkeypatch.setenv(name, value)
        yield server


# Of each method of the API, by its reference.
GCP_RIGHTS = {
    r"GET .*/instanceGroupManagers/a-group": {"compute.instanceGroupManagers.get"},
    r"POST .*/a-group/listManagedInstances": {"compute.instanceGroupManagers.get"},
    r"POST .*/a-group/resize": {"compute.instanceGroupManagers.update"},
    r"POST .*/a-group/deleteInstances": {"compute.instanceGroupManagers.update", "compute.instances.delete"},
    r"(GET|POST) .*/operations/\w+(/wait)?": {"compute.zoneOperations.get"},
}


def test_gcloud(compute: Compute, permit: Permit) -> None:
    def settle() -> None:
        compute.actions = {name: "NONE" if was == "CREATING" else was for name, was in compute.actions.items()}

    drive(from_mapping(preset("gcp-mig"), JOURNAL), permit, settle)
    assert compute.size == 3
    assert needed(compute.asked, GCP_RIGHTS) == set(of("roles/gcp-controller.yaml")["includedPermissions"])
    with pytest.raises(ProvisionerError, match="was not found") as refused:
        wrong("gcp-mig", GROUP="another").list(permit)
    assert refused.value.code == "exit"


def test_gcloud_that_is_refused(compute: Compute, permit: Permit) -> None:
    made = from_mapping(preset("gcp-mig"), JOURNAL)
    for status, reason, message, code in (
        (403, "forbidden", "Required 'compute.instanceGroupManagers.get' permission for 'projects/acme'", "auth"),
        (401, "authError", "Request had invalid authentication credentials.", "auth"),
        (403, "rateLimitExceeded", "Quota exceeded for quota metric 'Queries' of service 'compute'.", "exit"),
        (403, "quotaExceeded", "Quota 'CPUS' exceeded. Limit: 24.0 in region europe-west1.", "exit"),
    ):
        document = {"error": {"code": status, "message": message, "errors": [{"message": message, "reason": reason}]}}
        assert code_of(made, permit, compute, status, document) == code, message


def test_gcloud_makes_the_controller_s_role_of_its_file(compute: Compute, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_IAM", f"http://127.0.0.1:{compute.port}/")
    file = EXAMPLES / "roles" / "gcp-controller.yaml"
    words = ("iam", "roles", "create", "fleetController", "--project", "acme", "--file", str(file), "--quiet")
    subprocess.run(["gcloud", *words], check=True, stdout=subprocess.DEVNULL, timeout=200)
    assert (
        compute.roles["fleetController"]["includedPermissions"] == of(file.relative_to(EXAMPLES))["includedPermissions"]
    )


@pytest.fixture
def azure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AzureManager]:
    """A cloud of its own, to which `az` is signed in by the managed identity of this machine."""
    require("az", AZ)
    authority, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(tls)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with MetadataService("azure") as machine, AzureManager(tls) as manager:
        machine.resource = manager.url
        machine.token = jwt.encode({"tid": manager.TENANT, "oid": "an-object", "appid": "an-app"}, "k" * 32)
        for name, value in {
            **machine.environ(),
            "AZURE_CONFIG_DIR": str(tmp_path / "azure"),
            "AZURE_CORE_COLLECT_TELEMETRY": "false",
            "REQUESTS_CA_BUNDLE": str(tmp_path / "ca.pem"),
        }.items():
            monkeypatch.setenv(name, value)
        az("cloud", "register", "--name", "here", "--endpoint-resource-manager", manager.url)
        az("cloud", "set", "--name", "here")
        az("login", "--identity")
        yield manager
        assert manager.tokens == {f"Bearer {machine.token}"}


AZ = "pip install azure-cli, in an environment of its own, and put its directory on PATH"


def az(*words: str) -> None:
    subprocess.run(["az", *words], check=True, stdout=subprocess.DEVNULL, timeout=200)


SCALE_SETS = "Microsoft.Compute/virtualMachineScaleSets"
AZURE_RIGHTS: dict[str, set[str]] = {
    r"GET /metadata/endpoints|GET /subscriptions": set(),
    rf"GET .*/{SCALE_SETS}/[\w-]+": {f"{SCALE_SETS}/read"},
    rf"PUT .*/{SCALE_SETS}/[\w-]+": {f"{SCALE_SETS}/write"},
    rf"POST .*/{SCALE_SETS}/[\w-]+/delete": {
        f"{SCALE_SETS}/delete/action",
        f"{SCALE_SETS}/virtualMachines/delete",
    },
    rf"GET .*/{SCALE_SETS}/[\w-]+/virtualMachines": {f"{SCALE_SETS}/virtualMachines/read"},
}


def test_az(azure: AzureManager, permit: Permit) -> None:
    def settle() -> None:
        azure.states = {name: "Succeeded" if was == "Creating" else was for name, was in azure.states.items()}

    drive(from_mapping(preset("azure-vmss"), JOURNAL), permit, settle)
    assert azure.size == 3
    assert needed(azure.asked, AZURE_RIGHTS) == set(of("roles/azure-controller.json")["Actions"])
    with pytest.raises(ProvisionerError, match="was not found") as refused:
        wrong("azure-vmss", SCALE_SET="another").list(permit)
    assert refused.value.code == "exit"


def test_az_that_is_refused(azure: AzureManager, permit: Permit) -> None:
    made = from_mapping(preset("azure-vmss"), JOURNAL)
    for status, name, message, code in (
        (403, "AuthorizationFailed", "The client does not have authorization to perform action", "auth"),
        (
            401,
            "ExpiredAuthenticationToken",
            "The access token expiry UTC time is earlier than now",
            "auth",
        ),
        (409, "OperationNotAllowed", "Operation could not be completed as it results in exceeding quota", "exit"),
    ):
        assert code_of(made, permit, azure, status, {"error": {"code": name, "message": message}}) == code, message


def test_az_without_an_identity(permit: Permit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("az", AZ)
    monkeypatch.setenv("AZURE_CONFIG_DIR", str(tmp_path / "azure"))
    monkeypatch.setenv("AZURE_CORE_COLLECT_TELEMETRY", "false")
    with pytest.raises(ProvisionerError, match="az login") as refused:
        from_mapping(preset("azure-vmss"), JOURNAL).list(permit)
    assert refused.value.code == "auth"
