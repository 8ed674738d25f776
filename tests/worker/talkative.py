"""The test workers' app, with tasks that use the database themselves: they publish, wait for results, ask workers."""

from __future__ import annotations

from celery.result import allow_join_result

from tests.support.application import _note, app, note

__all__ = ["app", "note"]


@app.task(ignore_result=False)
def answer(number: int) -> int:
    """Return the number."""
    return number


@app.task
def publish(number: int) -> None:
    """Send tasks, one by one."""
    for _ in range(5):
        note.apply_async(args=(f"sent by {number}",), queue="answers")
    _note(f"publish {number}")


@app.task
def wait(number: int) -> None:
    """Wait for what other tasks return."""
    with allow_join_result():
        for _ in range(3):
            assert answer.apply_async(args=(number,), queue="answers").get(timeout=60) == number
    _note(f"wait {number}")


@app.task
def ask(number: int) -> None:
    """Wait for a result, and ask all workers whether they live."""
    wait(number)
    app.control.inspect(timeout=0.5).ping()
    _note(f"ask {number}")
