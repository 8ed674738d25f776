"""Command lines of platforms that keep state in a file: they take what the real ones take and refuse what those refuse.

Run as a program: `platforms.py aws autoscaling …`. What they print and how they complain follows the vendors' pages.
Every call is written to the state's log, and so is every instance that the platform itself picked as a victim.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NoReturn

CREATED = "2026-11-14T09:30:00"


class Refused(Exception):
    """What goes to stderr, and the exit code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


class Arguments(argparse.ArgumentParser):
    """Options as they stand in the command line, none abbreviated."""

    def __init__(self, words: str, *options: str, flags: tuple[str, ...] = (), positional: int = 0) -> None:
        super().__init__(prog=words, allow_abbrev=False, add_help=False)
        for number, word in enumerate(words.split()):
            self.add_argument(f"word{number}", choices=[word])
        for number in range(positional):
            self.add_argument(f"given{number}")
        for option in options:
            self.add_argument(option, required=not option.startswith("--output"))
        for flag in flags:
            self.add_argument(flag, action="store_true")

    def error(self, message: str) -> NoReturn:
        raise Refused(2, f"{self.prog}: error: {message}")


class Platform:
    """What they have in common: instances with a state, a size, and rules."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state
        self.instances: list[dict[str, Any]] = state["instances"]

    def run(self, argv: list[str]) -> Any:
        """Do what *argv* says; return what to print."""
        self.state["log"].append(argv)
        if self.state.get("refuse_login"):
            raise self.login_refused()
        for words, method in self.commands.items():
            if argv[: len(words.split())] == words.split():
                return getattr(self, method)(argv)
        raise Refused(2, f"unknown command: {' '.join(argv[:3])}")

    commands: ClassVar[dict[str, str]]

    def login_refused(self) -> Refused:
        raise NotImplementedError

    def found(self, name: str) -> dict[str, Any] | None:
        return next((each for each in self.instances if each["name"] == name), None)

    def add(self, count: int, fresh: str) -> None:
        for _ in range(count):
            self.state["made"] += 1
            self.instances.append({"name": self.name_of(self.state["made"]), "state": fresh})

    def name_of(self, number: int) -> str:
        return f"worker-{number}"

    def pick_victims(self, count: int, gone: str, counted: list[dict[str, Any]]) -> None:
        for victim in counted[:count]:
            victim["state"] = gone
            self.state["victims"].append(victim["name"])

    def resize(self, size: int, fresh: str, gone: str, lost: frozenset[str]) -> None:
        counted = [each for each in self.instances if each["state"] not in lost]
        if size >= len(counted):
            self.add(size - len(counted), fresh)
        else:
            self.pick_victims(len(counted) - size, gone, counted)
        self.state["size"] = size


class Azure(Platform):
    """`az vmss`: instance ids are numbers in texts."""

    commands: ClassVar = {
        "vmss scale": "scale",
        "vmss delete-instances": "delete",
        "vmss list-instances": "list",
    }

    def name_of(self, number: int) -> str:
        return str(number)

    def login_refused(self) -> Refused:
        return Refused(
            1,
            "ERROR: (AuthorizationFailed) The client 'c' does not have authorization to perform action",
        )

    def _options(self, words: str, *more: str, flags: tuple[str, ...] = ()) -> Any:
        return Arguments(words, "--resource-group", "--name", "--output", *more, flags=("--only-show-errors", *flags))

    def _parse(self, parser: Any, argv: list[str]) -> Any:
        given = parser.parse_args(argv)
        if (given.resource_group, given.name) != ("a-group", "a-scale-set"):
            raise Refused(3, f"ERROR: (ResourceNotFound) The Resource '{given.name}' was not found.")
        return given

    def list(self, argv: list[str]) -> Any:
        self._parse(self._options("vmss list-instances"), argv)
        return [
            {
                "instanceId": each["name"],
                "name": f"a-scale-set_{each['name']}",
                "latestModelApplied": True,
                "location": "westeurope",
                "provisioningState": each["state"],
                "resourceGroup": "A-GROUP",
                "timeCreated": f"{CREATED}.1234567+00:00",
                "vmId": "00000000-0000-0000-0000-000000000000",
                "zones": None,
            }
            for each in self.instances
        ]

    def scale(self, argv: list[str]) -> None:
        given = self._parse(self._options("vmss scale", "--new-capacity", flags=("--no-wait",)), argv)
        self.resize(int(given.new_capacity), "Creating", "Deleting", frozenset({"Deleting"}))

    def delete(self, argv: list[str]) -> None:
        given = self._parse(self._options("vmss delete-instances", "--instance-ids", flags=("--no-wait",)), argv)
        instance = self.found(given.instance_ids)
        if instance is None:
            raise Refused(
                1,
                f"ERROR: (InvalidParameter) The provided instanceId {given.instance_ids} is not an active "
                "Virtual Machine Scale Set VM instanceId.",
            )
        instance["state"] = "Deleting"
        self.state["size"] -= 1


class Aws(Platform):
    """`aws autoscaling`: refuses to go below the group's least size and above its most."""

    commands: ClassVar = {
        "autoscaling describe-auto-scaling-groups": "describe",
        "autoscaling set-desired-capacity": "set_desired",
        "autoscaling terminate-instance-in-auto-scaling-group": "terminate",
    }
    _LOST = frozenset({"Terminating", "Terminating:Wait", "Terminated", "Standby", "Detached"})

    def name_of(self, number: int) -> str:
        return f"i-{number:017x}"

    def login_refused(self) -> Refused:
        return self._error("AccessDenied", "DescribeAutoScalingGroups", "User: arn:aws:iam::1:user/x is not authorized")

    def _error(self, code: str, operation: str, text: str) -> Refused:
        return Refused(254, f"\nAn error occurred ({code}) when calling the {operation} operation: {text}")

    def describe(self, argv: list[str]) -> Any:
        given = Arguments(
            "autoscaling describe-auto-scaling-groups", "--auto-scaling-group-names", "--output"
        ).parse_args(argv)
        if given.auto_scaling_group_names != "a-group":
            return {"AutoScalingGroups": []}
        group = {
            "AutoScalingGroupName": "a-group",
            "MinSize": 0,
            "MaxSize": 20,
            "DesiredCapacity": self.state["size"],
            "Instances": [
                {
                    "InstanceId": each["name"],
                    "InstanceType": "m7g.large",
                    "AvailabilityZone": "eu-central-1a",
                    "LifecycleState": each["state"],
                    "HealthStatus": "Healthy",
                    "ProtectedFromScaleIn": False,
                }
                for each in self.instances
            ],
            "CreatedTime": f"{CREATED}.123000+00:00",
            "SuspendedProcesses": [{"ProcessName": "AZRebalance", "SuspensionReason": "User suspended at ..."}],
        }
        return {"AutoScalingGroups": [group]}

    def set_desired(self, argv: list[str]) -> None:
        given = Arguments(
            "autoscaling set-desired-capacity", "--auto-scaling-group-name", "--desired-capacity"
        ).parse_args(argv)
        if given.auto_scaling_group_name != "a-group":
            raise self._error("ValidationError", "SetDesiredCapacity", "AutoScalingGroup name not found")
        size = int(given.desired_capacity)
        if size > 20:
            why = f"New SetDesiredCapacity value {size} is above max value 20 for the AutoScalingGroup."
            raise self._error("ValidationError", "SetDesiredCapacity", why)
        self.resize(size, "Pending", "Terminating", self._LOST)

    def terminate(self, argv: list[str]) -> Any:
        given = Arguments(
            "autoscaling terminate-instance-in-auto-scaling-group",
            "--instance-id",
            "--output",
            flags=("--should-decrement-desired-capacity",),
        ).parse_args(argv)
        operation = "TerminateInstanceInAutoScalingGroup"
        instance = self.found(given.instance_id)
        if instance is None:
            why = f"Instance Id not found - No managed instance found for instance ID: {given.instance_id}"
            raise self._error("ValidationError", operation, why)
        if instance["state"].startswith("Warmed"):
            raise self._error("ValidationError", operation, "The instance is not part of Auto Scaling group")
        if given.should_decrement_desired_capacity:
            if self.state["size"] == 0:
                why = "Currently, desiredSize equals minSize (0). Terminating instance without replacement will violate"
                raise self._error("ValidationError", operation, why)
            self.state["size"] -= 1
        else:
            self.add(1, "Pending")
        instance["state"] = "Terminating"
        return {"Activity": {"ActivityId": "a", "StatusCode": "InProgress", "Progress": 0}}


