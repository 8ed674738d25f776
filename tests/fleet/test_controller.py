"""The controller at work: a real database, a cloud in memory, and time that moves when it is told to."""

from __future__ import annotations

import io
import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from atomic_celery import errors, operations
from atomic_celery.fleet.controller import TERM, Controller, checked
from atomic_celery.fleet.policy import Policy
from atomic_celery.fleet.provisioner import Instance, Permit
from atomic_celery.lines import Lines
from atomic_celery.store.hosts import HostReport
from atomic_celery.store.records import Holder
from tests.fleet.cloud import Cloud
from tests.store.desk import Desk
from tests.store.test_hosts import host
from tests.support.clocks import ManualClock

MINUTE_MS = 60_000


def wait_for(event: threading.Event) -> None:
    assert event.wait(60)


class Scene:
    """A desk, a cloud, and controllers that all see the same time."""

    def __init__(self, desk: Desk) -> None:
        self.desk, self.store, self.cloud = desk, desk.store, Cloud()
        self.clock = ManualClock()
        self.said: dict[Controller, io.StringIO] = {}
        self.controller = self.another()

    def another(self, clock: ManualClock | None = None, **numbers: Any) -> Controller:
        said = io.StringIO()
        policy = Policy(**{"workers_per_host": 1, "max_hosts": 5, **numbers})
        made = Controller(self.store, self.cloud, policy, lines=Lines(said, as_json=True), clock=clock or self.clock)
        self.said[made] = said
        return made

    def lines(self, event: str, controller: Controller | None = None) -> list[dict[str, Any]]:
        """Return the lines that a controller has said of an event."""
        said = self.said[controller or self.controller].getvalue().splitlines()
        return [line for line in map(json.loads, said) if line["event"] == event]

    def pass_s(self, by_s: int, *controllers: Controller, step_s: int = 1) -> None:
        """Let time go on in steps, every controller at work after each."""
        for _ in range(by_s // step_s):
            self.clock.advance(step_s)
            self.desk.pass_ms(step_s * 1000)
            for controller in controllers or (self.controller,):
                controller.turn()

    def let_a_host_come_before_the_removal(self, name: str) -> None:
        """Let a host register on an instance just when its removal begins, after the controller has looked."""
        drain_unused = self.store.hosts.drain_unused

        def register_first(*args: Any, **options: Any) -> bool:
            self.up(name)
            return drain_unused(*args, **options)

        self.store.hosts.drain_unused = register_first  # type: ignore[method-assign]

    def up(self, name: str, *, idle_ms: int | None = None) -> None:
        """Let a host register on an instance, or report."""
        report = HostReport(slots=1, busy=0, queues=(), idle_ms=idle_ms)
        if not self.store.hosts.report(f"h-{name}", "b1", report).known:
            self.store.hosts.register(host(f"h-{name}", provider_id=name))
            self.store.hosts.report(f"h-{name}", "b1", report)

    def leave(self, name: str) -> None:
        self.store.hosts.leave(f"h-{name}", "b1")

    def events(self, kind: str) -> list[Any]:
        return self.store.events.list(kind=kind)[::-1]  # type: ignore[arg-type]


@pytest.fixture
def scene(desk: Desk, patient_terms: None) -> Iterator[Scene]:
    made = Scene(desk)
    yield made
    made.controller.close()


def test_hosts_are_added_when_there_is_work_and_no_host(scene: Scene) -> None:
    for _ in range(3):
        scene.desk.publish()
    scene.controller.turn()
    assert scene.cloud.calls == ["list", "scale_to 3 +3"]
    [event] = scene.events("scale-up")
    assert event.detail["why"] == "demand of 3 and no host → add 3"
    assert scene.lines("scale-up")[0]["add"] == 3


def test_a_tick_is_every_ten_seconds_and_not_more_often(scene: Scene) -> None:
    scene.controller.turn()
    scene.pass_s(29)
    assert scene.cloud.calls == ["list"] * 3


def test_an_idle_host_is_drained_leaves_and_is_removed(scene: Scene) -> None:
    scene.cloud.make("a")
    scene.up("a", idle_ms=5 * MINUTE_MS)
    scene.controller.turn()
    assert scene.cloud.acts() == []
    [drain] = scene.store.hosts.drains()
    assert (drain.instance, drain.asked_by) == ("a", "fleet controller")
    assert drain.reason == "1 above target, 1 idle, oldest idle 5m → drain h-a@machine"
    scene.pass_s(10)
    assert scene.cloud.acts() == []
    scene.leave("a")
    scene.pass_s(10)
    assert scene.cloud.acts() == ["drain a"]
    kinds = ("host-registered", "drain-asked", "host-left", "drained", "removed")
    assert [len(scene.events(kind)) for kind in kinds] == [1, 1, 1, 1, 1]
    assert {event.instance for kind in kinds for event in scene.events(kind)} == {"a"}
    assert [event.host for kind in kinds for event in scene.events(kind)] == ["h-a", None, "h-a", None, None]


def test_a_host_that_claims_before_it_is_drained_is_not_drained(scene: Scene) -> None:
    """What the snapshot shows is old; the database has the last word."""
    scene.cloud.make("a")
    scene.up("a", idle_ms=5 * MINUTE_MS)
    scene.desk.publish()
    loads = scene.store.loads

    def holders_before_the_claim() -> frozenset[str]:
        seen = type(loads).holders(loads)
        assert scene.desk.claim(Holder("h-a", "b1", is_host=True))
        return seen

    loads.holders = holders_before_the_claim  # type: ignore[method-assign]
    scene.controller = scene.another(max_hosts=1)
    # The message is one for the target as well: let the target be as low as if nobody had published it.
    seen_work = type(loads).work
    loads.work = lambda queues, bound: seen_work(loads, ["nobody's"], bound)  # type: ignore[method-assign]
    scene.controller.turn()
    assert scene.store.hosts.drains() == []
    assert scene.events("drain-asked") == []


def test_an_instance_on_which_no_host_registers_is_drained_removed_and_replaced(scene: Scene) -> None:
    scene.desk.publish()
    scene.controller.turn()
    assert list(scene.cloud.instances) == ["vm-1"]
    scene.pass_s(600, step_s=5)
    scene.pass_s(9)
    assert scene.cloud.acts() == ["scale_to 1 +1"]
    scene.pass_s(10)
    assert scene.cloud.acts() == ["scale_to 1 +1", "drain vm-1", "scale_to 1 +1"]
    assert list(scene.cloud.instances) == ["vm-2"]
    assert [len(scene.events(kind)) for kind in ("boot-failed", "removed", "replaced")] == [1, 1, 1]
    # A host that registers on it while it goes takes nothing.
    assert scene.store.hosts.register(host("late", provider_id="vm-1")).draining


def test_a_host_that_registers_between_the_look_and_the_removal_keeps_its_instance(scene: Scene) -> None:
    scene.desk.publish()
    scene.controller.turn()
    scene.pass_s(595, step_s=5)
    scene.let_a_host_come_before_the_removal("vm-1")
    scene.pass_s(20)
    assert scene.lines("kept")[0]["instance"] == "vm-1"
    assert "drain vm-1" not in scene.cloud.calls
    assert scene.store.hosts.drains() == []


def test_nothing_is_added_in_the_place_of_an_instance_that_is_kept_where_there_is_no_more_room(scene: Scene) -> None:
    """What was noted as asked for, and was not, would count as on its way until the boot timeout."""
    scene.controller = scene.another(max_hosts=1)
    scene.desk.publish()
    scene.controller.turn()
    scene.pass_s(595, step_s=5)
    scene.let_a_host_come_before_the_removal("vm-1")
    scene.pass_s(20)
    assert scene.lines("kept")
    assert scene.cloud.acts() == ["scale_to 1 +1"]
    assert scene.events("replaced") == []
    kept = scene.store.controllers.load(TERM)
    assert kept is not None
    assert kept.memory["asked"] == []


def test_an_instance_whose_host_was_drained_by_its_own_id_is_removed_and_the_drain_of_both_forgotten(
    scene: Scene,
) -> None:
    """A host that does not know where it runs: its drain must not outlive the instance, for its id may come back."""
    scene.cloud.instances["a"] = Instance(id="a", state="running", host_id="own")
    scene.store.hosts.register(host("own"))
    operations.drain(scene.store, "own", reason="bad disk", asked_by="ann")
    scene.controller.turn()
    assert {drain.instance: drain.on_instance for drain in scene.store.hosts.drains()} == {"own": "a", "a": None}
    scene.store.hosts.leave("own", "b1")
    scene.pass_s(10)
    assert scene.cloud.acts() == ["drain a"]
    scene.pass_s(30)
    assert scene.store.hosts.drains() == []
    assert not scene.store.hosts.register(host("own")).draining


def test_a_removal_that_was_planned_does_not_happen_when_the_drain_was_taken_back(scene: Scene) -> None:
    scene.cloud.make("a")
    scene.store.hosts.drain("a", "", "somebody")
    drains = scene.store.hosts.drains

    def take_back() -> Any:
        seen = drains()
        scene.store.hosts.undrain("a")
        return seen

    scene.store.hosts.drains = take_back  # type: ignore[method-assign]
    scene.controller.turn()
    assert scene.cloud.acts() == []


def test_an_operator_s_drain_leads_to_the_removal_too(scene: Scene) -> None:
    scene.cloud.make("a")
    scene.up("a")
    operations.drain(scene.store, "a", reason="bad disk", asked_by="ann")
    scene.leave("a")
    scene.controller.turn()
    assert scene.cloud.acts() == ["drain a"]


def test_a_drain_is_forgotten_after_three_listings_and_by_a_new_controller_as_well(scene: Scene) -> None:
    scene.cloud.make("a")
    scene.store.hosts.drain("a", "", "somebody")
    scene.cloud.failures["drain"] = errors.ProvisionerError("exit", "no")
    scene.controller.turn()
    del scene.cloud.instances["a"], scene.cloud.failures["drain"]
    scene.pass_s(10)  # the failure is waited for
    assert [drain.missed_listings for drain in scene.store.hosts.drains()] == [1]
    scene.controller.close()
    scene.controller = scene.another()
    scene.controller.turn()
    assert [drain.missed_listings for drain in scene.store.hosts.drains()] == [2]
    scene.pass_s(10)
    assert scene.store.hosts.drains() == []
    assert len(scene.events("drain-forgotten")) == 1


def test_a_drain_is_kept_while_the_host_of_an_instance_that_is_not_listed_any_more_still_reports(scene: Scene) -> None:
    scene.cloud.make("a")
    scene.up("a")
    scene.store.hosts.drain("a", "", "somebody")
    scene.controller.turn()
    scene.cloud.hidden = {"a"}
    for _ in range(6):
        scene.up("a")
        scene.pass_s(10)
    assert [drain.missed_listings for drain in scene.store.hosts.drains()] == [0]
    scene.leave("a")
    scene.pass_s(30, step_s=10)
    assert scene.store.hosts.drains() == []
    assert len(scene.events("drain-forgotten")) == 1


def test_one_listing_that_misses_an_instance_forgets_nothing(scene: Scene) -> None:
    scene.cloud.make("a")
    scene.up("a", idle_ms=5 * MINUTE_MS)
    scene.controller.turn()
    for hidden in ({"a"}, set(), {"a"}, {"a"}, set()):
        scene.cloud.hidden = hidden
        scene.pass_s(10)
    [drain] = scene.store.hosts.drains()
    assert drain.missed_listings == 0


def test_a_drain_of_what_the_provider_never_listed_is_an_operator_s_own(scene: Scene) -> None:
    scene.store.hosts.drain("elsewhere", "", "ann")
    scene.controller.turn()
    scene.pass_s(60, step_s=5)
    assert [drain.instance for drain in scene.store.hosts.drains()] == ["elsewhere"]


def test_a_host_that_falls_silent_is_recorded_once(scene: Scene) -> None:
    scene.cloud.make("a")
    scene.up("a")
    scene.controller.turn()
    scene.pass_s(10)
    assert scene.events("host-stale") == []
    scene.pass_s(60, step_s=10)
    [event] = scene.events("host-stale")
    assert event.instance == "a"
    scene.up("a")
    scene.pass_s(10)
    assert len(scene.events("host-stale")) == 1


# A provider in trouble


def test_a_provider_that_fails_is_left_alone_for_longer_and_longer(scene: Scene) -> None:
    scene.cloud.failures["list"] = errors.ProvisionerError("auth", "refused")
    scene.controller.turn()
    scene.pass_s(1800, step_s=5)
    waits = [line["retry_in_ms"] for line in scene.lines("degraded")]
    assert waits[:7] == [10_000, 20_000, 40_000, 80_000, 160_000, 320_000, 600_000]
    assert scene.lines("degraded")[0]["code"] == "auth"
    assert len(scene.cloud.calls) == len(waits)
    del scene.cloud.failures["list"]
    scene.pass_s(600, step_s=5)
    assert len(scene.lines("recovered")) == 1
    assert len(scene.events("provider-recovered")) == 1


def test_who_comes_to_a_provider_that_is_left_alone_says_so_once(scene: Scene) -> None:
    scene.cloud.failures["list"] = errors.ProvisionerError("auth", "refused")
    scene.controller.turn()
    scene.controller.close()
    other = scene.another()
    assert other.once() is None
    assert [(line["failures"], line["retry_in_ms"]) for line in scene.lines("degraded", other)] == [(1, 10_000)]
    assert other.provider_failed


def test_the_fleet_s_size_is_noted_while_the_provider_does_not_answer(scene: Scene) -> None:
    scene.cloud.failures["list"] = errors.ProvisionerError("unavailable", "gone")
    for _ in range(20):
        scene.desk.publish()
    scene.controller.turn()
    scene.pass_s(180, step_s=5)
    sizes = scene.store.controllers.sizes(0, 60)
    assert len(sizes) in (3, 4)
    assert {(size.desired_hosts, size.hosts, size.instances) for size in sizes} == {(5, 0, None)}


def test_a_provider_that_failed_is_asked_again_ten_seconds_after_it_answered(scene: Scene) -> None:
    """Not at the next tick after that, which would be 20 s later."""
    asked_at: list[float] = []

    def fail_slowly(name: str, permit: Permit) -> None:
        asked_at.append(scene.clock.monotonic_s)
        scene.clock.advance(2)
        scene.desk.pass_ms(2000)

    scene.cloud.during = fail_slowly
    scene.cloud.failures["list"] = errors.ProvisionerError("exit", "quota")
    scene.controller.turn()
    scene.pass_s(60)
    assert [later - first for first, later in itertools.pairwise(asked_at)] == [12, 22]


def test_an_instance_that_cannot_be_removed_holds_up_no_other_and_no_addition(scene: Scene) -> None:
    for name in ("a", "b"):
        scene.cloud.make(name)
        scene.store.hosts.drain(name, "", "ann")
    refuse = errors.ProvisionerError("exit", "a is locked")

    def lock(name: str, permit: Permit) -> None:
        scene.cloud.failures.pop("drain", None)
        if name == "drain" and "a" in scene.cloud.instances and "b" not in scene.cloud.instances:
            scene.cloud.failures["drain"] = refuse

    scene.cloud.failures["drain"] = refuse
    scene.cloud.during = lambda name, permit: None
    scene.controller.turn()
    assert scene.cloud.acts() == ["drain a"]
    assert [line["instance"] for line in scene.lines("degraded")] == ["a"]
    scene.cloud.during = lock
    scene.desk.publish()
    scene.pass_s(10)
    # What was not tried yet goes first, and there is work.
    assert scene.cloud.acts()[1:] == ["drain b", "drain a", "scale_to 2 +1"]
    scene.pass_s(290, step_s=5)
    waits = [line["retry_in_ms"] for line in scene.lines("degraded")]
    assert waits == [10_000, 20_000, 40_000, 80_000, 160_000]
    assert scene.cloud.calls.count("list") == 31, "all else is looked at as ever"
    assert {event.instance for event in scene.events("provider-degraded")} == {"a"}
    assert not scene.lines("recovered")
    scene.cloud.during = lambda name, permit: scene.cloud.failures.clear()
    scene.pass_s(200, step_s=5)
    assert "a" not in scene.cloud.instances
    assert len(scene.lines("recovered")) == 1


def test_a_replacement_that_could_not_be_added_is_still_one(scene: Scene) -> None:
    scene.controller = scene.another(workers_per_host=4)
    for name in ("a", "b"):
        scene.cloud.make(name, "failed" if name == "b" else "running")
    scene.up("a")
    for _ in range(5):
        scene.desk.publish()
    scene.desk.claim(Holder("h-a", "b1", is_host=True), limit=4)
    scene.cloud.failures["scale_to"] = errors.ProvisionerError("exit", "quota")
    scene.controller.turn()
    assert scene.cloud.acts() == ["drain b", "scale_to 2 +1"]
    del scene.cloud.failures["scale_to"]
    scene.up("a")
    scene.pass_s(10)
    assert scene.cloud.acts()[2:] == ["scale_to 3 +1"], "b may still be there: two listings more will tell"
    assert len(scene.events("replaced")) == 2


def test_a_failed_listing_changes_nothing_and_counts_for_nothing(scene: Scene) -> None:
    scene.cloud.make("a")
    scene.up("a", idle_ms=5 * MINUTE_MS)
    scene.controller.turn()
    before = scene.store.hosts.drains(), scene.store.hosts.list()
    scene.cloud.instances.clear()
    scene.cloud.failures["list"] = errors.ProvisionerError("malformed", "garbage")
    scene.pass_s(120, step_s=5)
    assert (scene.store.hosts.drains(), scene.store.hosts.list()) == before


def test_hosts_that_could_not_be_added_are_asked_for_again(scene: Scene) -> None:
    scene.desk.publish()
    scene.cloud.failures["scale_to"] = errors.ProvisionerError("exit", "quota")
    scene.controller.turn()
    scene.pass_s(19)
    assert scene.cloud.acts() == ["scale_to 1 +1"] * 2
    del scene.cloud.failures["scale_to"]
    scene.pass_s(30)
    assert scene.cloud.acts() == ["scale_to 1 +1"] * 3
    assert len(scene.cloud.instances) == 1


def test_those_that_were_started_before_a_failure_are_not_asked_for_again(scene: Scene) -> None:
    for _ in range(3):
        scene.desk.publish()
    scene.cloud.late = True
    scene.cloud.failures["scale_to"] = errors.ProvisionerError("exit", "quota", begun=2)
    scene.controller.turn()
    del scene.cloud.failures["scale_to"]
    scene.pass_s(60)
    assert scene.cloud.acts() == ["scale_to 3 +3", "scale_to 3 +1"]
    second = scene.another()
    scene.controller.close()
    scene.pass_s(60, second)
    assert len(scene.cloud.acts()) == 2


def test_a_provider_that_lists_late_is_not_asked_twice(scene: Scene) -> None:
    for _ in range(3):
        scene.desk.publish()
    scene.cloud.late = True
    scene.controller.turn()
    scene.pass_s(60, step_s=5)
    assert scene.cloud.acts() == ["scale_to 3 +3"]
    scene.cloud.hidden.clear()
    scene.pass_s(60, step_s=5)
    assert scene.cloud.acts() == ["scale_to 3 +3"]


def test_nor_by_the_next_controller(scene: Scene) -> None:
    scene.desk.publish()
    scene.cloud.late = True
    scene.controller.turn()
    scene.controller.close()
    scene.controller = scene.another()
    scene.controller.turn()
    scene.pass_s(30)
    assert scene.cloud.acts() == ["scale_to 1 +1"]


def test_whatever_a_provisioner_of_one_s_own_raises_is_a_failure_of_the_provider(scene: Scene) -> None:
    scene.cloud.failures["list"] = ZeroDivisionError("oops")
    scene.controller.turn()
    [line] = scene.lines("degraded")
    assert line["error"] == "ZeroDivisionError while listing the instances: oops"


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        (None, "got NoneType"),
        (["vm"], "got list"),
        ([Instance(id="a", state="running")] * 2, "an instance twice"),
        ("a", "got str"),
    ],
)
def test_a_listing_that_makes_no_sense_is_malformed(listed: object, said: str) -> None:
    with pytest.raises(errors.ProvisionerError, match=said):
        checked(listed)


