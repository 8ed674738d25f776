"""Tasks that leave something behind: results of every kind, follow-ups, parts of chords."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from celery import chain, chord, group
from celery.exceptions import Ignore, Reject
from celery.result import allow_join_result

from tests.results.broken import Broken
from tests.support.application import _note, _wait_for, add, app, fail, gate, note, note_failure, retry, total

__all__ = ["add", "app", "fail", "gate", "note", "note_failure", "retry", "total"]


@app.task
def echo(value: Any = None, *rest: Any) -> Any:
    """Return what it is given."""
    return value


@app.task
def big(size: int) -> str:
    """Return so many characters."""
    return "x" * size


@app.task
def break_down() -> None:
    """Raise an error of the project's own."""
    raise Broken("it", 7)


@app.task
def unserializable() -> Any:
    """Return what JSON does not know."""
    return object()


@app.task(bind=True)
def progress(self: Any, steps: int, directory: str) -> str:
    """Say how far it is; wait for a file called by the number before each step and before the end."""
    for step in range(steps):
        self.update_state(state="PROGRESS", meta={"step": step})
        _wait_for(os.path.join(directory, f"go-{step}"))
    return "done"


@app.task(bind=True)
def parent(self: Any, count: int) -> int:
    """Start children."""
    for number in range(count):
        add.delay(number, number)
    return count


@app.task(bind=True)
def whole(self: Any, results: Any) -> Any:
    """Add a row that says its fence, and return what it is given: a chord's body."""
    _note(f"body under {self.request.properties['atomic']['fence']}")
    return results


@app.task
def noted(value: Any, what: str) -> Any:
    """Add a row and return what it is given: a follow-up."""
    _note(what)
    return value


@app.task(bind=True)
def grow(self: Any, by: int) -> str:
    """Add parts to its own chord."""
    for number in range(by):
        self.add_to_chord(echo.s(f"added {number}"))
    return "grew"


@app.task(bind=True)
def replaced(self: Any, kind: str, value: Any) -> Any:
    """Replace itself."""
    what = {
        "task": lambda: noted.s(value, "replacement"),
        "chain": lambda: chain(noted.s(value, "replacement 1"), noted.s("replacement 2")),
        "group": lambda: group(noted.s(value, f"replacement {number}") for number in range(3)),
        "chord": lambda: chord([noted.s(value, f"replacement {number}") for number in range(2)], total.s()),
    }
    return self.replace(what[kind]())


@app.task(bind=True)
def publishing(self: Any, how: str) -> str:
    """Publish from its body, and end as it is told."""
    return _publish(self, how)


@app.task(bind=True, atomic_publish="on_success", max_retries=1)
def publishing_on_success(self: Any, how: str) -> str:
    """Publish from its body only if it ends well."""
    return _publish(self, how)


def _publish(self: Any, how: str) -> str:
    note.delay(f"published {self.request.retries}")
    if how == "retry" and self.request.retries == 0:
        raise self.retry(countdown=0)
    if how == "fail":
        raise ValueError("on purpose")
    if how == "ignore":
        raise Ignore
    if how == "replace":
        return str(self.replace(echo.s("replaced")))
    if how == "unserializable":
        return object()  # type: ignore[return-value]
    return "published"


@app.task(bind=True)
def rejecting(self: Any) -> None:
    """Reject itself for good."""
    raise Reject("on purpose", requeue=False)


@app.task
def waiting(count: int) -> int:
    """Wait for tasks of its own."""
    with allow_join_result():
        return sum(group(add.s(number, 1) for number in range(count))().get(timeout=60))


@app.task
def publishing_thread() -> str:
    """Publish from a thread that it starts."""
    thread = threading.Thread(target=note.delay, args=("from a thread",))
    thread.start()
    thread.join()
    return "threaded"


@app.task(bind=True)
def gated_state(self: Any, name: str, directory: str) -> str:
    """Say its fence, wait for a file, say how far it is, and end."""
    fence = self.request.properties["atomic"]["fence"]
    begun = Path(directory, f"{name}.begun.{fence}")
    begun.with_suffix(".tmp").write_text(str(os.getpid()))
    begun.with_suffix(".tmp").rename(begun)
    _wait_for(os.path.join(directory, name))
    self.update_state(state="PROGRESS", meta={"fence": fence})
    _note(f"{name} {fence}")
    return str(fence)


def _publish_and_wait(name: str, directory: str) -> None:
    note.delay(f"by {name}")
    Path(directory, f"{name}.begun").touch()
    _wait_for(os.path.join(directory, name))


@app.task
def publishing_gate(name: str, directory: str) -> None:
    """Publish, and wait for a file."""
    _publish_and_wait(name, directory)


@app.task(atomic_publish="on_success")
def publishing_gate_on_success(name: str, directory: str) -> None:
    """The same, but what it publishes waits for its success."""
    _publish_and_wait(name, directory)
