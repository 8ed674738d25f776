"""A platform that is driven by its command line."""

from __future__ import annotations

import builtins
import os
import threading
from collections.abc import Mapping, Sequence

from atomic_celery import errors
from atomic_celery.fleet.provisioner import Instance, Permit
from atomic_celery.provisioners import listing, programs
from atomic_celery.provisioners.configuration import PLACEHOLDER, Argv, Commands
from atomic_celery.provisioners.github_app import GithubApp
from atomic_celery.provisioners.redaction import redact


class CommandProvisioner:
    """Runs commands that list, add and remove the instances of a platform; one at a time.

    Each runs without a shell, in the environment of this process, and no longer than its time.
    """

    kind = "command"

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._timeout_s = commands.timeout_ms / 1000
        self._github = GithubApp(commands.github_app) if commands.github_app else None
        self._one_at_a_time = threading.Lock()

    def list(self, permit: Permit) -> Sequence[Instance]:
        """Return the instances that the list commands print."""
        with self._one_at_a_time:
            return self._list(permit)

    def scale_to(self, target: int, permit: Permit, *, add: int) -> None:
        """Run the up commands, if fewer than *target* instances are listed."""
        with self._one_at_a_time:
            missing = min(target - len(self._list(permit)), add)
            if missing > 0 and self._commands.up_each:
                self._start_each(target, missing, permit)
            elif missing > 0:
                self._up(target, missing, permit)

    def drain(self, instance_id: str, permit: Permit) -> None:
        """Run the down commands, if *instance_id* is listed and not being removed already."""
        with self._one_at_a_time:
            instances = self._list(permit)
            if any(instance.id == instance_id and instance.state != "draining" for instance in instances):
                values = {"id": instance_id, "remaining": str(len(instances) - 1)}
                self._run("down", self._commands.down, values, permit)

    def _list(self, permit: Permit) -> Sequence[Instance]:
        return listing.together([self._read(argv, permit) for argv in self._commands.list])

    def _read(self, argv: Argv, permit: Permit) -> builtins.list[Instance]:
        environ = self._environ(argv, {}, permit)
        printed = programs.run("list", argv, environ, self._timeout_s, permit)
        try:
            return listing.read(printed, self._commands.list_format)
        except errors.ProvisionerError as error:  # it may show a piece of what was printed
            raise errors.ProvisionerError(error.code, redact(str(error), environ)) from None

    def _start_each(self, target: int, missing: int, permit: Permit) -> None:
        begun = 0
        try:
            while begun < missing:
                self._up(target, 1, permit)
                begun += 1
        except errors.ProvisionerError as error:
            error.begun = begun + (error.code == "timeout")  # nobody knows what that one has done
            raise

    def _up(self, target: int, add: int, permit: Permit) -> None:
        self._run("up", self._commands.up, {"target": str(target), "add": str(add)}, permit)

    def _run(self, name: str, commands: tuple[Argv, ...], values: Mapping[str, str], permit: Permit) -> None:
        for argv in commands:
            environ = self._environ(argv, values, permit)
            programs.run(name, _filled(argv, values), environ, self._timeout_s, permit)

    def _environ(self, argv: Argv, values: Mapping[str, str], permit: Permit) -> Mapping[str, str]:
        environ = {**os.environ, **{_VARIABLES[name]: value for name, value in values.items()}}
        if self._github is not None and os.path.basename(argv[0]) == "gh":
            return self._github.environ(environ, self._timeout_s, permit)
        return environ


_VARIABLES = {
    "target": "ATOMIC_TARGET",
    "add": "ATOMIC_ADD",
    "id": "ATOMIC_PROVIDER_ID",
    "remaining": "ATOMIC_REMAINING",
}


def _filled(argv: Argv, values: Mapping[str, str]) -> Argv:
    """Put *values* in, all at once: what one of them says is never taken for a placeholder."""
    return tuple(PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), part) for part in argv)