# Leading


def test_one_of_several_leads_and_the_next_takes_over_at_once_when_it_ends(scene: Scene) -> None:
    second = scene.another()
    scene.controller.turn()
    scene.pass_s(30, scene.controller, second)
    assert (scene.controller.leads, second.leads) == (True, False)
    assert [line["event"] for line in map(json.loads, scene.said[second].getvalue().splitlines())] == [
        "controller-standby"
    ]
    scene.controller.close()
    scene.pass_s(1, second)
    assert second.leads


def test_who_leads_and_who_stands_by_is_recorded(scene: Scene) -> None:
    second = scene.another()
    scene.controller.turn()
    second.turn()
    [active], [standby] = scene.events("controller-active"), scene.events("controller-standby")
    standing = scene.store.terms.look(TERM)
    assert standing is not None
    assert active.detail == {"holder": standing.holder}
    assert standby.detail["holder"] != standing.holder
    scene.pass_s(20, scene.controller, second)
    assert len(scene.events("controller-active")) == len(scene.events("controller-standby")) == 1


def test_the_next_takes_over_within_thirty_seconds_when_it_dies(scene: Scene) -> None:
    second = scene.another()
    scene.controller.turn()
    second.turn()
    seconds = 0
    while not second.leads:
        scene.pass_s(1, second)
        seconds += 1
    assert seconds <= 30