class Gcloud(Platform):
    """`gcloud compute instance-groups managed`."""

    _WORDS = "compute instance-groups managed"
    commands: ClassVar = {
        f"{_WORDS} list-instances": "list",
        f"{_WORDS} resize": "change",
        f"{_WORDS} delete-instances": "delete",
    }
    _LOST = frozenset({"DELETING", "ABANDONING"})

    def login_refused(self) -> Refused:
        return Refused(
            1,
            "ERROR: (gcloud.compute.instance-groups.managed.list-instances) Could not fetch resource:\n"
            " - Required 'compute.instanceGroupManagers.get' permission for 'projects/p/zones/z/x'",
        )

    def _parse(self, argv: list[str], verb: str, *options: str) -> Any:
        given = Arguments(
            f"{self._WORDS} {verb}", "--zone", "--format", *options, flags=("--quiet",), positional=1
        ).parse_args(argv)
        if (given.given0, given.zone) != ("a-group", "europe-west1-b"):
            raise Refused(
                1,
                f"ERROR: (gcloud.compute.instance-groups.managed.{verb}) Could not fetch resource:\n"
                f" - The resource 'projects/p/zones/{given.zone}/instanceGroupManagers/{given.given0}' was not found",
            )
        return given

    def list(self, argv: list[str]) -> Any:
        self._parse(argv, "list-instances")
        zone = "https://www.googleapis.com/compute/v1/projects/p/zones/europe-west1-b"
        return [
            {
                "currentAction": each["state"],
                "id": "123",
                "instance": f"{zone}/instances/{each['name']}",
                "instanceStatus": "RUNNING" if each["state"] == "NONE" else "STAGING",
                "name": each["name"],
                "version": {"instanceTemplate": "a-template", "name": ""},
            }
            for each in self.instances
        ]

    def change(self, argv: list[str]) -> None:
        self.resize(int(self._parse(argv, "resize", "--size").size), "CREATING", "DELETING", self._LOST)

    def delete(self, argv: list[str]) -> None:
        name = self._parse(argv, "delete-instances", "--instances").instances
        instance = self.found(name)
        if instance is None:
            raise Refused(1, f"ERROR: Invalid value for field 'instances': '{name}' is not a member of the group")
        instance["state"] = "DELETING"
        self.state["size"] -= 1


