"""What operators do: once, recorded twice, and honest about what was not done."""

from __future__ import annotations

from unittest import mock

from django.contrib.admin.models import LogEntry
from django.db import DatabaseError
from django.test import Client
from django.urls import reverse
from pages.fleet import FleetCase, host, url

from atomic_celery import errors, operations
from django_admin.apps import LABEL


class Actions(FleetCase):
    def test_messages_are_requeued_and_both_logs_name_the_user(self) -> None:
        dead, ready = self.publish(), self.publish()
        self.bury(dead)
        page = self.act("message", "requeue", dead, ready).content.decode()
        assert f"Requeued 1 message: {dead}." in page
        assert f"Not done for 1 message: {ready}." in page
        assert self.states([dead, ready]) == ["ready", "ready"]
        assert self.events()[0] == ("message-requeued", {"asked_by": "ann", "count": 1, "ids": [dead]})
        [entry] = LogEntry.objects.all()
        assert (entry.user, entry.object_id, entry.change_message) == (self.admin, str(dead), "Requeued.")
        assert entry.get_admin_url() == url("message", dead)

    def test_messages_are_put_aside_run_now_and_deleted(self) -> None:
        with self.here() as store:
            delayed = self.publish(due_ms=store.now_ms() + 3_600_000)
        ready = self.publish()
        page = self.act("message", "run_now", delayed, ready).content.decode()
        assert f"Made ready 1 message: {delayed}." in page
        assert f"Not done for 1 message: {ready}." in page
        self.act("message", "bury", ready, reason="wait for the fix")
        found = self.message(ready)
        assert found is not None
        assert (found.state, found.reason) == ("dead", "wait for the fix")  # type: ignore[union-attr]
        self.act("message", "delete", ready, delayed, 12345)
        assert self.states([ready, delayed]) == [None, None]

    def test_who_deletes_a_message_on_its_own_page_is_led_to_the_list(self) -> None:
        """Not to the page of what is gone."""
        message = self.publish()
        there = reverse(f"admin:{LABEL}_message_act")
        data = {"action": "delete", "selected": [message], "next": url("message", message)}
        question = self.client.post(there, data)
        assert question.status_code == 200
        assert self.states([message]) == ["ready"]
        page = self.client.post(there, {**data, "confirmed": "yes"}, follow=True)
        assert page.redirect_chain == [(url("message"), 302)]
        assert f"Deleted 1 message: {message}." in page.content.decode()
        assert self.client.get(url("message", message)).status_code == 404

        messages = [self.publish(), self.publish()]
        there_again = url("message") + "?state=ready"
        for action, back in (("delete", there_again), ("bury", url("message", messages[1]))):
            data = {"action": action, "selected": [messages.pop(0)], "next": back, "confirmed": "yes"}
            page = self.client.post(there, data, follow=True)
            assert page.redirect_chain == [(back, 302)]

    def test_a_running_message_is_taken_from_its_holder(self) -> None:
        message = self.publish()
        [claimed] = self.claim()
        self.act("message", "requeue", message)
        assert self.states([message]) == ["ready"]
        with self.here() as store:
            assert store.messages.complete([claimed.held]) == frozenset()

    def test_what_finished_meanwhile_is_said(self) -> None:
        message = self.publish()
        [claimed] = self.claim()
        with self.here() as store:
            store.messages.complete([claimed.held])
        for action in ("requeue", "bury", "delete"):
            page = self.act("message", action, message).content.decode()
            assert "finished or deleted meanwhile" in page.lower()
        assert LogEntry.objects.count() == 0
        assert self.events() == []

    def test_hosts_drain_and_come_back(self) -> None:
        with self.here() as store:
            store.hosts.register(host())
        page = self.act("host", "drain", "host-1", reason="new kernel").content.decode()
        assert "Draining 1 host: host-1." in page
        assert "new kernel" in page
        assert self.events()[0] == ("drain-asked", {"asked_by": "ann", "reason": "new kernel"})
        assert "It was asked before" in self.act("host", "drain", "host-1").content.decode()
        self.act("host", "undrain", "host-1")
        with self.here() as store:
            assert store.hosts.drains() == []
        assert "No drain was asked" in self.act("host", "undrain", "host-1").content.decode()

    def test_a_live_host_is_not_forgotten(self) -> None:
        with self.here() as store:
            store.hosts.register(host())
        assert "Not done for 1 host: host-1." in self.act("host", "forget", "host-1").content.decode()
        try:
            self.store.at(self.store.now_ms() + 3_600_000)
            assert "Forgotten 1 host" in self.act("host", "forget", "host-1").content.decode()
        finally:
            self.store.at(None)

    def test_a_term_is_ended_by_its_fence(self) -> None:
        with self.here() as store:
            store.terms.begin("controller", "h", 20_000)
        assert "Not done" in self.act("term", "resign", "7 controller").content.decode()
        assert "Ended 1 term: controller." in self.act("term", "resign", "1 controller").content.decode()
        assert self.events()[0][0] == "term-resigned"
        assert "Not done" in self.act("term", "resign", "x").content.decode()

    def test_what_destroys_is_asked_about_first(self) -> None:
        message = self.publish()
        response = self.client.post(
            reverse(f"admin:{LABEL}_message_act"), {"action": "delete", "selected": [message], "next": "/admin/?x=1"}
        )
        page = response.content.decode()
        assert "They never run, and cannot be brought back." in page
        assert 'name="confirmed"' in page
        assert 'href="/admin/?x=1"' in page
        assert self.states([message]) == ["ready"]

    def test_it_takes_a_post_with_a_token(self) -> None:
        message = self.publish()
        act = reverse(f"admin:{LABEL}_message_act")
        assert self.client.get(act, {"action": "delete", "selected": message}).status_code == 405
        strict = Client(enforce_csrf_checks=True)
        strict.force_login(self.admin)
        asked = {"action": "delete", "selected": message, "confirmed": "yes"}
        assert strict.post(act, asked).status_code == 403
        assert self.states([message]) == ["ready"]
        page = strict.get(url("message")).content.decode()
        token = page.split('name="csrfmiddlewaretoken" value="')[1].split('"')[0]
        assert strict.post(act, {**asked, "csrfmiddlewaretoken": token}).status_code == 302
        assert self.states([message]) == [None]

    def test_nonsense_is_refused(self) -> None:
        assert self.act("message", "explode", 1).status_code == 400
        assert "Nothing was selected" in self.act("message", "delete").content.decode()
        assert "Select at most 500" in self.act("message", "delete", *range(501)).content.decode()
        for target in ("x", "-1", "9" * 40, "1;drop", "\0"):
            assert self.act("message", "requeue", target).status_code == 200
        assert self.act("host", "drain", "\x00").status_code == 200

    def test_it_leads_back_to_where_one_was_and_nowhere_else(self) -> None:
        message = self.publish()
        act = reverse(f"admin:{LABEL}_message_act")
        asked = {"action": "run_now", "selected": message}
        here = url("message") + "?state=ready"
        assert self.client.post(act, {**asked, "next": here})["Location"] == here
        for elsewhere in ("https://evil.example/", "//evil.example", "javascript:alert(1)"):
            assert self.client.post(act, {**asked, "next": elsewhere})["Location"] == url("message")

    def test_nothing_is_done_without_its_log(self) -> None:
        message = self.publish()
        with mock.patch.object(LogEntry.objects, "bulk_create", side_effect=DatabaseError("full")):
            page = self.act("message", "delete", message).content.decode()
        assert "Nothing was done: the database does not answer: full" in page
        assert self.states([message]) == ["ready"]
        assert self.events() == []

    def test_a_database_in_trouble_is_said(self) -> None:
        trouble = errors.StoreUnavailable("no answer from postgresql://u:hunter2@h/d")
        with mock.patch.object(operations, "delete", side_effect=trouble):
            page = self.act("message", "delete", 1).content.decode()
        assert "Nothing was done" in page
        assert "hunter2" not in page
        with mock.patch("django_admin.messages.MessagePage.look", side_effect=trouble):
            response = self.client.get(url("message"))
            live = self.client.get(reverse(f"admin:{LABEL}_message_live"))
        assert (response.status_code, live.status_code) == (503, 503)
        assert "The fleet cannot be shown" in response.content.decode()
        assert "hunter2" not in response.content.decode() + live.content.decode()