@pytest.mark.parametrize("which", ["monotonic_s", "wall_s"])
def test_no_call_is_made_once_the_term_may_be_over_by_either_clock(scene: Scene, which: str) -> None:
    """The machine slept, or its clock jumped, between the plan and the act."""
    scene.desk.publish()

    def sleep(name: str, permit: Permit) -> None:
        if name == "scale_to":
            setattr(scene.clock, which, getattr(scene.clock, which) + 20)

    scene.cloud.during = sleep
    scene.controller.turn()
    assert scene.cloud.acts() == []
    assert not scene.controller.leads
    [line] = scene.lines("given-up")
    assert line["doing"].startswith("adding 1 host")
    assert line["doing"].endswith(" (before scale_to 1 +1)")


def test_no_call_outlives_its_term_even_if_the_next_one_is_the_same_controller_s(scene: Scene) -> None:
    """It was frozen for longer than a term, in the middle of a call, and nobody else wanted to lead."""
    scene.desk.publish()

    def freeze(name: str, permit: Permit) -> None:
        if name == "scale_to":
            scene.clock.advance(60)
            scene.desk.pass_ms(60_000)
            assert permit.wait(60)

    scene.cloud.during = freeze
    scene.controller._term.seconds_until_next = lambda: 0.0  # type: ignore[method-assign]  # time stands still here
    scene.controller.turn()
    assert scene.cloud.acts() == []
    assert scene.lines("given-up")

    scene.cloud.during = lambda name, permit: None
    scene.controller.turn()
    assert [line["fence"] for line in scene.lines("controller-active")] == [1, 2]