class Kubectl(Platform):
    """`kubectl`, with a Deployment whose controller acts at once."""

    commands: ClassVar = {"get pods": "list", "scale": "scale", "delete pod": "delete"}

    def name_of(self, number: int) -> str:
        return f"worker-5d4f8c7b9c-{number:05d}"

    def login_refused(self) -> Refused:
        return Refused(
            1,
            'Error from server (Forbidden): pods is forbidden: User "system:serviceaccount:fleet:c" cannot list '
            'resource "pods" in API group "" in the namespace "fleet"',
        )

    def _require_namespace(self, given: Any) -> None:
        if given.namespace != "fleet":
            raise Refused(
                1, f'Error from server (Forbidden): pods is forbidden: cannot list in the namespace "{given.namespace}"'
            )

    def _active(self) -> list[dict[str, Any]]:
        return [
            each for each in self.instances if not each.get("deleted") and each["state"] not in ("Succeeded", "Failed")
        ]

    def list(self, argv: list[str]) -> Any:
        given = Arguments("get pods", "--namespace", "--selector", "--output").parse_args(argv)
        self._require_namespace(given)
        if given.selector != "app.kubernetes.io/name=worker":
            return {"apiVersion": "v1", "kind": "List", "items": [], "metadata": {"resourceVersion": ""}}
        return {"apiVersion": "v1", "kind": "List", "items": [self._pod(each) for each in self.instances]}

    def _pod(self, each: dict[str, Any]) -> dict[str, Any]:
        deleted = {"deletionTimestamp": f"{CREATED}Z", "deletionGracePeriodSeconds": 900} if each.get("deleted") else {}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": each["name"], "namespace": "fleet", "creationTimestamp": f"{CREATED}Z", **deleted},
            "status": {"phase": each["state"]},
        }

    def scale(self, argv: list[str]) -> None:
        given = Arguments("scale", "--namespace", "--replicas", positional=1).parse_args(argv)
        self._require_namespace(given)
        if given.given0 != "deployment/worker":
            name = given.given0.rpartition("/")[2]
            raise Refused(1, f'Error from server (NotFound): deployments.apps "{name}" not found')
        if self.state.get("refuse_scale"):
            raise Refused(
                1, "Error from server (Timeout): the server was unable to return a response in the time allotted"
            )
        self.state["size"] = int(given.replicas)
        self._reconcile()

    def delete(self, argv: list[str]) -> None:
        given = Arguments(
            "delete pod", "--namespace", "--wait", flags=("--ignore-not-found",), positional=1
        ).parse_args(argv)
        self._require_namespace(given)
        pod = self.found(given.given0)
        if pod is None and not given.ignore_not_found:
            raise Refused(1, f'Error from server (NotFound): pods "{given.given0}" not found')
        if pod is not None:
            pod["deleted"] = True
        self._reconcile()

    def _reconcile(self) -> None:
        """Replace what is missing; of too many, end the pending first and then the youngest."""
        active = self._active()
        self.add(max(0, self.state["size"] - len(active)), "Pending")
        active.reverse()
        by_age = sorted(active, key=lambda each: each["state"] == "Running")
        for pod in by_age[: max(0, len(active) - self.state["size"])]:
            pod["deleted"] = True
            if pod["state"] == "Running":
                self.state["victims"].append(pod["name"])


