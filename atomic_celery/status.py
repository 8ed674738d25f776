"""The fleet at one moment: what every host does, how full every queue is, and whether the database is well.

`read` never waits on a database in trouble: it raises `trouble.StoreTrouble`, which says what is wrong and what to try.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, get_args

from atomic_celery import history, tables, trouble
from atomic_celery.fleet import scaling, standing
from atomic_celery.fleet.policy import Policy
from atomic_celery.store.reads import COUNT_BOUND

if TYPE_CHECKING:
    from atomic_celery.fleet.standing import ControllerStatus
    from atomic_celery.store.hosts import Drain, Host
    from atomic_celery.store.reads import Depth, MessageView
    from atomic_celery.store.roots import RootsInUse
    from atomic_celery.store.store import Store

State = Literal["busy", "idle", "draining", "degraded", "stale"]
STATES: tuple[State, ...] = get_args(State)
SERVING: frozenset[State] = frozenset({"busy", "idle", "degraded"})
"""States in which a host takes what it can."""

_ID_SHOWN = 8
_TONES: Mapping[State, tables.Tone] = {
    "busy": "good",
    "idle": "good",
    "draining": "notice",
    "degraded": "bad",
    "stale": "bad",
}


@dataclass(frozen=True, slots=True)
class HostStatus:
    """A registered host, as of its last report."""

    id: str
    name: str
    provider_id: str | None
    state: State
    slots: int
    busy: int
    reported_ago_ms: int
    up_ms: int
    labels: Mapping[str, str]
    queues: Sequence[str]
    versions: Mapping[str, str]
    poll_failures: int
    last_error: str | None
    drain: DrainStatus | None


@dataclass(frozen=True, slots=True)
class DrainStatus:
    """A drain: its instance takes no more."""

    instance: str
    reason: str
    asked_by: str
    asked_ago_ms: int


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue, and how many live hosts that take more consume it."""

    name: str
    temporary: bool
    ready: int
    oldest_ready_ms: int | None
    """How long the first ready message has been waiting."""
    limited: int
    """Those that wait for a limit or a root to let them through."""
    delayed: int
    running: int
    lapsed: int
    dead: int
    hosts: int
    at_least: tuple[str, ...]
    """The counts that are only lower bounds: counting stops at `FleetStatus.count_bound`."""


@dataclass(frozen=True, slots=True)
class HourStatus:
    """What the hosts report that they did in the last hour; durations as in `history`, None: nothing to measure."""

    ended: int
    failed: int
    ran_p50_ms: float | None
    ran_p95_ms: float | None
    waited_p50_ms: float | None
    """How long half of what began had been ready at most."""
    waited_p95_ms: float | None


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """Everything at one moment; durations end at *at_ms*, the database's clock."""

    at_ms: int
    store: str
    prefix: str
    schema_version: int | None
    count_bound: int
    hosts: tuple[HostStatus, ...]
    queues: tuple[QueueStatus, ...]
    drains: tuple[DrainStatus, ...]
    """Every drain, also those whose instance has no host now."""
    scaling: Mapping[str, int | bool] = field(default_factory=dict)
    """The scaling signal, in the words that autoscalers read; `read` adds it."""
    last_hour: HourStatus | None = None
    """`read` adds it, too."""
    roots: RootsInUse | None = None
    """And these."""
    controller: ControllerStatus | None = None
    """And this; None: none has led yet."""


def read(store: Store) -> FleetStatus:
    """Read everything and try one write.

    Raises:
        StoreTrouble: The database is in trouble; said within about `trouble.READ_LIMIT_S`.
        SchemaMismatch: There is nothing to read, or it is another release's.
    """
    with trouble.bounded(store):
        store.schema.require()
        now_ms = store.now_ms()
        hosts, drains, depths = store.hosts.list(), store.hosts.drains(), store.reads.depths()
        version = store.schema.version()
        signal = scaling.read(store, Policy.of(store.settings))
        done, roots = history.read(store, history.PERIODS["1h"]), store.roots.in_use()
        controller = standing.read(store)
    trouble.probe_write(store)
    seen = compose(now_ms, hosts, drains, depths, store=store, version=version)
    return replace(seen, scaling=signal.document(), last_hour=_hour(done), roots=roots, controller=controller)


