"""Calls to a platform, one at a time."""

from __future__ import annotations

import threading

import pytest

from atomic_celery.fleet import calls
from tests.fleet.test_controller import Scene, scene, wait_for

__all__ = ["scene"]


def test_a_thread_that_takes_its_time_to_end_is_no_call_that_goes_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The platform has answered, and on a busy machine the thread that asked it is still there."""
    go_on, run = threading.Event(), calls._Call._run

    def run_and_linger(call: calls._Call[object]) -> None:
        run(call)
        wait_for(go_on)

    monkeypatch.setattr(calls._Call, "_run", run_and_linger)
    scene.desk.publish()
    scene.controller.turn()
    go_on.set()
    assert scene.cloud.calls == ["list", "scale_to 1 +1"]