def test_a_call_is_made_on_a_thread_so_that_the_term_is_kept_meanwhile(scene: Scene) -> None:
    """A call that takes longer than the term: it is renewed all the time."""
    release = threading.Event()
    renewals = []
    keep = scene.controller._term.keep

    def keep_and_count() -> bool:
        scene.clock.advance(5)
        scene.desk.pass_ms(5000)
        renewals.append(keep())
        if len(renewals) > 12:
            release.set()
        return renewals[-1]

    scene.controller._term.keep = keep_and_count  # type: ignore[method-assign]
    scene.controller._term.seconds_until_next = lambda: 0.0  # type: ignore[method-assign]
    scene.cloud.during = lambda name, permit: wait_for(release)
    scene.controller.turn()
    assert scene.cloud.calls == ["list"]
    assert len(renewals) > 12
    assert all(renewals)
    assert scene.cloud.threads == {"atomic-provisioner"}


def test_a_call_is_given_up_when_the_controller_ends(scene: Scene) -> None:
    began = threading.Event()
    given_up: list[bool] = []

    def wait(name: str, permit: Permit) -> None:
        began.set()
        given_up.append(permit.wait(60))

    scene.cloud.during = wait
    turning = threading.Thread(target=scene.controller.turn)
    turning.start()
    assert began.wait(60)
    scene.controller.stop()
    turning.join(60)
    assert given_up == [True]
    assert scene.cloud.calls == []
    scene.controller.close()
    scene.cloud.during = lambda name, permit: None
    assert scene.another().once() is not None, "the term was handed over"


