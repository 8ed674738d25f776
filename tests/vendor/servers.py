"""What stands behind the command lines here: the parts of the platforms' APIs that the presets use, keeping state."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.vendor.rest import NoSuchThing, Rest

CREATED = "2026-11-14T09:30:00Z"


class Kubernetes(Rest):
    """A Deployment `worker` in the namespace `fleet`, whose controller acts at once."""

    _POD = r"/api/v1/namespaces/fleet/pods/([\w-]+)"
    _SCALE = r"/apis/apps/v1/namespaces/fleet/deployments/worker/scale"
    routes: ClassVar = {
        r"GET /api": "core_versions",
        r"GET /apis": "groups",
        r"GET /api/v1": "core_resources",
        r"GET /apis/apps/v1": "apps_resources",
        r"GET /api/v1/namespaces/fleet/pods": "pods",
        f"GET {_POD}": "pod",
        f"DELETE {_POD}": "delete_pod",
        r"GET /apis/apps/v1/namespaces/fleet/deployments/worker": "deployment",
        f"GET {_SCALE}": "scale",
        f"PUT {_SCALE}": "set_scale",
        f"PATCH {_SCALE}": "set_scale",
        r"GET /api/v1/namespaces/(\w+)": "forbidden",  # kubectl asks when it does not find a thing
        r"GET /api/v1/namespaces/(\w+)/pods": "forbidden",
        r"GET /apis/apps/v1/namespaces/\w+/deployments/([\w-]+)": "nothing",
    }

    def __init__(self) -> None:
        super().__init__()
        self.replicas, self.made = 0, 0
        self.running: dict[str, bool] = {}
        self.terminating: set[str] = set()

    def core_versions(self, **_: Any) -> Any:
        return {"kind": "APIVersions", "versions": ["v1"]}

    def groups(self, **_: Any) -> Any:
        version = {"groupVersion": "apps/v1", "version": "v1"}
        return {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [{"name": "apps", "versions": [version], "preferredVersion": version}],
        }

    def core_resources(self, **_: Any) -> Any:
        pods = {
            "name": "pods",
            "singularName": "pod",
            "namespaced": True,
            "kind": "Pod",
            "verbs": ["delete", "get", "list"],
            "shortNames": ["po"],
        }
        return {"kind": "APIResourceList", "groupVersion": "v1", "resources": [pods]}

    def apps_resources(self, **_: Any) -> Any:
        deployments = {
            "name": "deployments",
            "singularName": "deployment",
            "namespaced": True,
            "kind": "Deployment",
            "verbs": ["get"],
        }
        scale = {
            "name": "deployments/scale",
            "singularName": "",
            "namespaced": True,
            "group": "autoscaling",
            "version": "v1",
            "kind": "Scale",
            "verbs": ["get", "patch", "update"],
        }
        return {"kind": "APIResourceList", "groupVersion": "apps/v1", "resources": [deployments, scale]}

    def pods(self, *, query: dict[str, str], **_: Any) -> Any:
        labelled = query.get("labelSelector") == "app.kubernetes.io/name=worker"
        items = [self._pod(name) for name in self.running] if labelled else []
        return {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}

    def pod(self, name: str, **_: Any) -> Any:
        if name not in self.running:
            raise self._not_found("pods", name)
        return self._pod(name)

    def delete_pod(self, name: str, **_: Any) -> Any:
        found = self.pod(name)
        self.terminating.add(name)
        self._reconcile()
        return found

    def deployment(self, **_: Any) -> Any:
        return {
            "kind": "Deployment",
            "apiVersion": "apps/v1",
            "metadata": {"name": "worker", "namespace": "fleet", "resourceVersion": "1", "uid": "u"},
            "spec": {"replicas": self.replicas},
        }

    def scale(self, **_: Any) -> Any:
        return {
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": {"name": "worker", "namespace": "fleet", "resourceVersion": "1", "uid": "u"},
            "spec": {"replicas": self.replicas},
            "status": {"replicas": len(self.running), "selector": "app.kubernetes.io/name=worker"},
        }

    def set_scale(self, *, body: Any, **_: Any) -> Any:
        self.replicas = body["spec"].get("replicas", 0)
        self._reconcile()
        return self.scale()

    def forbidden(self, namespace: str, **_: Any) -> Any:
        why = f'pods is forbidden: User "c" cannot list resource "pods" in API group "" in the namespace "{namespace}"'
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": why, "reason": "Forbidden"}
        raise NoSuchThing({**status, "code": 403}, 403)

    def nothing(self, name: str, **_: Any) -> Any:
        raise self._not_found("deployments.apps", name)

    def _not_found(self, kind: str, name: str) -> NoSuchThing:
        why = f'{kind} "{name}" not found'
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": why, "reason": "NotFound"}
        return NoSuchThing({**status, "code": 404, "details": {"name": name, "kind": kind}})

    def _pod(self, name: str) -> Any:
        ends = {"deletionTimestamp": CREATED, "deletionGracePeriodSeconds": 900} if name in self.terminating else {}
        return {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"name": name, "namespace": "fleet", "uid": name, "creationTimestamp": CREATED, **ends},
            "status": {"phase": "Running" if self.running[name] else "Pending"},
        }

    def _reconcile(self) -> None:
        active = [name for name in self.running if name not in self.terminating]
        for _ in range(self.replicas - len(active)):
            self.made += 1
            self.running[f"worker-5d4f8c7b9c-{self.made:05d}"] = False
        active.reverse()
        for name in sorted(active, key=self.running.__getitem__)[: max(0, len(active) - self.replicas)]:
            self.terminating.add(name)


class Github(Rest):
    """The workflow `atomic-workers.yml` of `acme/flows`, below a GitHub Enterprise Server's `/api/v3`."""

    _REPOSITORY = "/api/v3/repos/acme/flows/actions"
    routes: ClassVar = {
        r"POST /app/installations/12345678/access_tokens": "token",
        r"GET /api/v3/meta": "meta",
        rf"GET {_REPOSITORY}/workflows/atomic-workers\.yml": "workflow",
        rf"GET {_REPOSITORY}/workflows/7": "workflow",
        rf"GET {_REPOSITORY}/workflows": "workflows",
        rf"GET {_REPOSITORY}/workflows/7/runs": "runs",
        rf"POST {_REPOSITORY}/workflows/7/dispatches": "dispatch",
        rf"GET {_REPOSITORY}/runs/(\d+)": "run",
        rf"POST {_REPOSITORY}/runs/(\d+)/cancel": "cancel",
    }

    def __init__(self, tls: Any) -> None:
        super().__init__(tls)
        self.states: dict[int, str] = {}
        self.tokens: set[str | None] = set()

    def answer(self, method: str, target: str, headers: Any, body: bytes) -> tuple[int, Any]:
        """Refuse who has no token."""
        if target.startswith("/api/v3"):
            self.tokens.add(headers.get("Authorization"))
            if headers.get("Authorization") != "token ghs_a_token":
                return 401, {"message": "Bad credentials"}
        return super().answer(method, target, headers, body)

    def token(self, **_: Any) -> Any:
        raise NoSuchThing({"token": "ghs_a_token", "expires_at": "2126-11-14T10:30:00Z"}, 201)

    def meta(self, **_: Any) -> Any:
        return {"installed_version": "3.19.0", "verifiable_password_authentication": True}

    def workflow(self, **_: Any) -> Any:
        return {"id": 7, "name": "Workers", "path": ".github/workflows/atomic-workers.yml", "state": "active"}

    def workflows(self, **_: Any) -> Any:
        return {"total_count": 1, "workflows": [self.workflow()]}

    def runs(self, *, query: dict[str, str], **_: Any) -> Any:
        found = [self._run(number) for number, state in self.states.items() if state == query.get("status", state)]
        return {"total_count": len(found), "workflow_runs": found}

    def dispatch(self, *, body: Any, **_: Any) -> None:
        if body.get("inputs") != {"workers": "1"} or body.get("ref") != "main":
            raise NoSuchThing({"message": f"Unexpected inputs provided: {body}"}, 422)
        self.states[19_000_000_001 + len(self.states)] = "queued"

    def run(self, number: str, **_: Any) -> Any:
        if int(number) not in self.states:
            raise NoSuchThing({"message": "Not Found"})
        return self._run(int(number))

    def cancel(self, number: str, **_: Any) -> Any:
        if self.states[int(number)] == "completed":
            raise NoSuchThing({"message": "Cannot cancel a workflow run that is completed"}, 409)
        self.states[int(number)] = "completed"
        raise NoSuchThing({}, 202)

    def _run(self, number: int) -> Any:
        return {
            "id": number,
            "name": "Workers",
            "status": self.states[number],
            "conclusion": None,
            "workflow_id": 7,
            "run_number": 1,
            "created_at": CREATED,
            "updated_at": CREATED,
            "run_started_at": CREATED,
            "head_branch": "main",
            "head_sha": "0" * 40,
            "event": "workflow_dispatch",
        }