class Gh(Platform):
    """`gh`, whose runs are listed a while after they were asked for."""

    commands: ClassVar = {"run list": "list", "workflow run": "dispatch", "run cancel": "cancel"}
    filters: ClassVar = ("queued", "completed", "in_progress", "requested", "waiting", "pending")

    def name_of(self, number: int) -> str:
        return str(9_000_000_000 + number)

    def login_refused(self) -> Refused:
        return Refused(
            4,
            "To get started with GitHub CLI, please run:  gh auth login\nAlternatively, set GH_TOKEN",
        )

    def _require_repository(self, given: Any) -> None:
        if given.repo != "acme/flows":
            raise Refused(1, f"HTTP 404: Not Found (https://api.github.com/repos/{given.repo}/actions/workflows)")

    def list(self, argv: list[str]) -> Any:
        given = Arguments("run list", "--repo", "--workflow", "--status", "--limit", "--json").parse_args(argv)
        self._require_repository(given)
        if given.status not in self.filters:
            raise Refused(1, f'invalid argument "{given.status}" for "-s, --status" flag')
        visible = self.instances[: len(self.instances) - self.state.get("unlisted", 0)]
        runs = [
            {"createdAt": f"{CREATED}Z", "databaseId": int(each["name"]), "status": each["state"]}
            for each in visible
            if each["state"] == given.status
        ]
        return runs[: int(given.limit)]

    def dispatch(self, argv: list[str]) -> None:
        given = Arguments("workflow run", "--repo", "--ref", "--raw-field", positional=1).parse_args(argv)
        self._require_repository(given)
        if given.raw_field != "workers=1":
            raise Refused(1, 'could not create workflow dispatch event: HTTP 422: Unexpected inputs provided: ["x"]')
        self.add(1, "queued")

    def cancel(self, argv: list[str]) -> str:
        given = Arguments("run cancel", "--repo", positional=1).parse_args(argv)
        self._require_repository(given)
        run = self.found(given.given0)
        if run is None:
            raise Refused(1, f"Could not find any workflow run with ID {given.given0}")
        if run["state"] == "completed":
            raise Refused(1, "Cannot cancel a workflow run that is completed")
        run["state"] = "completed"
        return f"✓ Request to cancel workflow {given.given0} submitted."


PLATFORMS = {"aws": Aws, "az": Azure, "gcloud": Gcloud, "gh": Gh, "kubectl": Kubectl}


@contextmanager
def opened(path: str) -> Iterator[dict[str, Any]]:
    """Lend the state, alone, and keep what becomes of it."""
    with open(path, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        state = json.load(file)
        try:
            yield state
        finally:
            file.seek(0)
            file.truncate()
            json.dump(state, file)


def main() -> None:
    program, *argv = sys.argv[1:]
    with opened(os.environ["FAKE_PLATFORM_STATE"]) as state:
        try:
            printed = PLATFORMS[program](state).run(argv)
        except Refused as refused:
            print(refused.text, file=sys.stderr)
            sys.exit(refused.code)
    if printed is not None:
        print(printed if isinstance(printed, str) else json.dumps(printed))


if __name__ == "__main__":
    main()