def test_a_controller_whose_provisioner_does_not_listen_keeps_its_term_from_nobody_and_leads_no_more(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atomic_celery.fleet.calls.GIVEN_UP_ENDS_WITHIN_S", 0.1)
    began, release = threading.Event(), threading.Event()

    def be_deaf(name: str, permit: Permit) -> None:
        began.set()
        wait_for(release)

    scene.cloud.during = be_deaf
    turning = threading.Thread(target=scene.controller.turn)
    turning.start()
    assert began.wait(60)
    scene.controller.stop()
    turning.join(60)
    scene.controller.close()
    standing = scene.store.terms.look(TERM)
    assert standing is not None
    assert not standing.free, "what still runs may act; the term must run out first"
    assert scene.controller.turn() == 1.0
    release.set()


def test_what_is_written_is_refused_when_another_one_leads(scene: Scene) -> None:
    """The local clocks stood still: only the database knows that the term is over."""
    scene.desk.publish()

    def stand_still(name: str, permit: Permit) -> None:
        if name == "list" and len(scene.cloud.calls) == 0:
            scene.desk.pass_ms(60_000)
            assert scene.store.terms.begin(TERM, "another", 20_000) is not None

    scene.cloud.during = stand_still
    scene.controller.turn()
    assert scene.cloud.acts() == []
    assert scene.lines("lost")
    assert scene.store.controllers.load(TERM) is None


# What people see


def test_the_last_plan_is_kept_with_its_reasons(scene: Scene) -> None:
    scene.desk.publish()
    scene.controller.turn()
    kept = scene.store.controllers.load(TERM)
    assert kept is not None
    assert kept.plan["reasons"] == ["demand of 1 and no host → add 1"]
    assert kept.plan["scaling"]["desiredHosts"] == 1
    assert kept.ticked_ms == scene.desk.now_ms


def test_of_each_minute_the_largest_size_is_kept(scene: Scene) -> None:
    scene.store.controllers.sample(1, 5, None)
    scene.store.controllers.sample(3, 2, 4)
    scene.store.controllers.sample(2, 2, None)
    [size] = scene.store.controllers.sizes(0, 60)
    assert (size.desired_hosts, size.hosts, size.instances) == (3, 5, 4)


def test_the_size_of_the_fleet_is_kept_a_minute_each_for_a_week(scene: Scene) -> None:
    scene.controller.turn()
    scene.pass_s(180, step_s=5)
    sizes = scene.store.controllers.sizes(0, 60)
    assert len(sizes) in (3, 4)
    assert {size.desired_hosts for size in sizes} == {0}
    scene.desk.pass_ms(8 * 24 * 60 * MINUTE_MS)
    scene.clock.advance(8 * 24 * 3600)
    scene.controller.turn()
    scene.controller.turn()
    assert len(scene.store.controllers.sizes(0, 60)) == 1


def test_a_scale_up_that_is_held_is_recorded_once(scene: Scene) -> None:
    scene.controller = scene.another(max_hosts=1)
    for _ in range(9):
        scene.desk.publish()
    scene.cloud.make("a", "draining")
    scene.controller.turn()
    scene.pass_s(60, step_s=5)
    assert len(scene.events("scale-up-held")) == 1


def test_a_look_acts_on_nothing(scene: Scene) -> None:
    scene.desk.publish()
    decided = scene.controller.look()
    assert decided.reasons() == ["demand of 1 and no host → add 1"]
    assert scene.cloud.calls == ["list"]
    assert scene.store.terms.look(TERM) is None
    assert scene.store.controllers.load(TERM) is None


def test_once_is_one_tick_and_hands_over(scene: Scene) -> None:
    scene.desk.publish()
    assert scene.another().once() is not None
    assert scene.another().once() is not None
    assert scene.cloud.calls == ["list", "scale_to 1 +1", "list"]


def test_once_while_another_one_leads_does_nothing(scene: Scene) -> None:
    scene.controller.turn()
    assert scene.another().once() is None
    assert scene.cloud.calls == ["list"]