class Compute(Rest):
    """A managed instance group `a-group` in `europe-west1-b`; its instances are there at once."""

    _ZONE = r"/compute/v1/projects/acme/zones/europe-west1-b"
    _GROUP = rf"{_ZONE}/instanceGroupManagers/a-group"
    routes: ClassVar = {
        rf"POST {_GROUP}/listManagedInstances": "instances",
        rf"POST {_GROUP}/resize": "resize",
        rf"POST {_GROUP}/deleteInstances": "delete",
        rf"GET {_GROUP}": "group",
        rf"POST {_ZONE}/operations/(\w+)/wait": "operation",
        rf"GET {_ZONE}/operations/(\w+)": "operation",
        r"POST /compute/v1/projects/acme/zones/europe-west1-b/instanceGroupManagers/([\w-]+)/\w+": "nothing",
        r"POST /v1/projects/acme/roles": "make_role",
    }

    def __init__(self) -> None:
        super().__init__()
        self.size, self.made = 0, 0
        self.actions: dict[str, str] = {}
        self.roles: dict[str, Any] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/compute/v1/"

    def instances(self, **_: Any) -> Any:
        zone = f"{self.url}projects/acme/zones/europe-west1-b"
        return {
            "managedInstances": [
                {
                    "name": name,
                    "instance": f"{zone}/instances/{name}",
                    "currentAction": action,
                    "instanceStatus": "RUNNING",
                }
                for name, action in self.actions.items()
            ]
        }

    def resize(self, *, query: dict[str, str], **_: Any) -> Any:
        self.size = int(query["size"])
        active = [name for name, action in self.actions.items() if action != "DELETING"]
        for _number in range(self.size - len(active)):
            self.made += 1
            self.actions[f"worker-{self.made:04d}"] = "CREATING"
        return self.operation("resize", status="RUNNING")

    def delete(self, *, body: Any, **_: Any) -> Any:
        for url in body["instances"]:
            name = url.rpartition("/")[2]
            if name not in self.actions:
                raise NoSuchThing({"error": {"code": 400, "message": f"{name} is not a member of the group"}}, 400)
            self.actions[name] = "DELETING"
            self.size -= 1
        return self.operation("delete", status="RUNNING")

    def group(self, **_: Any) -> Any:
        zone = f"{self.url}projects/acme/zones/europe-west1-b"
        return {
            "kind": "compute#instanceGroupManager",
            "name": "a-group",
            "zone": zone,
            "selfLink": f"{zone}/instanceGroupManagers/a-group",
            "targetSize": self.size,
        }

    def operation(self, name: str, *, status: str = "DONE", **_: Any) -> Any:
        zone = f"{self.url}projects/acme/zones/europe-west1-b"
        return {
            "kind": "compute#operation",
            "name": name,
            "status": status,
            "zone": zone,
            "selfLink": f"{zone}/operations/{name}",
            "targetLink": f"{zone}/instanceGroupManagers/a-group",
            "operationType": name,
        }

    def make_role(self, *, body: Any, **_: Any) -> Any:
        self.roles[body["roleId"]] = body["role"]
        return {"name": f"projects/acme/roles/{body['roleId']}", **body["role"]}

    def nothing(self, name: str, **_: Any) -> Any:
        why = f"The resource 'projects/acme/zones/europe-west1-b/instanceGroupManagers/{name}' was not found"
        raise NoSuchThing({"error": {"code": 404, "message": why, "errors": [{"message": why, "reason": "notFound"}]}})


