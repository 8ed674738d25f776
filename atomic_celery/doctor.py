"""Everything that is wrong with a fleet's shared store, all at once, each with how to mend it.

Changes nothing but the one probing write of `trouble.probe_write`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from atomic_celery import clock, connections, errors, setup_check, status, tables, trouble
from atomic_celery.config import Settings
from atomic_celery.store import open_store
from atomic_celery.store.store import Store

Level = Literal["error", "warning"]

_OLD_SNAPSHOT_MS = 60_000
_OVERDUE_MS = 60_000
_MANY_DEAD_ROWS = 50_000
_CLOCK_TOLERANCE_MS = 1000
_NEARLY_FULL = 0.9


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong, and what to do about it. A warning does not stop work now."""

    level: Level
    what: str
    mend: str


@dataclass(slots=True)
class Checkup:
    """What an examination found."""

    settings: Mapping[str, Any]
    """The effective settings by their names in a Celery configuration; none of them is a secret."""
    facts: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong that stops work."""
        return all(finding.level != "error" for finding in self.findings)


def examine(url: str, settings: Settings) -> Checkup:
    """Examine the set-up of this machine, then the database. Never raises for what it looks for."""
    values = dataclasses.asdict(settings).items()
    checkup = Checkup(settings={f"atomic_{name.removesuffix('_s')}": value for name, value in values})
    setup = setup_check.examine(url, settings, create=False)
    checkup.findings += [Finding("error", problem.what, problem.fix) for problem in setup.problems]
    checkup.findings += [
        Finding("warning", warning, "other users of this machine could read the credential")
        for warning in setup.warnings
    ]
    if not setup.problems:
        store = open_store(url, settings)
        try:
            _examine_store(store, checkup)
        finally:
            store.close()
    return checkup


def text(checkup: Checkup, paint: tables.Paint = tables.plain) -> list[str]:
    """Say what was found, for people."""
    lines = [paint("settings", "strong")]
    lines += _pairs(
        {name: "not set" if value is None else str(value) for name, value in checkup.settings.items()}, paint
    )
    lines += ["", paint("store", "strong"), *_pairs(checkup.facts, paint)] if checkup.facts else []
    lines += [""]
    for finding in checkup.findings:
        tone: tables.Tone = "bad" if finding.level == "error" else "notice"
        lines += [f"{paint(finding.level, tone)}: {tables.printable(finding.what)}"]
        lines += [f"  mend: {tables.printable(finding.mend)}"]
    return lines if checkup.findings else [*lines, paint("nothing is wrong", "good")]


def _pairs(facts: Mapping[str, str], paint: tables.Paint) -> list[str]:
    width = max(map(len, facts))
    return [f"  {paint(name.ljust(width), 'faint')}  {tables.printable(value)}" for name, value in facts.items()]


def _examine_store(store: Store, checkup: Checkup) -> None:
    checks: list[Callable[[Store, Checkup], Iterator[Finding]]] = [_basics, _clocks, _messages, _fleet]
    checks += [_connections, _snapshots, _dead_rows] if store.dialect == "postgresql" else [_journal]
    for check in checks:
        if not _look(check, store, checkup):
            return


def _look(check: Callable[[Store, Checkup], Iterator[Finding]], store: Store, checkup: Checkup) -> bool:
    """Run one check; False if the store is in trouble, so that the others would only wait."""
    try:
        with trouble.bounded(store):
            checkup.findings += check(store, checkup)
    except trouble.StoreTrouble as found:
        checkup.findings.append(Finding("error", f"{found.headline}: {found.why}", found.hint))
        return False
    except errors.StoreError as error:  # what may not be looked at hides nothing else
        checkup.findings.append(Finding("warning", f"could not look: {error}", "grant the database user the right"))
    return True


def _basics(store: Store, checkup: Checkup) -> Iterator[Finding]:
    checkup.facts["url"] = str(store.url)
    checkup.facts["database"] = f"{store.dialect} {store.reads.version()}"
    checkup.facts["driver"] = store.url.driver
    checkup.facts["schema"] = f"version {store.schema.version()}, this release: {store.schema.target}"
    if plan := store.schema.plan():
        yield Finding(
            "warning",
            f"migrations have not run yet: {', '.join(plan)}",
            "run: celery -A <your project> atomic migrate, once every host runs this release",
        )
    try:
        trouble.probe_write(store)
    except trouble.StoreTrouble as found:
        yield Finding("error", f"{found.headline}: {found.why}", found.hint)


def _clocks(store: Store, checkup: Checkup) -> Iterator[Finding]:
    before_s = clock.wall_s()
    database_ms = store.now_ms()
    after_s = clock.wall_s()
    offset_ms = round(database_ms - (before_s + after_s) / 2 * 1000)
    doubt_ms = round((after_s - before_s) / 2 * 1000) + 1
    checkup.facts["clock offset"] = f"{offset_ms} ms (± {doubt_ms}), the database's minus this machine's"
    if abs(offset_ms) - doubt_ms > _CLOCK_TOLERANCE_MS:
        yield Finding(
            "warning",
            f"this machine's clock and the database's differ by {tables.span(abs(offset_ms))}",
            "synchronise both (chrony, systemd-timesyncd); leases do not depend on it, eta and expires of what "
            "this machine publishes do",
        )


def _messages(store: Store, _checkup: Checkup) -> Iterator[Finding]:
    for message in store.reads.misplaced():
        places = {name: getattr(message, name) for name in ("ready", "limited", "delayed", "running", "dead")}
        found = ", ".join(name for name, times in places.items() if times) or "no state at all"
        yield Finding(
            "error",
            f"message {message.message_id} is in {found}: a message is in exactly one state (invariant I1)",
            "somebody changed the tables by hand, or this is a bug worth reporting; "
            f"celery atomic messages delete {message.message_id} removes it",
        )
    overdue = store.reads.overdue(_OVERDUE_MS)
    if overdue.lapsed or overdue.due:
        yield Finding(
            "warning",
            f"{overdue.lapsed} leases and {overdue.due} delays ended more than {tables.span(_OVERDUE_MS)} ago "
            "and nobody has moved their messages on",
            "start a worker: every worker does this for all queues; if some run, see their logs",
        )


def _fleet(store: Store, checkup: Checkup) -> Iterator[Finding]:
    now_ms, depths = store.now_ms(), store.reads.depths()
    hosts = store.hosts.list()
    seen = status.compose(now_ms, hosts, store.hosts.drains(), depths, store=store, version=None)
    checkup.facts["hosts"] = (
        f"{len(hosts)} registered, {sum(host.state in status.SERVING for host in seen.hosts)} serving"
    )
    checkup.facts["waiters"] = f"{sum(depth.waiting for depth in depths)} consumers sleep until a message arrives"
    for host in seen.hosts:
        if host.state == "stale":
            yield Finding(
                "warning",
                f"host {host.name} ({host.id}) has not reported for {tables.span(host.reported_ago_ms)}",
                "see whether its machine lives; what it held runs elsewhere once its leases have run out",
            )
    for queue in seen.queues:
        yield from _queue(queue)


def _queue(queue: status.QueueStatus) -> Iterator[Finding]:
    if queue.ready and not queue.hosts and not queue.temporary:
        yield Finding(
            "warning",
            f"queue {queue.name} has {_count(queue, 'ready')} ready messages and no serving host",
            f"start a worker with -Q {queue.name}, or delete what nobody needs",
        )
    if queue.dead:
        yield Finding(
            "warning",
            f"queue {queue.name} has {_count(queue, 'dead')} dead messages",
            f"see why: celery atomic messages list --state dead --queue {queue.name}; then requeue or delete them",
        )


def _count(queue: status.QueueStatus, name: str) -> str:
    return tables.count(getattr(queue, name), exact=name not in queue.at_least)


def _connections(store: Store, checkup: Checkup) -> Iterator[Finding]:
    room, hosts, settings = store.reads.room(), store.hosts.list(), store.settings
    budget = connections.budget(
        [host.slots for host in hosts], max_hosts=settings.max_hosts, workers_per_host=settings.workers_per_host
    )
    checkup.facts["connections"] = f"{room.used} used of {room.usable}; {len(hosts)} hosts may need {budget.now}"
    checkup.facts["connection budget"] = (
        f"{budget.grown} for {settings.max_hosts} hosts of {settings.workers_per_host} slots "
        f"({connections.PER_HOST} each and one a slot), {budget.beside} for controllers, metrics and beat, "
        f"a fifth to spare: max_connections of {budget.needed + room.reserved} or more"
    )
    if not room.autovacuum:
        yield Finding(
            "error",
            "autovacuum is off on this server: dead rows pile up until claims crawl",
            "set autovacuum = on and track_counts = on, and reload the server",
        )
    # Behind a pooler hosts share the server's connections.
    if settings.notify and budget.now > room.usable:
        yield Finding(
            "warning",
            f"{len(hosts)} hosts may need {budget.now} connections ({connections.PER_HOST} each and one a slot), "
            f"and max_connections leaves {room.usable}",
            f"set max_connections to {budget.needed + room.reserved} or more, run fewer slots, or put a pooler in "
            "between and set atomic_notify = False",
        )
    elif room.used > room.usable * _NEARLY_FULL:
        yield Finding(
            "warning",
            f"{room.used} of {room.usable} connections are in use",
            "see who holds them in pg_stat_activity; raise max_connections or use a pooler",
        )
    if not room.sees_all:
        checkup.facts["visibility"] = (
            "other users' sessions are hidden; GRANT pg_read_all_stats would show old snapshots"
        )


def _snapshots(store: Store, _checkup: Checkup) -> Iterator[Finding]:
    for old in store.reads.snapshots(_OLD_SNAPSHOT_MS):
        who = f"{old.kind} {old.name} ({', '.join(filter(None, (old.state, old.application)))})"
        yield Finding(
            "warning",
            f"{who} keeps dead rows from being vacuumed" + (f" for {tables.span(old.age_ms)}" if old.age_ms else ""),
            _ENDINGS[old.kind].format(old.name.replace("'", "''")),
        )


_ENDINGS = {
    "session": "end its transaction, or: SELECT pg_terminate_backend({})",
    "prepared transaction": "COMMIT PREPARED '{0}' or ROLLBACK PREPARED '{0}'",
    "replication slot": "let its consumer catch up, or: SELECT pg_drop_replication_slot('{}')",
}


def _dead_rows(store: Store, _checkup: Checkup) -> Iterator[Finding]:
    for bloat in store.reads.bloat():
        if bloat.autovacuum_off:
            yield Finding(
                "error",
                f"autovacuum is off for {bloat.table}",
                f"run: ALTER TABLE {bloat.table} RESET (autovacuum_enabled)",
            )
        if bloat.dead > max(_MANY_DEAD_ROWS, bloat.live):
            last = f"{tables.span(bloat.vacuumed_ago_ms)} ago" if bloat.vacuumed_ago_ms is not None else "never"
            yield Finding(
                "warning",
                f"{bloat.table} has about {bloat.dead} dead rows beside {bloat.live} live ones; last vacuumed: {last}",
                f"end old snapshots (see above), then: VACUUM {bloat.table}",
            )


def _journal(store: Store, _checkup: Checkup) -> Iterator[Finding]:
    if (mode := store.reads.journal()) != "wal":
        yield Finding(
            "warning",
            f"SQLite keeps its transactions in journal mode {mode}: readers and writers wait for each other",
            "put the file on a local disk that supports shared memory, where WAL mode works",
        )