def compose(
    now_ms: int,
    hosts: Sequence[Host],
    drains: Sequence[Drain],
    depths: Sequence[Depth],
    *,
    store: Store,
    version: int | None,
) -> FleetStatus:
    """Put together what was read; asks *store* nothing but its name and settings."""
    asked = {
        drain.instance: DrainStatus(drain.instance, drain.reason, drain.asked_by, now_ms - drain.asked_ms)
        for drain in drains
    }
    seen = tuple(_host(host, now_ms, asked, store.settings.stale_after_s) for host in hosts)
    return FleetStatus(
        at_ms=now_ms,
        store=str(store.url),
        prefix=store.settings.prefix,
        schema_version=version,
        count_bound=COUNT_BOUND,
        hosts=seen,
        queues=tuple(_queue(depth, now_ms, seen) for depth in depths),
        drains=tuple(asked.values()),
    )


def state_of(*, reported_ago_ms: int, draining: bool, poll_failures: int, busy: int, stale_after_s: float) -> State:
    """Name a host's state. The first that applies: a silent host's other facts are old."""
    if reported_ago_ms > stale_after_s * 1000:
        return "stale"
    if draining:
        return "draining"
    if poll_failures:
        return "degraded"
    return "busy" if busy else "idle"


def _host(host: Host, now_ms: int, asked: Mapping[str, DrainStatus], stale_after_s: float) -> HostStatus:
    drain = asked.get(host.id) or asked.get(host.provider_id or "")
    reported_ago_ms = now_ms - host.reported_ms
    state = state_of(
        reported_ago_ms=reported_ago_ms,
        draining=drain is not None or host.draining_ms is not None,
        poll_failures=host.poll_failures,
        busy=host.busy,
        stale_after_s=stale_after_s,
    )
    return HostStatus(
        id=host.id,
        name=host.name,
        provider_id=host.provider_id,
        state=state,
        slots=host.slots,
        busy=host.busy,
        reported_ago_ms=reported_ago_ms,
        up_ms=now_ms - host.started_ms,
        labels=host.labels,
        queues=host.queues,
        versions=host.versions,
        poll_failures=host.poll_failures,
        last_error=host.last_error,
        drain=drain,
    )


def _hour(done: history.History) -> HourStatus:
    ran, waited = done.ran.quantiles_ms, done.waited.quantiles_ms
    return HourStatus(
        done.ended_count, done.counts.get("failed", 0), ran["p50"], ran["p95"], waited["p50"], waited["p95"]
    )


def _queue(depth: Depth, now_ms: int, hosts: Sequence[HostStatus]) -> QueueStatus:
    since_ms = depth.ready_since_ms
    return QueueStatus(
        name=depth.name,
        temporary=depth.temporary,
        ready=depth.ready,
        oldest_ready_ms=None if since_ms is None else now_ms - since_ms,
        limited=depth.limited,
        delayed=depth.delayed,
        running=depth.running,
        lapsed=depth.lapsed,
        dead=depth.dead,
        hosts=sum(depth.name in host.queues and host.state in SERVING for host in hosts),
        at_least=depth.at_least,
    )


def shared_names(hosts: Sequence[Host]) -> frozenset[str]:
    """Return the names that several of *hosts* have."""
    return frozenset(name for name, count in Counter(host.name for host in hosts).items() if count > 1)


