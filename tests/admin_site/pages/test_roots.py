"""Roots: how far each has come, and steering it as one."""

from __future__ import annotations

import dataclasses
from unittest import mock

from django.contrib.admin.utils import quote
from django.utils.html import escape
from pages.fleet import HOLDER, FleetCase, host, url

from atomic_celery import operations
from atomic_celery.store.records import Lane
from atomic_celery.store.roots import RootTerms
from atomic_celery.store.searches import Relative
from django_admin.roots import tree

EVIL = "<script>'&?#/root"


class Roots(FleetCase):
    def declare(self, root_id: str, **terms: object) -> None:
        with self.here() as store:
            operations.set_root(store, root_id, RootTerms(**terms), asked_by="test")  # type: ignore[arg-type]

    def state(self, root_id: str) -> str:
        with self.here() as store:
            view = store.roots.get(root_id)
        assert view is not None
        return view.state

    def test_roots_are_listed_with_their_course_and_budget(self) -> None:
        self.declare("import-42", max_running=8, children=100, cost=12.5, duration_ms=3_600_000)
        self.publish(task_id="a", root_id="import-42")
        page = self.see("root")
        for said in ("import-42", "running", "0/1", "0 of 100 children", "0 of 12.5 cost", "0 of 3600 seconds"):
            assert said in page, said
        assert "import-42" in self.see("root", id="import-42")
        assert "No root like that" in self.see("root", id="another")
        assert "No root like that" in self.see("root", state="paused")

    def test_the_time_until_all_is_done_is_told_by_how_long_it_took_so_far(self) -> None:
        with self.here() as store:
            began_ms = store.now_ms()
            store.at(began_ms)
            self.declare("r", max_running=1)
            for number in range(4):
                self.publish(task_id=f"t{number}", root_id="r")
            later = self.publish(task_id="later", root_id="r", due_ms=began_ms + 3_600_000)
            assert ">-</td>" in self.see("root")  # nothing is known yet
            store.hosts.register(host())
            for _ in range(2):
                [waiting, *_] = store.limits.survey([Lane(self.queue_id, 0)], 1).gated
                [claimed] = store.limits.admit(HOLDER, [waiting], 30_000)
                store.messages.complete([claimed.held])
            store.at(began_ms + 60_000)
            with_later = self.see("root", "r")
            store.messages.delete([later])
            one, all_ = self.see("root", "r"), self.see("root")
            store.at(None)
        assert "2 of 5</dd>" in with_later  # and nobody knows when that one is done
        assert "2 of 4, done in about 1m<" in one
        assert "2/4" in all_

    def test_where_counting_stops_a_course_says_so(self) -> None:
        self.declare("r")
        for number in range(5):
            self.publish(task_id=f"t{number}", root_id="r")
        with self.here() as store, mock.patch("django_admin.roots.MOST_COUNTED", 2):
            assert "> 0/3+</td>" in self.see("root")
            store.hosts.register(host())
            begun = [
                store.limits.admit(HOLDER, store.limits.survey([Lane(self.queue_id, 0)], 1).gated[:1], 30_000)[0].held
                for _ in range(5)
            ]
            store.messages.complete(begun[:1])
            store.messages.release(begun[1:])
            assert "> ≤ 2/5+</td>" in self.see("root")

    def test_roots_have_pages(self) -> None:
        for number in range(60):
            self.declare(f"r{number}")
        first = self.see("root")
        assert first.count("data-root=") == 50
        [query] = [part.split('"')[0] for part in first.split('href="?') if 'rel="next"' in part.split(">")[0]]
        second = self.client.get(url("root") + "?" + query.replace("&amp;", "&")).content.decode()
        assert second.count("data-root=") == 10
        for nonsense in ("before_ms=x&before=r", "before=r", "before_ms=1&before=%00"):
            assert self.client.get(f"{url('root')}?{nonsense}").status_code == 200

    def test_one_root_shows_its_children_failures_first_and_its_events(self) -> None:
        self.declare("r", max_running=2)
        for name in ("a", "b", "c"):
            message = self.publish(name=f"shop.{name}", task_id=name, root_id="r")
        self.bury(message)
        page = self.see("root", "r")
        assert page.index("shop.c") < page.index("shop.a")
        for said in ("1 dead", "of at most 2", "root-changed"):
            assert said in page, said
        self.publish(task_id="lone", root_id="nobody-declared-it")
        assert "nobody has declared" in self.see("root", "nobody-declared-it")
        assert self.client.get(url("root", "none")).status_code == 404

    def test_a_root_is_paused_resumed_and_cancelled(self) -> None:
        self.declare("r")
        assert "Paused 1 root: r." in self.act("root", "pause", "r").content.decode()
        assert self.state("r") == "paused"
        assert "Not done for 1 root: r." in self.act("root", "pause", "r").content.decode()
        assert "Resumed 1 root: r." in self.act("root", "resume", "r").content.decode()
        assert self.state("r") == "running"
        assert "Cancelled 1 root: r." in self.act("root", "cancel", "r", grace_s="5").content.decode()
        assert self.state("r") == "cancelled"
        assert "cancelled for good" in self.act("root", "resume", "r").content.decode()
        kinds = [(kind, detail["asked_by"]) for kind, detail in self.events()[:3]]
        assert kinds == [("root-cancelled", "ann"), ("root-resumed", "ann"), ("root-paused", "ann")]

    def test_limits_and_budgets_are_changed(self) -> None:
        self.declare("r", max_running=8, cost=2.5)
        ask = {"action": "set", "selected": "r"}
        page = self.client.post(url("root") + "~act/", ask).content.decode()
        assert 'name="max_running" type="number" value="8"' in page
        assert 'name="cost" type="text" value="2.5"' in page
        assert 'name="tokens" type="number" value=""' in page
        self.act("root", "set", "r", max_running="3", children="100", cost="", duration_s="90.5")
        with self.here() as store:
            view = store.roots.get("r")
        assert view is not None
        assert (view.max_running, view.budget_children, view.budget_cost, view.budget_ms) == (3, 100, None, 90_500)
        nonsense = {"max_running": "2.5", "children": "-1", "cost": "much", "tokens": "0", "duration_s": "inf"}
        for name, wrong in nonsense.items():
            with self.subTest(name):
                page = self.act("root", "set", "r", **{name: wrong}).content.decode()
                assert "Nothing was done" in page
        with self.here() as store:
            assert dataclasses.replace(store.roots.get("r"), ran_ms=0) == dataclasses.replace(view, ran_ms=0)  # type: ignore[type-var]

    def test_what_was_not_asked_for_stays_as_it_was(self) -> None:
        self.declare("r", cost=2.5, warn_at_percent=50, labels={"team": "data"})
        self.act("root", "set", "r", cost="5")
        with self.here() as store:
            view = store.roots.get("r")
        assert view is not None
        assert (view.budget_cost, view.warn_at_percent, view.labels) == (5.0, 50, {"team": "data"})

    def test_who_may_pause_may_not_cancel(self) -> None:
        self.declare("r")
        pauser = self.somebody("view_root", "pause_root")
        assert 'value="cancel"' not in self.see("root", client=pauser)
        assert self.act("root", "cancel", "r", client=pauser).status_code == 403
        assert self.act("root", "set", "r", client=pauser).status_code == 403
        self.act("root", "pause", "r", client=pauser)
        assert self.state("r") == "paused"
        self.act("root", "cancel", "r", client=self.somebody("operate_root"))
        assert self.state("r") == "cancelled"

    def test_a_root_may_be_called_anything(self) -> None:
        self.declare(EVIL)
        message = self.publish(task_id="a", root_id=EVIL)
        assert "<script>'" not in self.see("root")
        page = self.see("root", quote(EVIL))
        assert "<script>'" not in page
        assert escape(url("root", quote(EVIL))) in self.see("message", message)
        self.act("root", "pause", EVIL)
        assert self.state(EVIL) == "paused"

    def test_children_hang_below_who_sent_them(self) -> None:
        def child(number: int, parent: str | None, state: str = "ready") -> Relative:
            return Relative(number, f"t{number}", "n", parent, state)

        family = [child(1, None), child(2, "t1"), child(3, "t2", "dead"), child(4, "gone", "dead"), child(5, "t1")]
        assert [(depth, each.id) for depth, each in tree(family)] == [(0, 4), (0, 1), (1, 2), (2, 3), (1, 5)]
        circle = [child(1, "t2"), child(2, "t1"), child(3, "t3")]
        assert sorted(each.id for _, each in tree(circle)) == [1, 2, 3]
        deep = [child(number, f"t{number - 1}") for number in range(1, 3000)]
        assert max(depth for depth, _ in tree(deep)) == 8
        nameless = [Relative(1, None, None, None, "ready"), Relative(2, None, None, None, "ready")]
        assert len(tree(nameless)) == 2
