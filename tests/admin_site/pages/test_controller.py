"""What the page of the fleet's controller says in every state it can be in."""

from __future__ import annotations

import re

from django.test import override_settings

from atomic_celery.fleet.controller import TERM
from atomic_celery.fleet.memory import Memory
from tests.admin_site.pages.fleet import FleetCase, host

MINUTE_MS = 60_000
NOW_MS = 1_796_040_030_000  # 2026-11-30 12:00:30 UTC


class TheController(FleetCase):
    """As of a moment that each test chooses."""

    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(self.store.at, None)
        self.at(NOW_MS)

    def at(self, now_ms: int) -> None:
        """Let it be that time for the database."""
        self.store.at(now_ms)

    def plan(self, *reasons: str, holder: str = "c-1", **memory: int) -> None:
        """Leave what a tick leaves."""
        document = {"reasons": reasons, "holder": holder, "provisioner": "aws-asg"}
        with self.here() as store:
            store.controllers.keep(TERM, Memory(**memory).document(), document)

    def lead(self, holder: str = "c-1") -> int:
        """Begin a term."""
        with self.here() as store:
            fence = store.terms.begin(TERM, holder, 20_000)
        assert fence is not None
        return fence

    def note(self, minutes_ago: int, wanted: int, there: int, listed: int | None) -> None:
        """Leave a sample of then."""
        self.at(NOW_MS - minutes_ago * MINUTE_MS)
        with self.here() as store:
            store.controllers.sample(wanted, there, listed)
        self.at(NOW_MS)

    def test_where_none_has_run_there_is_no_chart(self) -> None:
        page = self.see("term")
        assert "No fleet controller has run yet." in page
        assert "<svg" not in page.partition("fleet-controller")[2].partition("fleet-terms")[0]
        assert "What was done" not in page

    def test_one_that_leads(self) -> None:
        self.lead("c-7")
        self.plan("3 idle above target, oldest idle 312 s → drain host-7")
        page = self.see("term")
        assert "3 idle above target, oldest idle 312 s → drain host-7" in page
        assert re.search(r">leads</span> <bdi>c-7</bdi>, since <time [^>]*>2026-11-30 12:00:30 UTC", page)
        assert "nobody leads" not in page
        assert "degraded" not in page

    def test_a_plan_is_called_old_when_nobody_leads_any_more(self) -> None:
        self.lead()
        self.plan("nothing to do")
        self.at(NOW_MS + 5 * MINUTE_MS)
        page = self.see("term")
        assert "No host is added or removed until a controller is started." in page
        assert re.search(r">old</span> 5m ago, by <bdi>c-1</bdi> for <bdi>aws-asg</bdi>", page)

    def test_of_two_the_one_that_leads_is_shown_beside_the_plan_of_the_other(self) -> None:
        self.lead("c-1")
        self.plan("nothing to do", holder="c-1")
        self.at(NOW_MS + MINUTE_MS)
        self.lead("c-2")
        page = self.see("term")
        assert ">leads</span> <bdi>c-2</bdi>" in page
        assert "1m ago, by <bdi>c-1</bdi>" in page

    def test_a_provider_in_trouble(self) -> None:
        self.lead()
        why = "the provider failed (auth), asked again in 40 s: postgresql://u:hunter2@h/d"
        self.plan(why, provider_failures=3, provider_retry_ms=NOW_MS + 40_000)
        page = self.see("term")
        assert "The provider has failed 3 times in a row, and is asked again in 40s." in page
        assert "the provider failed (auth)" in page
        assert "hunter2" not in page
        self.at(NOW_MS + 41_000)
        assert "The provider has failed 3 times in a row. The hosts" in self.see("term")

    def test_the_chart_and_its_table_say_the_same(self) -> None:
        self.lead()
        self.plan("nothing to do")
        self.note(2, 4, 1, 2)
        self.note(1, 4, 2, 4)
        self.note(58, 1, 1, 1)
        page = self.see("term")
        rows = re.findall(r'<tr><th scope="row">(\S+ \S+ UTC)</th>((?:<td class="fleet-number">\d+</td>)+)</tr>', page)
        assert [(at, re.findall(r"\d+", re.sub(r"<[^>]*>", " ", numbers))) for at, numbers in rows] == [
            ("2026-11-30 11:59:00 UTC", ["4", "2", "4"]),
            ("2026-11-30 11:58:00 UTC", ["4", "1", "2"]),
            ("2026-11-30 11:02:00 UTC", ["1", "1", "1"]),
        ]
        [line] = re.findall(r'fleet-line-wanted" d="([^"]+)"', page)
        assert line == "M8.00 54.00H16.00M456.00 0.00H464.00V0.00H472.00"  # it is broken where nobody looked
        bars = re.findall(r'fleet-bar-there" x="([\d.]+)" y="([\d.]+)" width="7.00" height="([\d.]+)"', page)
        assert bars == [("8.00", "54.00", "18.00"), ("456.00", "54.00", "18.00"), ("464.00", "36.00", "36.00")]
        assert '<span class="fleet-most">4</span>' in page
        assert "2026-11-30 11:01</time>" in page
        assert "2026-11-30 12:01 UTC</time>" in page
        assert "at most 4; at last 4 wanted, 2 that report, 4 listed" in page

    def test_one_sample_of_a_fleet_of_nothing(self) -> None:
        self.plan("nothing to do")
        self.note(0, 0, 0, 0)
        page = self.see("term")
        assert 'fleet-line-wanted" d="M472.00 72.00H480.00"' in page
        assert "fleet-most" not in page

    def test_while_the_provider_does_not_answer_there_is_what_is_known_without_it(self) -> None:
        self.plan("nothing to do", provider_failures=3)
        self.note(0, 4, 2, None)
        page = self.see("term")
        assert "4 wanted, 2 report, ? listed" in page
        assert '<td class="fleet-number">2</td><td class="fleet-number">?</td>' in page

    def test_longer_periods_show_the_most_of_each_part(self) -> None:
        self.plan("nothing to do")
        for minutes_ago, wanted in ((16, 2), (20, 9), (24, 1), (60 * 24 * 6, 7), (60 * 24 * 8, 5)):
            self.note(minutes_ago, wanted, 10 - wanted, 10)
        day, week = self.see("term", period="24h"), self.see("term", period="7d")
        assert "2026-11-30 11:30:00 UTC: 9 wanted, 9 report, 10 listed" in day
        assert day.count("fleet-bar-there") == 1
        assert "2026-11-24 12:00:00 UTC: 7 wanted" in week
        assert week.count("fleet-bar-there") == 2
        assert "The most in each 15m." in day
        assert "The most in each 2h." in week
        assert '<strong aria-current="true">1h</strong>' in self.see("term", period="nonsense")

    def test_times_are_in_the_time_zone_of_the_site(self) -> None:
        self.lead()
        self.plan("nothing to do")
        self.note(0, 1, 1, 1)
        with override_settings(TIME_ZONE="Asia/Kolkata"):
            page = self.see("term")
        assert "2026-11-30 17:30:30 IST" in page
        assert "17:31 IST</time>" in page
        assert 'datetime="2026-11-30T12:00:30.000+00:00"' in page

    def test_a_host_has_the_events_of_its_instance(self) -> None:
        with self.here() as store:
            store.hosts.register(host("host-1", provider_id="i-1"))
            store.hosts.register(host("host-2"))
            store.events.record("host-registered", host="host-1")
            store.events.record("drain-asked", instance="i-1", detail={"why": "3 idle above target"})
            store.events.record("drain-asked", instance="host-2")
            store.events.record("removed", instance="i-2")
        one, other = (self.see("host", key).partition("fleet-timeline")[2] for key in ("host-1", "host-2"))
        assert re.findall(r"<strong>([a-z-]+)</strong>", one) == ["drain-asked", "host-registered"]
        assert "3 idle above target" in one
        assert re.findall(r"<strong>([a-z-]+)</strong>", other) == ["drain-asked"]

    def test_who_may_only_look_cannot_end_a_term(self) -> None:
        fence = self.lead()
        looker = self.somebody("view_term")
        page = self.see("term", client=looker)
        assert 'name="selected"' not in page
        assert "<form" not in page.partition('id="content-main"')[2]
        assert self.act("term", "resign", f"{fence} {TERM}", client=looker).status_code == 403
