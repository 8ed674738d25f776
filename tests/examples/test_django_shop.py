"""The shop sells, takes every payment once, and shows its pictures; on each database."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from tests.support.daemons import free_port
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
SHOP = ROOT / "examples" / "django_shop"


@pytest.fixture
def environment(database_url: str, tmp_path: Path) -> Mapping[str, str]:
    """A new shop in each kind of database."""
    url = database_url if database_url.startswith("postgresql") else ""
    shop = {"SHOP_DIRECTORY": str(tmp_path), "SHOP_DATABASE_URL": url, "C_FORCE_ROOT": "1"}
    return {**os.environ, "PYTHONPATH": str(ROOT), "ATOMIC_STATE_DIR": str(tmp_path / "state"), **shop}


def manage(environment: Mapping[str, str], *arguments: str) -> str:
    """Run the shop's manage.py from somewhere else, as the README does."""
    command = [sys.executable, str(SHOP / "manage.py"), *arguments]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_everything_is_paid_and_shown_once(environment: Mapping[str, str]) -> None:
    manage(environment, "migrate")
    said = manage(environment, "open_shop", "--once")
    assert "8 lamps ordered, 4 customers came too late" in said
    assert "payments: 8 of 8" in said
    assert "thumbnails: 9 of 9" in said
    assert "chairs: 6 of 6" in said
    assert "root-changed" in manage(environment, "atomic", "events")
    assert manage(environment, "makemigrations", "--check", "--dry-run") == "No changes detected\n"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_site_is_served_until_it_is_closed(environment: Mapping[str, str], tmp_path: Path) -> None:
    manage(environment, "migrate")
    address, log = f"127.0.0.1:{free_port()}", tmp_path / "log"
    command = [sys.executable, str(SHOP / "manage.py"), "open_shop", "--address", address]
    with log.open("wb") as file:
        # A shell lets what it starts in the background ignore Ctrl-C, and so these tests, perhaps, and what they start.
        heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        shop = subprocess.Popen(
            command, env=environment, stdout=file, stderr=file, start_new_session=True, preexec_fn=heeds
        )
    try:
        wait_until(lambda: shop.poll() is not None or _paid(address) == 8, 120, log.read_text)
        assert shop.poll() is None, log.read_text()
        shop.send_signal(signal.SIGINT)
        shop.wait(60)
    finally:
        if shop.poll() is None:
            os.killpg(shop.pid, signal.SIGKILL)


def _paid(address: str) -> int:
    try:
        with urllib.request.urlopen(f"http://{address}/", timeout=5) as answer:
            return len(re.findall("lamp, paid", answer.read().decode()))
    except OSError:
        return 0
