"""What a fleet opens is within the budget that doctor computes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from atomic_celery import connections
from tests.support.roles import Role
from tests.support.workers import Fleet

SLOTS = 3


def test_a_host_stays_within_its_connections_idle_and_busy(role: Role, postgres_url: str, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("s3cr3t")
    secret.chmod(0o600)
    role.change_password("s3cr3t")
    most = connections.PER_HOST + SLOTS
    with closing(Fleet(postgres_url, tmp_path, broker=role.url)) as fleet:
        worker = fleet.worker(slots=SLOTS, options=("--password-file", str(secret))).start()
        worker.wait_line("ready")
        assert 0 < role.sessions() <= most
        for number in range(SLOTS):
            fleet.send("gate", f"gate-{number}", str(tmp_path))
        for number in range(SLOTS):
            fleet.begun(f"gate-{number}")
        assert role.sessions() <= most
        for number in range(SLOTS):
            fleet.open_gate(f"gate-{number}")
        for number in range(100):
            fleet.send("note", str(number))
        seen = []
        fleet.wait_until(lambda: seen.append(role.sessions()) or len(fleet.ledger.rows()) == 100 + SLOTS)
        assert max(seen) <= most


@pytest.mark.parametrize(("slots", "now", "needed"), [([], 0, 107), ([4, 4], 16, 107), ([16] * 10, 200, 251)])
def test_the_budget_is_for_the_larger_of_what_is_and_what_may_come(slots: list[int], now: int, needed: int) -> None:
    budget = connections.budget(slots, max_hosts=10, workers_per_host=4)
    assert (budget.now, budget.needed) == (now, needed)
