"""The pages in a real browser, over a real site, with real workers (-m browser)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from playwright.sync_api import Browser, expect

from atomic_celery import operations
from atomic_celery.config import Settings
from atomic_celery.fleet.controller import TERM
from atomic_celery.fleet.memory import Memory
from atomic_celery.store import open_store
from atomic_celery.store.roots import RootTerms
from atomic_celery.store.store import Store
from tests.admin_site.browser import DESK, PHONE, Visitor, chromium
from tests.admin_site.people import PEOPLE
from tests.admin_site.running import Site
from tests.support.hosts import new_host
from tests.support.postgres import Postgres
from tests.support.waiting import wait_until

pytestmark = pytest.mark.browser

expect.set_options(timeout=20_000)

PAGES = ("overview/", "host/", "root/", "message/", "fleetevent/", "term/")
FAMILY = "a-family"
"""A root with a task and its child."""


@dataclass
class Scene:
    """The site that is served, its fleet, and where its files are."""

    site: Site
    address: str
    store: Store
    app: Celery
    directory: Path

    def wait_task(self, name: str, **options: Any) -> str:
        """Send a task that runs until its gate is opened; return its task id."""
        return str(self.app.send_task("shop.wait", args=[str(self.directory / name)], **options).id)

    def open_gate(self, name: str) -> None:
        """Let a task end."""
        (self.directory / name).touch()

    def message_of(self, task_id: str) -> int:
        """Return the id of a task's unfinished message."""
        [message_id] = self.store.reads.ids_of_task(task_id)
        return message_id

    def state(self, task_id: str) -> str | None:
        """Say where a task's message is; None: it has ended."""
        ids = self.store.reads.ids_of_task(task_id)
        message = self.store.reads.message(ids[0]) if ids else None
        return None if message is None else message.state

    def wait_state(self, task_id: str, state: str | None) -> None:
        """Wait until a task's message is there."""
        wait_until(lambda: self.state(task_id) == state, 60, lambda: f"{task_id} is {self.state(task_id)}")


