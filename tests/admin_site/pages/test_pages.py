"""What the pages show, to whom, and at what cost."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from django.db import connections
from django.test import Client
from django.urls import reverse
from django_celery_results.models import TaskResult
from pages.fleet import PAGES, FleetCase, host, url

from atomic_celery.store.hosts import HostReport
from atomic_celery.store.traffic import Sample
from django_admin import project
from django_admin.apps import LABEL

EVIL = "<script>alert('x')</script>\x00\u202e<b>"
QUERIES = 20


class Pages(FleetCase):
    def test_every_page_is_there_when_the_fleet_is_empty(self) -> None:
        for page in PAGES:
            with self.subTest(page):
                assert "</html>" in self.see(page)

    def test_the_admin_s_index_leads_to_them(self) -> None:
        index = self.client.get(reverse("admin:index")).content.decode()
        for page in PAGES:
            assert url(page) in index

    def test_the_overview_counts(self) -> None:
        ids = [self.publish(n) for n in range(5)]
        self.claim(limit=1)
        self.bury(ids[1])
        with self.here() as store:
            self.publish(due_ms=store.now_ms() + 60_000)
            ended = [Sample("succeeded", 10, 7, 5000), Sample("failed", 4, 2, 20)]
            store.traffic.add("h", [*ended, Sample("waited", 12, 9, 36_000)])
        page = self.see("overview")
        for state, count in {"ready": 3, "delayed": 1, "running": 1, "dead": 1}.items():
            assert f'data-total="{state}">{count}<' in page
        assert "<strong>9</strong> ended" in page
        assert "2 failed" in page
        assert "Ran for 558ms on average; half at most 695ms" in page
        assert "Waited for 4s on average; half at most 3s" in page
        assert "1 busy" in page
        assert "1 of 4" in page
        assert "answers" in page
        assert "hosts wanted" in page
        for period in ("1h", "24h", "7d"):
            table = page.partition(f'<details id="fleet-table-{period}">')[2].partition("</details>")[0]
            [row] = re.findall(r"<tbody><tr>(.*?)</tr>", table)
            assert re.findall(r'<td class="fleet-number">(\d+)</td>', row) == ["7", "2"]
            assert "UTC</th>" in row
        assert page.count('<span class="fleet-most">9</span>') == 3

    def test_the_overview_of_a_fleet_that_has_done_nothing(self) -> None:
        page = self.see("overview")
        assert "<strong>0</strong> ended" in page
        for said in ("Ran for", "Waited for", "As a table", "fleet-most"):
            assert said not in page

    def test_no_statement_of_a_page_is_compiled_by_the_database(self) -> None:
        """For some that would take seconds, on small tables, too."""
        connection = connections[project.alias()]
        if connection.vendor == "postgresql":
            with project.looking(), connection.cursor() as cursor:
                cursor.execute("SHOW jit")
                assert cursor.fetchone() == ("off",)

    def test_hosts_are_shown_with_what_they_hold(self) -> None:
        self.publish()
        self.claim()
        with self.here() as store:
            store.hosts.register(host("host-2", busy=0, queues=("celery", "mail")))
            store.hosts.drain("host-2", "new kernel", "bob")
            report = HostReport(slots=4, busy=0, queues=(), poll_failures=3, last_error="postgresql://u:hunter2@h/d no")
            store.hosts.report("host-2", "boot-2", report)
        page = self.see("host")
        for said in ("host-1@machine", "shop.pay", "1/4", "draining", "new kernel", "zone=a", "3 polls failed"):
            assert said in page
        assert "hunter2" not in page
        assert "host-2@" not in self.see("host", state="busy")
        assert "host-1@" not in self.see("host", text="mail")
        one = self.see("host", "host-1")
        for said in ("shop.pay", "boot", "python 3"):
            assert said.replace("boot", "celery") in one
        assert self.client.get(url("host", "nobody")).status_code == 404

    def test_a_long_list_of_hosts_has_pages(self) -> None:
        with self.here() as store:
            for number in range(130):
                store.hosts.register(host(f"host-{number:03}"))
        first = self.see("host")
        assert first.count("data-host=") == 100
        assert "100 of 130 hosts" in first
        [query] = [part.split('"')[0] for part in first.split('href="?') if "rel=" in part.split(">")[0]]
        second = self.client.get(url("host") + "?" + query.replace("&amp;", "&")).content.decode()
        assert second.count("data-host=") == 30
        assert "first page" in second

    def test_messages_are_found_by_everything(self) -> None:
        dead = self.publish("needle", name="shop.rare", task_id="t-1", root_id="r-1")
        others = [self.publish(number) for number in range(3)]
        self.bury(dead, "it crashed")
        found = {f'data-message="{dead}"'}
        for query in (
            {"state": "dead"},
            {"task": "shop.rare"},
            {"root": "r-1"},
            {"text": "NEEDLE"},
            {"id": "t-1"},
            {"id": str(dead)},
            {"queue": "celery", "state": "dead"},
        ):
            with self.subTest(query):
                page = self.see("message", **query)
                assert all(said in page for said in found)
                assert not any(f'data-message="{other}"' in page for other in others)
        everything = self.see("message")
        assert everything.count("data-message=") == 4
        assert "it crashed" in everything
        assert "No unfinished message or task" in self.see("message", id="t-none")
        assert "No unfinished message" in self.see("message", queue="nowhere")
        assert self.see("message", state="nonsense").count("data-message=") == 4

    def test_messages_have_pages(self) -> None:
        ids = [self.publish(number) for number in range(120)]
        seen: list[int] = []
        query = ""
        while True:
            page = self.client.get(url("message") + query).content.decode()
            seen += [int(part.split('"')[0]) for part in page.split('data-message="')[1:]]
            following = [part.split('"')[0] for part in page.split('href="?') if 'rel="next"' in part.split(">")[0]]
            if not following:
                break
            query = "?" + following[0].replace("&amp;", "&")
        assert seen == ids[::-1]

    def test_a_message_is_shown_without_its_secrets(self) -> None:
        kwargs = {"password": "hunter2", "customer_iban": "DE02", "user": "ada"}
        message = self.publish("amqp://a:hunter2@h", kwargs=kwargs, task_id="t-9")
        [claimed] = self.claim()
        with self.here() as store:
            store.messages.crash([claimed.held], "killed by signal 9")
        for key in (message, "t-9"):
            page = self.see("message", key)
            assert "hunter2" not in page
            assert "DE02" not in page
            for said in ("ada", "killed by signal 9", "host-1", "shop.pay", "task_id=t-9"):
                assert said in page
        assert self.client.get(url("message", 10**17)).status_code == 404
        assert self.client.get(url("message", "no-such-task")).status_code == 404
        assert self.client.get(url("message", "9" * 40)).status_code == 404

    def test_events_are_filtered_paged_and_taken_along(self) -> None:
        with self.here() as store:
            for number in range(60):
                store.events.record("host-registered", host=f"h{number % 2}", detail={"n": number})
            secrets = {"token": "hunter2", "iban": "hunter2"}
            store.events.record("drain-asked", instance="=i()", root="@r", detail={"reason": "=1+1", **secrets})
        page = self.see("fleetevent")
        assert page.count("<li><time") == 50
        assert "older" in page
        assert self.see("fleetevent", kind="drain-asked").count("<li><time") == 1
        assert self.see("fleetevent", host="h1").count("<li><time") == 30
        export = reverse(f"admin:{LABEL}_fleetevent_export")
        rows = list(csv.DictReader(io.StringIO(self.client.get(export, {"format": "csv"}).content.decode())))
        assert len(rows) == 61
        assert (rows[0]["kind"], rows[0]["instance"], rows[0]["root"]) == ("drain-asked", "'=i()", "'@r")
        there = json.loads(self.client.get(export, {"format": "json", "host": "h1"}).content)
        assert {event["host"] for event in there} == {"h1"}
        assert len(there) == 30
        exported = [self.client.get(export, {"format": name}).content.decode() for name in ("csv", "json")]
        root = self.see("root", "@r") if self.publish(task_id="t", root_id="@r") else ""
        assert "hunter2" not in page + root + "".join(exported)
        assert "=1+1" in root
        assert self.client.get(export, {"format": "xml"}).status_code == 400

    def test_terms_say_who_leads(self) -> None:
        with self.here() as store:
            store.hosts.register(host())
            store.terms.begin("controller", "host-1", 20_000)
        page = self.see("term")
        for said in ("controller", "host-1@machine", "leads"):
            assert said in page

    def test_the_plan_of_the_controller_is_shown(self) -> None:
        with self.here() as store:
            store.terms.begin("fleet-controller", "c-1", 20_000)
            reasons = ["2 hosts are wanted, 1 is there: <b>add</b> one", "postgresql://u:hunter2@h/d failed"]
            signal = {"desiredHosts": 2, "hosts": 1, "demand": 8, "queueDepth": 4, "busySlots": 4, "idleSlots": 0}
            document = {"reasons": reasons, "holder": "c-1", "provisioner": "memory", "scaling": signal, "instances": 1}
            store.controllers.keep("fleet-controller", {}, document)
        page = self.see("term")
        for said in ("2 hosts are wanted, 1 is there: &lt;b&gt;add", "memory", "instances listed", "4, 0 free"):
            assert said in page, said
        assert "hunter2" not in page

    def test_results_and_messages_lead_to_each_other(self) -> None:
        message = self.publish(task_id="t-5")
        result = TaskResult.objects.create(task_id="t-5", status="PENDING")
        assert "taskresult/?task_id=t-5" in self.see("message", message)
        back = self.client.get(reverse("admin:django_celery_results_taskresult_change", args=(result.pk,)))
        assert f'href="{url("message")}?id=t-5"' in back.content.decode()

    def test_other_peoples_text_stays_text(self) -> None:
        message = self.publish(EVIL.replace("\0", ""), "x" * 1_000_000, name=EVIL.replace("\0", ""))
        self.publish("\0 in json", task_id="<i>id</i>")
        self.bury(message, EVIL.replace("\0", ""))
        with self.here() as store:
            evil = EVIL.replace("\0", "")
            store.hosts.register(host("host-<b>", name=evil, labels={"k": evil}, queues=(evil,), versions={evil: evil}))
            store.events.record("host-left", host=evil, detail={evil: evil})
            store.terms.begin(evil, "x", 10_000)
        for page, key in (
            *((page, None) for page in PAGES),
            ("message", message),
            ("host", "host-<b>"),
        ):
            with self.subTest(page, key=key):
                text = self.see(page, key)
                assert "<script>alert" not in text
                assert "<b>" not in text
                assert "<i>id" not in text
                assert "\u202e" not in text
                assert "\x00" not in text
                assert len(text) < 200000

    def test_nonsense_in_the_address_is_no_error(self) -> None:
        for page in PAGES:
            for query in ("before=x", "before=-1", "before=" + "9" * 30, "after=%00", "text=%00&id=%00", "state=%ff"):
                with self.subTest(page, query=query):
                    assert self.client.get(f"{url(page)}?{query}").status_code == 200
        assert self.client.get(url("host", "a\x00b")).status_code == 404

    def test_no_page_costs_many_statements(self) -> None:
        for number in range(60):
            self.publish(number, task_id=f"t{number}")
        self.claim(limit=8)
        with self.here() as store:
            for number in range(2, 60):
                store.hosts.register(host(f"host-{number}"))
        for page, key in (*((page, None) for page in PAGES), ("host", "host-1"), ("message", "t1")):
            with self.subTest(page, key=key), self.at_most(QUERIES):
                self.see(page, key)

    def test_the_part_that_changes_comes_as_json(self) -> None:
        message = self.publish()
        live = reverse(f"admin:{LABEL}_message_live")
        answer = self.client.get(live, {"state": "ready"})
        assert answer["Content-Type"] == "application/json"
        assert f'data-message="{message}"' in answer.json()["html"]
        assert "data-message=" not in self.client.get(live, {"state": "dead"}).json()["html"]
        one = reverse(f"admin:{LABEL}_message_one_live", args=(message,))
        assert "shop.pay" in self.client.get(one).json()["html"]

    def test_nothing_is_written_into_the_page_that_a_policy_forbids(self) -> None:
        for page in PAGES:
            text = self.see(page)
            assert " style=" not in text
            assert " onclick=" not in text
            assert "<style" not in text
            assert "//cdn" not in text


class Permissions(FleetCase):
    def test_nobody_sees_anything_without_permission(self) -> None:
        for page in PAGES:
            with self.subTest(page):
                assert self.somebody().get(url(page)).status_code == 403
                assert Client().get(url(page)).status_code == 302
                live = reverse(f"admin:{LABEL}_{page}_live")
                assert self.somebody().get(live).status_code == 403
                assert Client().get(live).status_code == 302
                assert self.somebody(f"view_{page}").get(url(page)).status_code == 200
        export = reverse(f"admin:{LABEL}_fleetevent_export")
        assert self.somebody("view_host").get(export).status_code == 403

    def test_who_may_only_look_gets_no_buttons_and_can_do_nothing(self) -> None:
        message = self.publish()
        self.claim()
        for page, target, actions in (
            ("host", "host-1", ("drain", "undrain", "forget")),
            ("message", message, ("requeue", "bury", "delete", "run_now")),
            ("term", "1 x", ("resign",)),
        ):
            looker = self.somebody(f"view_{page}")
            text = self.see(page, client=looker)
            assert 'name="action"' not in text
            assert 'name="selected"' not in text
            for action in actions:
                with self.subTest(page, action=action):
                    assert self.act(page, action, target, client=looker).status_code == 403
        assert self.states([message]) == ["running"]

    def test_each_action_has_a_permission_of_its_own(self) -> None:
        message = self.publish()
        burier = self.somebody("bury_message")
        page = self.see("message", client=burier)
        assert 'value="bury"' in page
        assert 'value="delete"' not in page
        assert self.act("message", "delete", message, client=burier).status_code == 403
        assert self.act("message", "bury", message, client=burier).status_code == 200
        assert self.states([message]) == ["dead"]
        operator = self.somebody("view_message", "operate_message")
        self.act("message", "delete", message, client=operator)
        assert self.states([message]) == [None]

    def test_a_page_links_only_to_pages_that_one_may_see(self) -> None:
        text = self.see("host", client=self.somebody("view_host"))
        assert url("message") not in text

    def test_models_change_nothing(self) -> None:
        from django_admin import models

        message = self.publish()
        row = models.Message.objects.get(pk=message)
        assert row.task_name == "shop.pay"
        for change in (
            row.save,
            row.delete,
            models.Message.objects.all().delete,
            lambda: models.Message.objects.update(priority=9),
            lambda: models.Message.objects.create(queue_id=1),
            lambda: models.Message.objects.bulk_create([]),
        ):
            with pytest.raises(TypeError, match="read-only"):
                change()
        for model in (models.Overview, models.Host, models.FleetEvent, models.Term):
            list(model.objects.all())
