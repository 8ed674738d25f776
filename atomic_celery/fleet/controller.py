"""The fleet controller: every few seconds it looks at the fleet, plans, and acts, while it holds the term.

Several may run; one leads. What it writes it writes in transactions that hold the term, and each provider call is
made only while the term is trusted by both local clocks. What it removes it drains first, and it drains only what
holds nothing: of a drain and a claim the database lets one come wholly before the other.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from atomic_celery import errors
from atomic_celery.backoff import Backoff
from atomic_celery.clock import Clock, SystemClock
from atomic_celery.fleet import scaling, snapshot
from atomic_celery.fleet.calls import Calls
from atomic_celery.fleet.decisions import Add, Drain, Plan, Remove
from atomic_celery.fleet.memory import Asked, Memory
from atomic_celery.fleet.plan import LISTINGS_TO_FORGET, plan
from atomic_celery.fleet.provisioner import Instance, Provisioner, checked
from atomic_celery.lines import Lines
from atomic_celery.tables import amount
from atomic_celery.term import Term

if TYPE_CHECKING:
    from atomic_celery.fleet.policy import Policy
    from atomic_celery.store.fleet_events import Kind
    from atomic_celery.store.store import Store

TERM = "fleet-controller"
TICK_EVERY_S = 10.0
ASKED_BY = "fleet controller"
_STUCK_LOOK_EVERY_S = 1.0


class Controller:
    """One of perhaps several controllers of a fleet.

    Not safe to share between threads, but for `stop`.

    Args:
        lines: Where it says what it does.
        clock: Local time, for tests.
    """

    def __init__(
        self,
        store: Store,
        provisioner: Provisioner,
        policy: Policy,
        *,
        lines: Lines | None = None,
        clock: Clock | None = None,
        tick_every_s: float = TICK_EVERY_S,
    ) -> None:
        self._store, self._provisioner, self._policy = store, provisioner, policy
        self._lines, self._clock = lines or Lines(None), clock or SystemClock()
        self._holder = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"
        self._term = Term(store, TERM, self._holder, clock=self._clock)
        self._calls = Calls(self._term)
        self._tick_every_s = tick_every_s
        self._next_tick = self._clock.now()
        self._announced: int | Literal["nothing"] | None = "nothing"
        self._held_by: str | None = None
        self._store_trouble = Backoff()
        self._memory = Memory()
        self._listed: Sequence[Instance] = ()
        self._has_said_degraded = False
        self.provider_failed = False
        """Whether the provider failed in the last tick, or was left alone."""

    # Leading

    @property
    def leads(self) -> bool:
        """Whether it holds the term."""
        return self._term.held

    def turn(self) -> float:
        """Keep the term, and tick if it is time to; return seconds until the next turn.

        Never raises what a database or a provider in trouble does: it says so, and tries again.
        """
        if self._calls.stuck:
            return _STUCK_LOOK_EVERY_S  # until its provisioner listens, this controller must not lead again
        try:
            wait_s = self._turn()
        except errors.LeaseLost as error:
            self._say("lost", why=str(error))
            return 0.0
        except errors.StoreError as error:
            wait_s = self._store_trouble.failed()
            if self._term.held:  # it must not run out while it could be renewed
                wait_s = min(wait_s, self._term.seconds_until_next())
            self._say(
                "degraded", failures=self._store_trouble.failures, retry_in_ms=round(wait_s * 1000), error=str(error)
            )
            return wait_s
        if self._store_trouble.succeeded():
            self._say("recovered")
        return wait_s

    def stop(self) -> None:
        """Give up the call that is made at the moment, and make no other. Safe from any thread."""
        self._calls.give_up()

    def close(self) -> None:
        """Let another lead at once, unless a call could not be stopped or the database does not answer.

        Then the term runs out by itself.
        """
        if not self._calls.stuck:
            try:
                self._term.hand_over()
            except errors.StoreError as error:
                self._say("degraded", error=f"the term could not be handed over, and runs out: {error}")
        self._say("stopped")

    def _turn(self) -> float:
        held = self._term.keep()
        self._announce(self._term.require("leading") if held else None)
        if not held:
            return self._term.seconds_until_next()
        now = self._clock.now()
        if self._next_tick.reached(now):
            self._next_tick = now.later(self._tick_every_s)
            self.tick()
        return max(0.0, min(self._term.seconds_until_next(), self._next_tick.seconds_from(self._clock.now())))

    def _announce(self, fence: int | None) -> None:
        if fence == self._announced:
            return
        self._announced = fence
        if fence is not None:
            with self._writing("leading"):
                self._store.events.record("controller-active", detail={"holder": self._holder})
            self._say("controller-active", holder=self._holder, fence=fence)
        else:
            self._store.events.record("controller-standby", detail={"holder": self._holder})
            self._say("controller-standby", holder=self._holder)

    # One tick

    def tick(self) -> Plan | None:
        """Look, plan and act, once; return the plan, None when the provider is left alone or has failed.

        Raises:
            StaleTerm: Somebody else leads.
            StoreError: No answer; what was begun may be done or not.
        """
        self._memory, now_ms = self._recall()
        left_ms = self._memory.provider_retry_ms - now_ms
        self.provider_failed = left_ms > 0
        if self.provider_failed:
            self._tick_within(left_ms)
            if not self._has_said_degraded:
                self._say_degraded(self._memory.provider_failures, left_ms, error="it failed before, and is left alone")
            self._sample_without_listing()
            return None
        try:
            decided = self._decide()
            self._carry_out(decided)
        except errors.CallGivenUp as error:
            self._say("given-up", doing=error.doing)
            return None
        except errors.ProvisionerError as error:
            self._degrade(error)
            return None
        self._recover()
        return decided

    def once(self) -> Plan | None:
        """Lead for one tick and hand over; return what was decided.

        None where another one leads, or the provider failed or is left alone.

        Raises:
            StoreError: No answer; what was begun may be done or not.
        """
        try:
            if self._term.keep():
                return self.tick()
            self._say("controller-standby", holder=self._holder)
            return None
        finally:
            self.close()

    def look(self) -> Plan:
        """Plan, and act on nothing; needs no term and writes nothing.

        Raises:
            ProvisionerError: The provider cannot be listed.
            StoreError: No answer.
        """
        self._memory, _ = self._recall()
        listed = checked(self._provisioner.list(self._calls.free_permit()))
        return plan(self._see(listed, self._policy), self._memory, self._policy)

    def drain_idle(self) -> None:
        """Ask the idle hosts above the target to drain at once, if it leads: those on instances that it knows of.

        Never raises what a database in trouble does: it is a courtesy.
        """
        policy = replace(self._policy, idle_drain_ms=0)
        try:
            if self._term.held:
                for action in plan(self._see(self._listed, policy), self._memory, policy).actions:
                    if isinstance(action, Drain):
                        self._drain(action)
        except (errors.StoreError, errors.LeaseLost) as error:
            self._say("degraded", error=str(error))

    def _recall(self) -> tuple[Memory, int]:
        with self._in_time():
            kept = self._store.controllers.load(TERM)
            return Memory() if kept is None else Memory.of(kept.memory), self._store.now_ms()

    def _see(self, listed: Sequence[Instance], policy: Policy) -> snapshot.Snapshot:
        with self._in_time():
            return snapshot.read(self._store, policy, listed)

    def _decide(self) -> Plan:
        self._listed = checked(self._calls.make("listing the instances", self._provisioner.list))
        seen = self._see(self._listed, self._policy)
        decided = plan(seen, self._memory, self._policy)
        self._memory = decided.memory
        signal = seen.scaling
        document = {
            "reasons": decided.reasons(),
            "scaling": signal.document(),
            "instances": len(seen.instances),
            "holder": self._holder,
            "provisioner": self._provisioner.kind,
        }
        with self._writing("planning"):
            self._store.controllers.keep(TERM, self._memory.document(), document)
            self._store.controllers.sample(signal.desired_hosts, signal.hosts, len(seen.instances))
            forgotten = self._store.hosts.count_listing(
                decided.listed, decided.missing, LISTINGS_TO_FORGET, silent_ms=self._stale_ms
            )
            for news in decided.news:
                self._record(news.what, news.instance, host=news.host)
            for instance in forgotten:
                self._record("drain-forgotten", instance, why=f"missing from {LISTINGS_TO_FORGET} listings in a row")
            held_by = None if decided.held is None else decided.held.by
            if decided.held is not None and held_by != self._held_by:
                self._record("scale-up-held", why=decided.held.why)
            self._held_by = held_by
        return decided

    def _sample_without_listing(self) -> None:
        """Note what the fleet's size is and ought to be, also while the provider does not say what it runs."""
        with self._in_time():
            signal = scaling.read(self._store, self._policy)
        with self._writing("sampling"):
            self._store.controllers.sample(signal.desired_hosts, signal.hosts, None)

    # Acting

    def _carry_out(self, decided: Plan) -> None:
        kept = 0
        for action in decided.actions:
            match action:
                case Drain():
                    self._drain(action)
                case Add():
                    self._add(action.kept(kept))
                case Remove():
                    kept += not self._remove_if_it_can_be(action)

    def _remove_if_it_can_be(self, action: Remove) -> bool:
        """Remove an instance. Once the provider failed at one, the others wait for the next try; all else goes on."""
        if self._memory.removals_wait:
            return False
        try:
            return self._remove(action)
        except errors.ProvisionerError as error:
            self._degrade(error, removing=action.instance)
            return False

    def _drain(self, action: Drain) -> None:
        with self._writing(f"draining {action.instance}"):
            if action.when == "always":
                self._store.hosts.drain_together(action.instance, action.host_ids, action.why, ASKED_BY)
            elif not self._drained_unused(action.instance, action.host_ids, action.why, action.when == "silent"):
                return
            self._record("drain-asked", action.instance, why=action.why)

    def _drained_unused(self, instance: str, host_ids: Sequence[str], why: str, silent: bool) -> bool:
        silent_ms = self._stale_ms if silent else None
        return self._store.hosts.drain_unused(instance, host_ids, why, ASKED_BY, silent_ms=silent_ms)

    def _remove(self, action: Remove) -> bool:
        """Remove an instance; False: it is still in use after all."""
        instance = action.instance
        with self._writing(f"removing {instance}"):
            drained = action.cause == "drained" or self._drained_unused(instance, action.host_ids, action.why, True)
            if not drained or not self._store.hosts.begin_removal(instance, action.host_ids, silent_ms=self._stale_ms):
                self._say("kept", instance=instance, why="a host came back, or holds a message")
                return False
            kind: Kind = "boot-failed" if action.cause == "boot-failed" else "drained"
            self._record(kind, instance, why=action.why, cause=action.cause)
        self._calls.make(f"removing {instance}", lambda permit: self._provisioner.drain(instance, permit))
        with self._writing(f"removing {instance}"):
            self._record("removed", instance, why=action.why, cause=action.cause)
        return True

    def _add(self, action: Add) -> None:
        if not action.add:
            return
        before = self._memory
        with self._writing("adding hosts"):
            # Noted before it is done: a controller that dies in the middle must not have it done twice.
            asked = Asked(self._store.now_ms(), action.add)
            self._memory = replace(before, asked=(*before.asked, asked))
            self._store.controllers.remember(TERM, self._memory.document())
            kind: Kind = "replaced" if action.replaces else "scale-up"
            self._record(kind, why=action.why, add=action.add, target=action.target)
        try:
            self._calls.make(
                f"adding {amount(action.add, 'host')}",
                lambda permit: self._provisioner.scale_to(action.target, permit, add=action.add),
            )
        except errors.ProvisionerError as error:
            begun = (Asked(asked.at_ms, error.begun),) if error.begun else ()
            replacing = before.replacing + max(0, action.replaces - error.begun)
            self._memory = replace(before, asked=(*before.asked, *begun), replacing=replacing)
            raise

    # A provider in trouble

    def _degrade(self, error: errors.ProvisionerError, *, removing: str | None = None) -> None:
        """Keep the hosts there are, and leave the provider alone for a while; if it failed at a removal, only these."""
        self.provider_failed = True
        with self._writing("noting that the provider failed"):
            now_ms = self._store.now_ms()
            if removing is None:
                self._memory = self._memory.provider_failed(now_ms)
                failures, wait_ms = self._memory.provider_failures, self._memory.provider_retry_ms - now_ms
                self._tick_within(wait_ms)
                why = f"the provider failed ({error.code}), asked again in {wait_ms // 1000} s: {error}"
                self._store.controllers.keep(TERM, self._memory.document(), {"reasons": [why]})
            else:
                self._memory = self._memory.removal_failed(now_ms)
                failures, wait_ms = self._memory.removal_failures, self._memory.removal_retry_ms - now_ms
                self._store.controllers.remember(TERM, self._memory.document())
            said = {"code": error.code, "error": str(error), "failures": failures}
            self._store.events.record("provider-degraded", instance=removing, detail=said)
        self._say_degraded(failures, wait_ms, instance=removing, code=error.code, error=str(error))

    def _say_degraded(self, failures: int, wait_ms: int, **why: Any) -> None:
        self._has_said_degraded = True
        self._say("degraded", failures=failures, retry_in_ms=wait_ms, **why)

    def _tick_within(self, left_ms: int) -> None:
        """Let the next tick come no later than when the provider is to be asked again."""
        self._next_tick = self._clock.now().later(min(self._tick_every_s, left_ms / 1000))

    def _recover(self) -> None:
        well = self._memory.well()
        if well == self._memory:
            return
        self._memory, self._has_said_degraded = well, False
        with self._writing("noting that the provider is well"):
            self._store.controllers.remember(TERM, self._memory.document())
            self._store.events.record("provider-recovered")
        self._say("recovered")

    # Writing

    @property
    def _stale_ms(self) -> int:
        return round(self._store.settings.stale_after_s * 1000)

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        with self._store.deadline(self._store.settings.statement_timeout_s):
            yield

    @contextmanager
    def _writing(self, doing: str) -> Iterator[None]:
        """Write what is inside only while no other controller leads."""
        with self._in_time(), self._store.transaction("fleet"):
            self._term.hold(doing)
            yield

    def _record(self, kind: Kind, instance: str | None = None, *, host: str | None = None, **detail: Any) -> None:
        self._store.events.record(kind, host=host, instance=instance, detail={**detail, "asked_by": ASKED_BY})
        self._say(kind, host=host, instance=instance, **detail)

    def _say(self, event: str, **fields: Any) -> None:
        self._lines.say(event, **fields)
