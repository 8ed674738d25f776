"""A platform in a folder, for controllers that are processes of their own: instances are files, every call is logged.

`ATOMIC_TEST_CLOUD` names the folder. A call waits while a file `hold.<name>.<pid>` is there, before it asks its permit.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from atomic_celery.fleet.provisioner import Instance, Permit


class FolderCloud:
    """The provisioner."""

    kind = "folder"

    def __init__(self) -> None:
        self._folder = Path(os.environ["ATOMIC_TEST_CLOUD"])

    def list(self, permit: Permit) -> list[Instance]:
        self._begin("list", permit)
        return [Instance(**json.loads(path.read_text())) for path in sorted(self._folder.glob("*.json"))]

    def scale_to(self, target: int, permit: Permit, *, add: int) -> None:
        self._begin("scale_to", permit)
        for _ in range(min(add, target - len(list(self._folder.glob("*.json"))))):
            name = f"vm-{os.getpid()}-{time.monotonic_ns()}"
            (self._folder / f"{name}.json").write_text(json.dumps({"id": name, "state": "pending"}))

    def drain(self, instance_id: str, permit: Permit) -> None:
        self._begin("drain", permit)
        (self._folder / f"{instance_id}.json").unlink(missing_ok=True)

    def _begin(self, name: str, permit: Permit) -> None:
        (self._folder / f"came.{name}.{os.getpid()}").touch()
        while (self._folder / f"hold.{name}.{os.getpid()}").exists() or (self._folder / f"hold.{name}").exists():
            time.sleep(0.01)
        permit.require(name)
        with (self._folder / "calls.log").open("a") as log:
            log.write(f"{os.getpid()} {name}\n")


class BrokenCloud(FolderCloud):
    """One that always fails."""

    def list(self, permit: Permit) -> list[Instance]:
        permit.require("list")
        raise ZeroDivisionError("no cloud today")


provisioner = FolderCloud
broken = BrokenCloud
