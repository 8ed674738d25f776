from __future__ import annotations

import json

import pytest

from atomic_celery import operations
from atomic_celery.cli import messages
from atomic_celery.cli.session import Session
from atomic_celery.store.reads import Filter
from tests.cli.conftest import CommandLine, World

NEVER_MS = 2**42


def payload(*args: object, **kwargs: object) -> str:
    headers = {"origin": "gen7@web", "retries": 1}
    return json.dumps({"body": json.dumps([args, kwargs, {}]), "content-type": "application/json", "headers": headers})


def test_each_message_is_listed_in_its_state_the_newest_first(cli: CommandLine, world: World) -> None:
    dead, running = world.publish("dead"), world.publish("running")
    world.store.messages.bury([dead], "looked poisonous")
    assert world.claim() == [running]
    world.publish("delayed", due_ms=NEVER_MS)
    world.publish("ready")

    listed = cli.json("messages", "list")

    assert [(message["task_id"], message["state"]) for message in listed] == [
        ("ready", "ready"),
        ("delayed", "delayed"),
        ("running", "running"),
        ("dead", "dead"),
    ]
    text = cli("messages", "list").stdout
    assert "held by worker-1, lease ends in" in text
    assert "due in" in text
    assert "looked poisonous" in text


def test_filters_choose(cli: CommandLine, world: World) -> None:
    world.publish("a", root_id="r-1", payload=payload("hello"))
    world.publish("b", root_id="r-1", task_name="proj.mail")
    world.store.messages.bury([world.publish("c")], "why")
    world.publish("d", queue="other")

    def chosen(**names: str) -> list[str | None]:
        return [message.task_id for message in world.store.reads.messages(Filter(**names))]  # type: ignore[arg-type]

    assert chosen() == ["d", "c", "b", "a"]
    assert chosen(queue="other") == ["d"]
    assert chosen(state="dead") == ["c"]
    assert chosen(task="proj.mail") == ["b"]
    assert chosen(root="r-1") == ["b", "a"]
    assert chosen(text="HELLO") == ["a"]
    assert chosen(text="no such word") == []
    every = ("--queue", "celery", "--state", "ready", "--task", "proj.add", "--root", "r-1", "--text", "hell")
    assert [message["task_id"] for message in cli.json("messages", "list", *every)] == ["a"]


def test_a_list_goes_on_where_it_stopped(cli: CommandLine, world: World) -> None:
    ids = [world.publish(name) for name in "abc"]

    [last] = cli.json("messages", "list", "--limit", "1", "--before", str(ids[1]))

    assert last["id"] == ids[0]


def test_show_says_what_is_called_who_holds_it_and_how_often_it_crashed(cli: CommandLine, world: World) -> None:
    message_id = world.publish("task-1", root_id="r-1", payload=payload(1, "two", password="hunter2"))
    world.claim(holder="first")
    world.store.messages.crash([(message_id, 1)], "killed by signal 9")
    world.claim(holder="second")

    [shown] = cli.json("messages", "show", "task-1")

    assert shown["message"]["holder"] == "second"
    assert shown["message"]["fence"] == 2
    assert shown["call"]["args"] == "[1, 'two']"
    assert [(crash["fence"], crash["holder"], crash["reason"]) for crash in shown["crash_history"]] == [
        (1, "first", "killed by signal 9")
    ]
    text = cli("messages", "show", str(message_id)).stdout
    assert "hunter2" not in text
    assert "'password': '********'" in text
    assert "killed by signal 9" in text
    assert "gen7@web" in text


def test_what_has_ended_is_said_on_stderr_and_the_rest_is_shown(cli: CommandLine, world: World) -> None:
    message_id = world.publish("here")

    run = cli("messages", "show", "gone", "here", str(message_id + 1), "--json")

    assert run.returncode == 1
    assert [shown["message"]["id"] for shown in json.loads(run.stdout)] == [message_id]
    assert "no unfinished message gone:" in run.stderr
    assert f"no unfinished message {message_id + 1}:" in run.stderr