def where(message: MessageView, now_ms: int, shared: frozenset[str] = frozenset()) -> str:
    """Say who has a message, when it is due, or why it was put aside; nothing of one that is ready.

    Args:
        message: Which one.
        now_ms: The database's time.
        shared: Names that several hosts have: with these the beginning of the id is said.
    """
    if message.lease_until_ms is not None:
        left_ms = message.lease_until_ms - now_ms
        lease = f"lease ends in {tables.span(left_ms)}" if left_ms > 0 else f"lease ended {tables.span(-left_ms)} ago"
        which = f" ({(message.holder or '')[:_ID_SHOWN]})" if message.host in shared else ""
        return f"held by {message.host or message.holder}{which}, {lease}"
    if message.due_ms is not None:
        return f"due in {tables.span(message.due_ms - now_ms)}"
    return message.reason or ""


def text(status: FleetStatus, paint: tables.Paint = tables.plain) -> list[str]:
    """Say *status* in lines for people: the fleet, then each host, then each queue."""
    lines = [*_summary(status, paint)]
    for block in (hosts_text(status.hosts, paint), queues_text(status.queues, paint), _waiting_drains(status, paint)):
        lines += ["", *block] if block else []
    return lines


def hosts_text(hosts: Sequence[HostStatus], paint: tables.Paint = tables.plain) -> list[str]:
    """Say each host in a line of a table."""
    head = ("STATE", "HOST", "ID", "INSTANCE", "BUSY", "SLOTS", "REPORTED", "LABELS", "QUEUES", "NOTE")
    return tables.table(head, map(_host_row, hosts), paint)


def queues_text(
    queues: Sequence[QueueStatus], paint: tables.Paint = tables.plain, *, temporary: bool = False
) -> list[str]:
    """Say each queue in a line of a table; without the *temporary* ones: mailboxes and reply queues."""
    head = ("QUEUE", "READY", "OLDEST", "LIMITED", "DELAYED", "RUNNING", "DEAD", "HOSTS")
    return tables.table(head, (_queue_row(queue) for queue in queues if temporary or not queue.temporary), paint)


def _summary(status: FleetStatus, paint: tables.Paint) -> Iterator[str]:
    states = Counter(host.state for host in status.hosts)
    told = ", ".join(f"{n} {paint(state, _TONES[state])}" for state, n in sorted(states.items()))
    free = sum(host.slots - host.busy for host in status.hosts if host.state in SERVING)
    busy = sum(host.busy for host in status.hosts if host.state != "stale")
    yield f"{paint('store', 'faint')}     {status.store}  prefix {status.prefix}, schema {status.schema_version}"
    yield f"{paint('hosts', 'faint')}     {len(status.hosts)}" + (f": {told}" if told else "")
    yield f"{paint('slots', 'faint')}     {busy} busy, {max(0, free)} free"
    yield f"{paint('wanted', 'faint')}    {_wanted(status)}"
    if status.controller is not None:
        yield f"{paint('control', 'faint')}   {_controller(status.controller, paint)}"
    if (roots := status.roots) is not None:
        running, paused = (tables.count(count, exact=roots.exact) for count in (roots.running, roots.paused))
        yield f"{paint('roots', 'faint')}     {running} running, {paused} paused"
    oldest_ms = max((queue.oldest_ready_ms or 0 for queue in status.queues if queue.ready), default=None)
    yield f"{paint('messages', 'faint')}  " + ", ".join(
        (
            f"{_total(status, 'ready')} ready" + (f" (oldest {tables.span(oldest_ms)})" if oldest_ms else ""),
            f"{_total(status, 'limited')} limited",
            f"{_total(status, 'delayed')} delayed",
            f"{_total(status, 'running')} running",
            f"{_total(status, 'dead')} dead",
        )
    )
    if (hour := status.last_hour) is not None:
        yield f"{paint('last hour', 'faint')} " + ", ".join(
            (
                f"{hour.ended} ended" + (f" ({hour.failed} failed)" if hour.failed else ""),
                f"half ran {tables.span(hour.ran_p50_ms)} (95 % {tables.span(hour.ran_p95_ms)})",
                f"half waited {tables.span(hour.waited_p50_ms)} (95 % {tables.span(hour.waited_p95_ms)})",
            )
        )


