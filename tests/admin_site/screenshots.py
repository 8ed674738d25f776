"""``python -m tests.admin_site.screenshots``: take the pictures of the pages that the documentation shows."""

from __future__ import annotations

import math
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

from celery import Celery

from atomic_celery import operations
from atomic_celery.config import Settings
from atomic_celery.fleet.controller import TERM
from atomic_celery.store import open_store
from atomic_celery.store.roots import RootTerms
from atomic_celery.store.store import Store
from atomic_celery.store.traffic import Sample
from tests.admin_site.browser import DESK, PHONE, Visitor, chromium
from tests.admin_site.people import PEOPLE
from tests.admin_site.running import ROOT, Site
from tests.support.postgres import PostgresServer
from tests.support.waiting import wait_until

PICTURES = ROOT / "docs" / "images" / "admin"
SHOTS = (
    ("overview", "overview/", "light", DESK),
    ("hosts", "host/", "dark", DESK),
    ("roots", "root/", "light", DESK),
    ("messages", "message/", "light", DESK),
    ("controller", "term/", "light", DESK),
    ("message-phone", "message/?state=dead", "dark", PHONE),
)


def _live(app: Celery, store: Store, directory: Path) -> None:
    """Let the fleet have something to show."""
    for number in range(6):
        app.send_task("shop.wait", args=[str(directory / "gate")], kwargs={}, priority=number % 3)
    for number in range(8):
        app.send_task("shop.pay", args=[number], kwargs={"token": "hunter2"}, countdown=3600)
    for name, limit, cost in (("import-42", 4, 50.0), ("nightly-report", 2, None), ("newsletter", None, 10.0)):
        operations.set_root(store, name, RootTerms(max_running=limit, cost=cost, children=500), asked_by="ann")
        for number in range(5):
            app.send_task("shop.pay", args=[number], root_id=name)
            app.send_task("shop.pay", args=[number], root_id=name, countdown=3600)
    operations.pause_root(store, "newsletter", asked_by="ann")
    wait_until(lambda: any(host.busy >= 3 for host in store.hosts.list()), 60)
    app.send_task("shop.pay", args=[4711], countdown=3600)
    crashed = store.reads.messages()[0].id
    operations.bury(store, [crashed], reason="its process was killed by signal 9, five times", asked_by="w1@test")
    store.terms.begin(TERM, "controllers-1/17/6f1c", 3_600_000)
    reasons = ["more than 4 have been waiting for 24s, 7 of 9 hosts → add 2"]
    signal = {"desiredHosts": 9, "hosts": 7, "demand": 36, "queueDepth": 9, "busySlots": 27, "idleSlots": 1}
    document = {"reasons": reasons, "holder": "controllers-1/17/6f1c", "provisioner": "aws-asg"}
    store.controllers.keep(TERM, {}, {**document, "scaling": signal, "instances": 9})
    now_ms = store.now_ms()
    for minute in range(60):
        store.at(now_ms - minute * 60_000)
        count = 40 + (minute * 7919) % 23
        ended = [Sample("succeeded", 9, count, 300 * count), Sample("failed", 8, minute % 3, 200)]
        store.traffic.add("host", [*ended, Sample("waited", 6, count, 45 * count)])
        wanted, there = (round(5 + 4 * math.cos((minute + late) / 9)) for late in (0, 9))
        store.controllers.sample(wanted, there, max(wanted, there))
    store.at(None)


def main() -> None:
    """Take every picture."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory()))
        server = stack.enter_context(PostgresServer())
        url = server.create_database()
        site = Site({"SITE_DATABASE": url, "ATOMIC_REPORT_EVERY": "0.5", "ATOMIC_LABELS": "zone=a"})
        for arguments in (("migrate",), ("shell", "-c", PEOPLE)):
            run = site.manage(*arguments)
            assert run.returncode == 0, run.stderr
        store = stack.enter_context(closing(open_store(url, Settings())))
        app = stack.enter_context(Celery("sender", broker=f"atomic+{url}", set_as_current=False))
        for name in ("w1", "w2"):
            stack.enter_context(site.worker(directory / f"{name}.log", name, slots=4))
        address = stack.enter_context(site.server(directory / "server.log"))
        browser = stack.enter_context(chromium())
        _live(app, store, directory)
        for name, path, scheme, size in SHOTS:
            context = browser.new_context(viewport=size, color_scheme=scheme)
            visitor = Visitor(context, address).log_in("ann")
            visitor.go(path)
            visitor.page.screenshot(path=PICTURES / f"{name}.png")
            context.close()
        (directory / "gate").touch()


if __name__ == "__main__":
    main()