def test_a_dead_message_is_requeued_with_a_new_fence_and_an_event(cli: CommandLine, world: World) -> None:
    message_id = world.publish("poison")
    world.claim()
    world.store.messages.bury([message_id], "operator")

    assert cli.json("messages", "requeue", "poison") == {"verb": "requeued", "ids": [message_id], "skipped": []}

    view = world.store.reads.message(message_id)
    assert view is not None
    assert (view.state, view.crashes) == ("ready", 0)
    [event] = world.store.events.list(kind="message-requeued")
    assert event.detail == {"asked_by": operations.asker(), "count": 1, "ids": [message_id]}


def test_requeuing_takes_a_running_message_from_its_holder(cli: CommandLine, world: World) -> None:
    message_id = world.publish("stuck")
    world.claim()

    assert cli("messages", "requeue", "stuck").stdout == "1 requeued\n"

    assert world.store.messages.complete([(message_id, 1)]) == frozenset()
    assert world.claim(holder="another") == [message_id]


def test_a_buried_message_runs_no_more_and_keeps_the_reason(cli: CommandLine, world: World) -> None:
    message_id = world.publish("poison")

    assert cli.json("messages", "bury", "poison", "--reason", "ticket 7")["ids"] == [message_id]

    assert world.claim() == []
    [dead] = cli.json("messages", "list", "--state", "dead")
    assert dead["reason"] == "ticket 7"


def test_a_deleted_message_is_gone(cli: CommandLine, world: World) -> None:
    message_id = world.publish("oops")

    assert cli.json("messages", "delete", "oops")["ids"] == [message_id]

    assert world.store.reads.message(message_id) is None
    assert world.store.reads.payload(message_id) is None


def test_what_a_verb_left_alone_is_said_and_ends_with_1(cli: CommandLine, world: World) -> None:
    ready, dead = world.publish("ready"), world.publish("dead")
    world.store.messages.bury([dead], "why")

    run = cli("messages", "requeue", str(ready), str(dead))

    assert run.returncode == 1
    assert run.stdout == f"1 requeued\n1 left alone, ended or so already: {ready}\n"


def test_filters_choose_what_is_moved_and_the_oldest_goes_first(cli: CommandLine, world: World) -> None:
    ids = [world.publish(f"t{number}") for number in range(7)]
    world.store.messages.bury(ids, "all of them")
    kept = world.publish("ready")

    assert cli.json("messages", "requeue", "--state", "dead", "--limit", "3")["ids"] == ids[4:]
    assert cli.json("messages", "requeue", "--state", "dead")["ids"] == ids[:4]
    assert cli.json("messages", "requeue", "--state", "dead")["ids"] == []
    assert world.claim(limit=9) == [kept, *ids[4:], *ids[:4]]
    assert len(cli.json("messages", "delete", "--task", "proj.add", "--yes")["ids"]) == 8
    assert world.store.reads.message(kept) is None


def test_batches_are_moved_whole_and_each_leaves_an_event(world: World) -> None:
    ids = [world.publish(f"t{number}") for number in range(operations.BATCH + 1)]

    done = operations.bury(world.store, [*ids, 10**9], reason="too many", asked_by="ada")

    assert (done.ids, done.skipped) == (tuple(ids), (10**9,))
    events = world.store.events.list(kind="message-dead")
    assert [event.detail and event.detail["count"] for event in events] == [1, operations.BATCH]
    assert [depth.dead for depth in world.store.reads.depths()] == [len(ids)]


def test_what_filters_choose_is_found_page_after_page(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [world.publish(f"t{number}") for number in range(5)]
    monkeypatch.setattr(messages, "_PAGE", 2)
    session = Session.__new__(Session)
    session._store = world.store

    assert messages._chosen(session, Filter(state="ready"), None) == ids
    assert messages._chosen(session, Filter(state="ready"), 3) == ids[2:]


def test_a_holder_whose_name_others_have_is_told_apart_by_its_id(cli: CommandLine, world: World) -> None:
    world.register("2a27c0ffee", name="celery@vm")
    world.publish("running")
    [claimed] = world.claim(holder="2a27c0ffee", is_host=True)

    assert "held by celery@vm, lease ends in" in cli("messages", "list").stdout
    world.register("4e75c0ffee", name="celery@vm")
    for words in (("list",), ("show", str(claimed))):
        assert "held by celery@vm (2a27c0ff), lease ends in" in cli("messages", *words).stdout
