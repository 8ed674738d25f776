"""A platform that is driven by its command line."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence

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
            for count in [1] * missing if self._commands.up_each else [missing]:
                if count > 0:
                    self._run_all(self._commands.up, {"target": str(target), "add": str(count)}, permit)

    def drain(self, instance_id: str, permit: Permit) -> None:
        """Run the down commands, if *instance_id* is listed and not being removed already."""
        with self._one_at_a_time:
            instances = self._list(permit)
            if any(instance.id == instance_id and instance.state != "draining" for instance in instances):
                values = {"id": instance_id, "remaining": str(len(instances) - 1)}
                self._run_all(self._commands.down, values, permit)

    def _list(self, permit: Permit) -> Sequence[Instance]:
        printed = self._run(self._commands.list, {}, permit)
        try:
            return listing.together([listing.read(text, self._commands.list_format) for text in printed])
        except errors.ProvisionerError as error:  # it may show a piece of what was printed
            raise errors.ProvisionerError(error.code, redact(str(error), os.environ)) from error

    def _run_all(self, commands: tuple[Argv, ...], values: Mapping[str, str], permit: Permit) -> None:
        for _ in self._run(commands, values, permit):
            pass

    def _run(self, commands: tuple[Argv, ...], values: Mapping[str, str], permit: Permit) -> Iterator[bytes]:
        environ = {**os.environ, **{_VARIABLES[name]: value for name, value in values.items()}}
        for argv in commands:
            own = environ
            if self._github is not None and os.path.basename(argv[0]) == "gh":
                own = self._github.environ(environ, self._timeout_s, permit)
            yield programs.run(_filled(argv, values), own, self._timeout_s, permit)


_VARIABLES = {
    "target": "ATOMIC_TARGET",
    "add": "ATOMIC_ADD",
    "id": "ATOMIC_PROVIDER_ID",
    "remaining": "ATOMIC_REMAINING",
}


def _filled(argv: Argv, values: Mapping[str, str]) -> Argv:
    """Put *values* in, all at once: what one of them says is never taken for a placeholder."""
    return tuple(PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), part) for part in argv)
