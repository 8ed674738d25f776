"""A platform of each kind in turn, with its preset and its command line."""

from __future__ import annotations

import json
import os
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from atomic_celery.fleet.provisioner import Permit, Provisioner
from atomic_celery.provisioners import from_mapping
from tests.provisioners import platforms
from tests.style.sources import ROOT

JOURNAL = "sqlite /var/lib/queue.db atomic"
"""The tables of a fleet."""
PRESETS = ROOT / "examples" / "worker-fleet" / "presets"
NAMES = {
    "RESOURCE_GROUP": "a-group",
    "SCALE_SET": "a-scale-set",
    "GROUP": "a-group",
    "ZONE": "europe-west1-b",
    "NAMESPACE": "fleet",
    "DEPLOYMENT": "worker",
    "OWNER/REPOSITORY": "acme/flows",
}


@pytest.fixture
def permit() -> Permit:
    """The right to act, which does not end."""
    return Permit(lambda: True, threading.Event())


def preset(name: str, names: dict[str, str] | None = None) -> dict[str, Any]:
    """Return a preset with the names of a real group in it, and without `auth`, which has tests of its own."""
    text = (PRESETS / f"{name}.json").read_text()
    for placeholder, value in {**NAMES, **(names or {})}.items():
        text = text.replace(placeholder, value)
    given: dict[str, Any] = json.loads(text)
    given.pop("auth", None)
    return given


READS = {"describe-auto-scaling-groups", "get", "list", "list-instances"}


class Stage:
    """A preset, and the platform that its commands reach."""

    def __init__(self, name: str, program: str, fresh: str, state_path: Path) -> None:
        self.name, self.program, self.fresh = name, program, fresh
        self._path = state_path
        state_path.write_text(json.dumps({"instances": [], "size": 0, "made": 0, "log": [], "victims": []}))
        self.provisioner: Provisioner = from_mapping(preset(name), JOURNAL)

    def write(self, **state: Any) -> None:
        """Change the platform's state behind everybody's back."""
        with platforms.opened(str(self._path)) as known:
            known.update(state)

    def read(self) -> dict[str, Any]:
        """Return the platform's state."""
        with platforms.opened(str(self._path)) as state:
            return dict(state)

    def settle(self, state: str) -> None:
        """Let every instance be in *state* that is not on its way out."""
        with platforms.opened(str(self._path)) as known:
            for each in known["instances"]:
                if each["state"] == self.fresh:
                    each["state"] = state

    def changes(self) -> list[list[str]]:
        """Return the calls that were no listing."""
        return [argv for argv in self.read()["log"] if not READS & set(argv[:4])]


STAGES = {
    "azure-vmss": ("az", "Creating", "Succeeded"),
    "aws-asg": ("aws", "Pending", "InService"),
    "gcp-mig": ("gcloud", "CREATING", "NONE"),
    "kubernetes": ("kubectl", "Pending", "Running"),
    "github-actions": ("gh", "queued", "in_progress"),
}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Return what puts a program of a name and a shell script on PATH."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")

    def put(name: str, script: str) -> Path:
        path = directory / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return put


@pytest.fixture(params=STAGES)
def stage(
    request: pytest.FixtureRequest,
    programs: Callable[[str, str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Stage:
    """Each preset in turn."""
    program, fresh, _settled = STAGES[request.param]
    programs(program, f'exec "{sys.executable}" -S "{platforms.__file__}" {program} "$@"')
    monkeypatch.setenv("FAKE_PLATFORM_STATE", str(tmp_path / "platform.json"))
    return Stage(request.param, program, fresh, tmp_path / "platform.json")


def ids(instances: Any) -> list[str]:
    """Return the ids of a listing."""
    return [instance.id for instance in instances]


def states(instances: Any) -> set[str]:
    """Return the states of a listing."""
    return {instance.state for instance in instances}


FAMILY = """
echo $$ >> {pids}
sleep 1000 &
echo $! >> {pids}
setsid sh -c 'echo $$ >> {pids}; (trap "" TERM HUP; sleep 1000) & echo $! >> {pids}; wait' &
setsid -f sh -c 'echo $$ >> {pids}; echo orphan >> {pids}; exec sleep 1000'
env -i setsid -f /bin/sh -c 'echo $$ >> {pids}; echo stranger >> {pids}; exec /bin/sleep 1000'
trap '' TERM HUP INT
wait
"""


@pytest.fixture
def family(programs: Callable[[str, str], Path], tmp_path: Path) -> Callable[[], list[int]]:
    """Return what returns the processes of a `list-hosts` that hangs, once all of them are there."""
    pids = tmp_path / "pids"
    programs("list-hosts", FAMILY.format(pids=pids))

    def started() -> list[int]:
        lines = pids.read_text().split() if pids.exists() else []
        found = [int(line) for line in lines if line.isdigit()]
        return found if len(found) == 6 and {"orphan", "stranger"} < set(lines) else []

    return started


def lives(pid: int) -> bool:
    """Whether a process is there, and no corpse."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