@pytest.fixture(scope="module")
def scene(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A site with three people; its fleet has no worker yet."""
    directory, url = tmp_path_factory.mktemp("site"), postgres.create_database()
    site = Site({"SITE_DATABASE": url, "ATOMIC_REPORT_EVERY": "0.5", "ATOMIC_RECOVER_EVERY": "0.5"})
    for arguments in (("migrate",), ("shell", "-c", PEOPLE)):
        run = site.manage(*arguments)
        assert run.returncode == 0, run.stderr
    store = open_store(url, Settings())
    app = Celery("sender", broker=f"atomic+{url}", set_as_current=False)
    with site.server(directory / "server.log") as address:
        yield Scene(site, address, store, app, directory)
    app.close()
    store.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium."""
    with chromium() as started:
        yield started


Visit = Callable[..., Visitor]


@pytest.fixture
def visit(scene: Scene, browser: Browser) -> Iterator[Visit]:
    """Somebody's visit; nothing may have gone wrong in the browser when it ends."""
    visitors: list[Visitor] = []

    def begin(name: str = "ann", **options: Any) -> Visitor:
        context = browser.new_context(**{"viewport": DESK, **options})
        visitors.append(Visitor(context, scene.address).log_in(name))
        return visitors[-1]

    yield begin
    for visitor in visitors:
        visitor.context.close()
    assert [complaint for visitor in visitors for complaint in visitor.complaints] == []


@pytest.fixture
def busy(scene: Scene) -> Iterator[Scene]:
    """The same with a worker that runs something, and messages in every state."""
    with scene.site.worker(scene.directory / "worker.log"):
        gate = f"busy-{uuid4()}"
        running = scene.wait_task(gate)
        scene.wait_state(running, "running")
        dead = scene.wait_task("dead", countdown=3600)
        operations.bury(scene.store, [scene.message_of(dead)], reason="an <b>evil</b> reason", asked_by="test")
        later = scene.wait_task("later", countdown=3600)
        operations.set_root(scene.store, FAMILY, RootTerms(max_running=1, children=9), asked_by="test")
        parent = scene.wait_task("parent", countdown=3600, root_id=FAMILY, parent_id=later)
        scene.wait_task("child", countdown=3600, root_id=FAMILY, parent_id=parent)
        yield scene
        scene.open_gate(gate)
        scene.wait_state(running, None)
        operations.delete(scene.store, [message.id for message in scene.store.reads.messages()], asked_by="test")


def _addresses(scene: Scene) -> list[str]:
    message = scene.store.reads.messages()[0]
    host = scene.store.hosts.list()[0]
    return [*PAGES, f"message/{message.id}/", f"host/{host.id}/", f"root/{FAMILY}/"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_every_page_is_accessible_and_fits(busy: Scene, visit: Visit, scheme: str, size: dict[str, int]) -> None:
    visitor = visit(color_scheme=scheme, viewport=size)
    for address in _addresses(busy):
        page = visitor.go(address)
        expect(page.locator("h1")).to_be_visible()
        assert visitor.violations() == [], address
        assert visitor.overflow_px() <= 0, address
    background = visitor.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") is (scheme == "light")


def test_a_page_keeps_itself_up_to_date_and_can_be_paused(busy: Scene, visit: Visit) -> None:
    visitor = visit()
    visitor.page.clock.install()
    page = visitor.go("overview/")
    dead = page.locator("[data-total=dead]")
    expect(dead).to_have_text("1")
    task = busy.wait_task("live", countdown=3600)
    operations.bury(busy.store, [busy.message_of(task)], reason="r", asked_by="test")
    expect(dead).to_have_text("2")
    page.get_by_role("button", name="Pause updates").click()
    operations.delete(busy.store, [busy.message_of(task)], asked_by="test")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.run_for(60_000)  # by then a dozen of updates would have been due
    assert asked == []
    expect(dead).to_have_text("2")
    page.get_by_role("button", name="Go on updating").click()
    expect(dead).to_have_text("1")
    page.clock.run_for(60_000)
    assert asked


def test_what_is_chosen_stays_chosen_while_the_page_changes(busy: Scene, visit: Visit) -> None:
    visitor = visit()
    page = visitor.go("message/")
    [dead] = [message.id for message in busy.store.reads.messages() if message.state == "dead"]
    box = page.get_by_label(f"Select message {dead}")
    box.check()
    box.focus()
    new = busy.wait_task("new", countdown=3600)
    expect(page.locator(f"[data-message='{busy.message_of(new)}']")).to_be_visible()
    expect(box).to_be_checked()
    expect(box).to_be_focused()


def test_messages_are_moved_with_a_question_first(busy: Scene, visit: Visit) -> None:
    visitor = visit()
    task = busy.wait_task("moved", countdown=3600)
    message = busy.message_of(task)

    def choose(action: str) -> None:
        page = visitor.go("message/")
        page.get_by_label(f"Select message {message}").check()
        page.get_by_role("button", name=action).click()

    choose("Put aside")
    visitor.page.get_by_label("Reason").fill("wait for the fix")
    visitor.page.get_by_role("button", name="Put aside").click()
    assert f"Buried 1 message: {message}." in visitor.said()
    assert busy.state(task) == "dead"
    visitor.go(f"message/{message}/")
    expect(visitor.page.locator(".fleet-facts")).to_contain_text("wait for the fix")

    choose("Delete")
    visitor.page.get_by_role("link", name="No, go back").click()
    assert busy.state(task) == "dead"
    choose("Requeue")
    visitor.page.get_by_role("button", name="Requeue").click()
    assert f"Requeued 1 message: {message}." in visitor.said()
    busy.wait_state(task, "running")
    choose("Delete")
    visitor.page.get_by_role("button", name="Delete").click()
    assert f"Deleted 1 message: {message}." in visitor.said()
    assert busy.state(task) is None
    busy.open_gate("moved")

    later = busy.wait_task("hastened", countdown=3600)
    message = busy.message_of(later)
    choose("Run now")
    assert f"Made ready 1 message: {message}." in visitor.said()
    busy.open_gate("hastened")
    busy.wait_state(later, None)
    events = [event.kind for event in busy.store.events.list(limit=4)]
    assert events == ["message-requeued", "message-deleted", "message-requeued", "message-dead"]


def test_what_a_worker_was_faster_with_is_said(busy: Scene, visit: Visit) -> None:
    visitor = visit()
    task = busy.wait_task("raced")
    busy.wait_state(task, "running")
    message = busy.message_of(task)
    page = visitor.go("message/")
    page.get_by_label(f"Select message {message}").check()
    page.get_by_role("button", name="Requeue").click()
    busy.open_gate("raced")
    busy.wait_state(task, None)
    page.get_by_role("button", name="Requeue").click()
    assert f"Not done for 1 message: {message}. Finished or deleted meanwhile" in visitor.said()


def test_a_message_that_is_requeued_while_it_runs_runs_again_and_ends_once(busy: Scene, visit: Visit) -> None:
    visitor = visit()
    task = busy.wait_task("twice")
    busy.wait_state(task, "running")
    message = busy.message_of(task)
    visitor.go(f"message/{message}/")
    visitor.page.get_by_role("button", name="Requeue").click()
    visitor.page.get_by_role("button", name="Requeue").click()
    assert f"Requeued 1 message: {message}." in visitor.said()
    wait_until(lambda: (found := busy.store.reads.message(message)) and found.fence == 2, 60)
    busy.open_gate("twice")
    busy.wait_state(task, None)


def test_a_host_is_drained_and_leaves(scene: Scene, visit: Visit) -> None:
    visitor = visit()
    with scene.site.worker(scene.directory / "drained.log", "drained") as worker:
        task = scene.wait_task("held by the drained")
        scene.wait_state(task, "running")
        [host] = [host for host in scene.store.hosts.list() if host.name == "drained@test"]
        page = visitor.go("host/")
        expect(page.locator(f"[data-host='{host.id}']")).to_contain_text("shop.wait")
        page.get_by_label("Select host drained@test").check()
        page.get_by_role("button", name="Drain", exact=False).first.click()
        page.get_by_label("Reason").fill("new kernel")
        page.get_by_role("button", name="Drain").click()
        assert f"Draining 1 host: {host.id}." in visitor.said()
        expect(page.locator(f"[data-host='{host.id}']")).to_contain_text("new kernel")
        later = scene.wait_task("not for the drained")
        scene.open_gate("held by the drained")
        scene.wait_state(task, None)
        assert worker.wait(60) == 0, (scene.directory / "drained.log").read_text()
        assert scene.state(later) == "ready"
        expect(page.locator(f"[data-host='{host.id}']")).to_have_count(0)
    operations.undrain(scene.store, host.id, asked_by="test")
    operations.delete(scene.store, [scene.message_of(later)], asked_by="test")


def test_a_root_is_paused_resumed_and_cancelled_while_its_tasks_end(busy: Scene, visit: Visit) -> None:
    root = f"import {uuid4()}"
    operations.set_root(busy.store, root, RootTerms(max_running=1), asked_by="test")
    first, second, third = (busy.wait_task(f"{root} {number}", root_id=root) for number in range(3))
    busy.wait_state(first, "running")
    visitor = visit()
    page = visitor.go("root/")

    def steer(action: str, **fields: str) -> str:
        page.get_by_label(f"Select root {root}").check()
        page.get_by_role("button", name=action, exact=False).first.click()
        for label, value in fields.items():
            page.get_by_label(label).fill(value)
        if page.get_by_role("heading", name=f"{action}?").count():
            page.get_by_role("button", name=action).click()
        return visitor.said()

    assert f"Paused 1 root: {root}." in steer("Pause")
    busy.open_gate(f"{root} 0")
    busy.wait_state(first, None)
    lone = busy.wait_task("lone")  # there is a slot, and whoever may start starts
    busy.open_gate("lone")
    busy.wait_state(lone, None)
    assert {busy.state(second), busy.state(third)} == {"limited"}
    assert f"Resumed 1 root: {root}." in steer("Resume")
    busy.wait_state(second, "running")
    page.get_by_role("link", name=root).click()
    expect(page.locator(".fleet-tree")).to_contain_text("shop.wait")
    expect(page.locator(".fleet-timeline")).to_contain_text("root-paused")
    assert visitor.violations() == []
    visitor.go("root/")
    busy.open_gate(f"{root} 1")  # it ends while it is cancelled, by itself or not
    assert f"Cancelled 1 root: {root}." in steer("Cancel", Grace="1")
    for task in (second, third):
        busy.wait_state(task, None)
    assert f"Not done for 1 root: {root}. It was cancelled before" in steer("Cancel")


def test_a_term_is_ended(scene: Scene, visit: Visit) -> None:
    fence = scene.store.terms.begin("a leader", "somebody", 60_000)
    visitor = visit()
    page = visitor.go("term/")
    page.get_by_label("Select term a leader").check()
    page.get_by_role("button", name="End term").click()
    page.get_by_role("button", name="End term").click()
    assert "Ended 1 term: a leader." in visitor.said()
    assert not scene.store.terms.renew("a leader", fence or 0, 60_000)


@pytest.fixture
def controlled(scene: Scene) -> Iterator[Scene]:
    """The same with a controller that has led for a while, stopped, and left a plan."""
    now_ms = scene.store.now_ms()
    for minute in range(50):
        wanted = minute % 7
        scene.store.at(now_ms - (minute + (minute > 20) * 5) * 60_000)
        scene.store.controllers.sample(wanted, wanted // 2, wanted)
    scene.store.at(now_ms - 120_000)
    scene.store.terms.begin(TERM, "c-1", 20_000)
    document = {"reasons": ["3 idle above target, oldest idle 312 s → drain host-7"], "holder": "c-1"}
    memory = Memory(provider_failures=2, provider_retry_ms=now_ms + 60_000).document()
    scene.store.controllers.keep(TERM, memory, document)
    scene.store.at(None)
    return scene


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_the_chart_of_the_fleets_size(controlled: Scene, visit: Visit, scheme: str, size: dict[str, int]) -> None:
    """Its bars and its line stand out, and its table is opened by a key and stays open."""
    visitor = visit(color_scheme=scheme, viewport=size)
    visitor.page.clock.install()
    page = visitor.go("term/")
    expect(page.get_by_text("nobody leads")).to_be_visible()
    expect(page.locator(".fleet-trouble")).to_contain_text("failed 2 times in a row")
    chart = page.get_by_role("img", name=re.compile("Hosts over the last 1h: at most 6"))
    bars = chart.locator(".fleet-bar-there").count()
    assert bars >= 50
    shown = chart.bounding_box()
    assert shown is not None
    assert shown["width"] > 250
    for ticks in ("most", "ticks"):
        label = page.locator(f"#fleet-controller ~ figure .fleet-{ticks}")
        expect(label).to_be_visible()
        assert float(label.evaluate("one => parseFloat(getComputedStyle(one).fontSize)")) >= 12
    for drawn, paint in (
        (".fleet-bar-there", "fill"),
        (".fleet-bar-listed", "stroke"),
        (".fleet-line-wanted", "stroke"),
    ):
        assert chart.locator(drawn).first.evaluate(_CONTRAST, paint) >= 3, drawn
    page.locator("#fleet-table-size summary").focus()
    page.keyboard.press("Enter")
    rows = page.locator("#fleet-table-size tbody tr")
    expect(rows).to_have_count(bars)
    expect(rows.first).to_be_visible()
    assert visitor.violations() == []
    assert visitor.overflow_px() <= 0
    controlled.store.controllers.keep(TERM, Memory().document(), {"reasons": ["another plan"], "holder": "c-1"})
    page.clock.run_for(10_000)
    expect(page.get_by_text("another plan")).to_be_visible()
    expect(rows.first).to_be_visible()
    expect(page.locator("#fleet-table-size summary")).to_be_focused()
    page.get_by_role("link", name="7d").click()
    expect(page.get_by_role("img", name=re.compile("Hosts over the last 7d"))).to_be_visible()
    assert visitor.violations() == []


_CONTRAST = """(drawn, paint) => {
  const light = (color) => {
    const [r, g, b] = color.match(/[0-9.]+/g).map((part) => part / 255)
      .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const below = getComputedStyle(drawn.closest("svg")).backgroundColor;
  const [one, other] = [getComputedStyle(drawn)[paint], below].map(light);
  return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
}"""
"""How well something drawn stands out from its chart, as the guidelines for accessibility count it."""


def test_everything_works_without_javascript(busy: Scene, visit: Visit) -> None:
    visitor = visit(java_script_enabled=False)
    for address in _addresses(busy):
        visitor.go(address)
        expect(visitor.page.locator("[data-live-status]")).to_be_hidden()
        expect(visitor.page.locator("h1")).to_be_visible()
    task = busy.wait_task("without", countdown=3600)
    page = visitor.go("message/", state="delayed")
    page.get_by_label(f"Select message {busy.message_of(task)}").check()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete").click()
    assert "Deleted 1 message" in visitor.said()
    assert page.url.endswith("?state=delayed")
    assert busy.state(task) is None


def test_every_action_is_done_without_javascript_on_a_phone(busy: Scene, visit: Visit) -> None:
    visitor = visit(java_script_enabled=False, viewport=PHONE, color_scheme="dark")
    page = visitor.page

    def do(address: str, target: object, action: str, **fields: str) -> str:
        visitor.go(address)
        page.locator(f"[name=selected][value='{target}']").check()
        button = page.get_by_role("button", name=re.compile(f"^{action}…?$"))
        button.click()
        for label, value in fields.items():
            page.get_by_label(label).fill(value)
        if page.get_by_role("heading", name=f"{action}?").count():
            button.click()
        return visitor.said()

    busy.store.at(1)
    busy.store.hosts.register(new_host("gone", "boot"))
    busy.store.at(None)
    fence = busy.store.terms.begin("another leader", "somebody", 60_000)
    task = busy.wait_task("by hand", countdown=3600)
    message = busy.message_of(task)
    done = {
        ("host/", "gone", "Drain"): "Draining 1 host",
        ("host/", "gone", "Take drain back"): "Drain taken back for 1 host",
        ("host/", "gone", "Forget"): "Forgotten 1 host",
        ("root/", FAMILY, "Pause"): "Paused 1 root",
        ("root/", FAMILY, "Resume"): "Resumed 1 root",
        ("root/", FAMILY, "Change limits"): "Changed 1 root",
        ("root/", FAMILY, "Cancel"): "Cancelled 1 root",
        ("message/", message, "Put aside"): "Buried 1 message",
        ("message/", message, "Requeue"): "Requeued 1 message",
        ("term/", f"{fence} another%20leader", "End term"): "Ended 1 term",
    }
    for (address, target, action), said in done.items():
        fields = {"At once, at most": "7"} if action == "Change limits" else {}
        assert said in do(address, target, action, **fields)
    view = busy.store.roots.get(FAMILY)
    assert view is not None
    assert (view.max_running, view.budget_children, view.state) == (7, 9, "cancelled")
    assert "gone" not in [host.id for host in busy.store.hosts.list()]
    assert not busy.store.terms.renew("another leader", fence or 0, 60_000)
    busy.open_gate("by hand")
    busy.wait_state(task, None)
    assert "Not done" in do("root/", FAMILY, "Resume")


def test_a_limit_that_is_none_is_refused_and_said(busy: Scene, visit: Visit) -> None:
    visitor = visit()
    page = visitor.go(f"root/{FAMILY}/")
    page.get_by_role("button", name="Change limits").click()
    expect(page.get_by_label("Children")).to_have_value("9")
    page.get_by_label("Cost").fill("much")
    page.get_by_role("button", name="Change limits").click()
    assert "Nothing was done: cost is a number from 0 on, got 'much'" in visitor.said()


def test_children_hang_below_who_sent_them(busy: Scene, visit: Visit) -> None:
    page = visit().go(f"root/{FAMILY}/")
    expect(page.locator(".fleet-tree li")).to_have_count(2)
    expect(page.locator(".fleet-tree .fleet-depth-0")).to_have_count(1)
    expect(page.locator(".fleet-tree .fleet-depth-1")).to_contain_text("sent by")


@pytest.mark.parametrize("kind", ["CSV", "JSON"])
def test_events_are_taken_along(busy: Scene, visit: Visit, kind: str) -> None:
    page = visit().go("fleetevent/", root=FAMILY)
    with page.expect_download() as download:
        page.get_by_role("link", name=kind).click()
    assert download.value.suggested_filename == f"fleet-events.{kind.lower()}"
    text = Path(download.value.path()).read_text()
    assert "root-changed" in text
    assert "host-registered" not in text


def test_it_can_be_steered_by_keyboard(busy: Scene, visit: Visit) -> None:
    visitor = visit()
    task = busy.wait_task("typed", countdown=3600)
    page = visitor.go("message/")
    page.get_by_label(f"Select message {busy.message_of(task)}").focus()
    page.keyboard.press("Space")
    for _ in range(400):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.value") == "delete":
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Delete?")).to_be_visible()
    page.get_by_role("button", name="Delete").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".messagelist")).to_contain_text("Deleted 1 message")


def test_who_may_only_look_finds_nothing_to_press(busy: Scene, visit: Visit) -> None:
    visitor = visit("looker")
    for address in _addresses(busy):
        page = visitor.go(address)
        expect(page.locator("h1")).to_be_visible()
        assert page.locator("[name=action]").count() == 0
        assert page.locator("[name=selected]").count() == 0
        assert visitor.violations() == [], address


def test_who_may_not_look_sees_nothing(busy: Scene, browser: Browser) -> None:
    visitor = Visitor(browser.new_context(), busy.address).log_in("nobody")
    for address in _addresses(busy):
        visitor.go(address)
        assert visitor.page.locator(".fleet").count() == 0
    visitor.context.close()


def test_a_session_that_has_ended_is_said(busy: Scene, visit: Visit) -> None:
    visitor = visit()
    page = visitor.go("overview/")
    visitor.context.clear_cookies()
    expect(page.locator("[data-live-said]")).to_contain_text("Not up to date")
    visitor.complaints.clear()  # the browser's own word for it