def _wanted(status: FleetStatus) -> str:
    """Say how many hosts the work wants: by the policy of whoever leads, if that has planned lately."""
    signal, by, seen = status.scaling, "by the policy of this command's settings", status.controller
    if seen is not None and seen.holder and seen.scaling and not seen.is_late:
        signal, by = seen.scaling, "as the controller has planned"
    return f"{tables.amount(int(signal['desiredHosts']), 'host')} (demand {signal['demand']}, {by})"


def _controller(seen: ControllerStatus, paint: tables.Paint) -> str:
    """Say who adds and removes hosts, and what was decided last."""
    nobody = paint("nobody leads, no host is added or removed", "notice")
    said = [f"{tables.printable(seen.holder)} leads" if seen.holder else nobody]
    if failures := seen.provider_failures:
        again = f"in {tables.span(seen.provider_retry_in_ms)}" if seen.provider_retry_in_ms else "now"
        times = f"{failures} time{'s' * (failures > 1)}"
        said.append(paint(f"its provider has failed {times}, asked again {again}", "bad"))
    if seen.planned_ago_ms is not None:
        when = paint(f"{tables.span(seen.planned_ago_ms)} ago", "bad" if seen.is_late else "")
        said.append(f"{when}: {tables.printable(', '.join(seen.reasons))}")
    return "; ".join(said)


def _total(status: FleetStatus, name: str) -> str:
    queues = [queue for queue in status.queues if not queue.temporary]
    exact = not any(name in queue.at_least for queue in queues)
    return tables.count(sum(getattr(queue, name) for queue in queues), exact=exact)


def _host_row(host: HostStatus) -> list[tables.Cell | str]:
    return [
        tables.Cell(host.state, _TONES[host.state]),
        host.name,
        host.id,
        host.provider_id or "",
        tables.number(host.busy),
        tables.number(host.slots),
        f"{tables.span(host.reported_ago_ms)} ago",
        ",".join(f"{key}={value}" for key, value in sorted(host.labels.items())),
        ",".join(host.queues),
        tables.Cell(_note(host), "notice"),
    ]


def _note(host: HostStatus) -> str:
    notes = []
    if host.drain is not None:
        notes.append(f"drain asked by {host.drain.asked_by} {tables.span(host.drain.asked_ago_ms)} ago")
        notes += [host.drain.reason] if host.drain.reason else []
    if host.poll_failures:
        notes.append(f"{host.poll_failures} polls failed: {host.last_error}")
    return "; ".join(notes)


def _queue_row(queue: QueueStatus) -> list[tables.Cell | str]:
    def counted(name: str, tone: tables.Tone = "") -> tables.Cell:
        value: int = getattr(queue, name)
        shown = tables.count(value, exact=name not in queue.at_least)
        return tables.Cell(shown, tone if value else "", right=True)

    unserved = queue.ready > 0 and queue.hosts == 0
    return [
        queue.name,
        counted("ready"),
        tables.Cell(tables.span(queue.oldest_ready_ms), right=True),
        counted("limited"),
        counted("delayed"),
        counted("running"),
        counted("dead", "bad"),
        tables.Cell(str(queue.hosts), "bad" if unserved else "", right=True),
    ]


def _waiting_drains(status: FleetStatus, paint: tables.Paint) -> list[str]:
    here = {host.drain.instance for host in status.hosts if host.drain is not None}
    rows = [
        (drain.instance, drain.asked_by, f"{tables.span(drain.asked_ago_ms)} ago", drain.reason)
        for drain in status.drains
        if drain.instance not in here
    ]
    return tables.table(("DRAINED, NO HOST NOW", "ASKED BY", "ASKED", "REASON"), rows, paint)