class AzureManager(Rest):
    """Azure's Resource Manager, with a scale set `a-scale-set` of Uniform orchestration in `a-group`."""

    TENANT, SUBSCRIPTION = "11111111-1111-1111-1111-111111111111", "44444444-4444-4444-4444-444444444444"
    _GROUP = rf"/subscriptions/{SUBSCRIPTION}/resourceGroups/a-group"
    _SCALE_SETS = rf"{_GROUP}/providers/Microsoft\.Compute/virtualMachineScaleSets"
    routes: ClassVar = {
        r"GET /metadata/endpoints": "endpoints",
        r"GET /subscriptions": "subscriptions",
        rf"GET {_SCALE_SETS}/a-scale-set": "scale_set",
        rf"(?:PUT|PATCH) {_SCALE_SETS}/a-scale-set": "set_capacity",
        rf"POST {_SCALE_SETS}/a-scale-set/delete": "delete",
        rf"GET {_SCALE_SETS}/a-scale-set/virtualMachines": "machines",
        rf"GET {_SCALE_SETS}/([\w-]+)(?:/virtualMachines)?": "nothing",
    }

    def __init__(self, tls: Any) -> None:
        super().__init__(tls)
        self.size, self.made = 0, 0
        self.states: dict[str, str] = {}
        self.tokens: set[str | None] = set()

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def answer(self, method: str, target: str, headers: Any, body: bytes) -> tuple[int, Any]:
        """Note what it is asked with."""
        if target.startswith("/subscriptions"):
            self.tokens.add(headers.get("Authorization"))
        return super().answer(method, target, headers, body)

    def endpoints(self, **_: Any) -> Any:
        return {
            "name": "here",
            "authentication": {"loginEndpoint": self.url, "audiences": [self.url], "tenant": "common"},
            "graphAudience": self.url,
            "portal": self.url,
            "resourceManager": self.url,
            "suffixes": {},
        }

    def subscriptions(self, **_: Any) -> Any:
        subscription = {
            "id": f"/subscriptions/{self.SUBSCRIPTION}",
            "subscriptionId": self.SUBSCRIPTION,
            "displayName": "Fleet",
            "state": "Enabled",
            "tenantId": self.TENANT,
        }
        return {"value": [subscription]}

    def scale_set(self, **_: Any) -> Any:
        return {
            "id": f"{self._GROUP}/providers/Microsoft.Compute/virtualMachineScaleSets/a-scale-set",
            "name": "a-scale-set",
            "location": "westeurope",
            "sku": {"name": "Standard_D4s_v5", "tier": "Standard", "capacity": self.size},
            "properties": {"provisioningState": "Succeeded", "orchestrationMode": "Uniform", "overprovision": False},
        }

    def set_capacity(self, *, body: Any, **_: Any) -> Any:
        self.size = body["sku"]["capacity"]
        active = [name for name, state in self.states.items() if state != "Deleting"]
        for _number in range(self.size - len(active)):
            self.states[str(self.made)] = "Creating"
            self.made += 1
        return self.scale_set()

    def delete(self, *, body: Any, **_: Any) -> Any:
        for number in body["instanceIds"]:
            if number not in self.states:
                why = f"The provided instanceId {number} is not an active Virtual Machine Scale Set VM instanceId."
                raise NoSuchThing({"error": {"code": "InvalidParameter", "message": why}}, 400)
            self.states[number] = "Deleting"
            self.size -= 1
        raise NoSuchThing(None, 202)

    def machines(self, **_: Any) -> Any:
        return {
            "value": [
                {
                    "instanceId": number,
                    "name": f"a-scale-set_{number}",
                    "location": "westeurope",
                    "properties": {"provisioningState": state, "timeCreated": "2026-11-14T09:30:00.1234567+00:00"},
                }
                for number, state in self.states.items()
            ]
        }

    def nothing(self, name: str, **_: Any) -> Any:
        why = f"The Resource 'Microsoft.Compute/virtualMachineScaleSets/{name}' was not found."
        raise NoSuchThing({"error": {"code": "ResourceNotFound", "message": why}})
