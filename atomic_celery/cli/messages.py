"""``atomic messages …``: where a task is, and the verbs that move it."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from typing import Any, get_args

import click

from atomic_celery import operations, payload, status, tables, trouble
from atomic_celery.cli.group import EXIT_FAILED, Group
from atomic_celery.cli.session import Command, Session, command
from atomic_celery.store.reads import Filter, MessageView, State

_PAGE = 1000
_SEARCH_LIMIT_S = 9.0  # below statement_timeout, or the database would speak first
_NARROW = "a search reads every message: narrow it with --state; if celery atomic status hangs too, it is the database"
_TONES: dict[str, tables.Tone] = {
    "ready": "",
    "limited": "notice",
    "delayed": "faint",
    "running": "good",
    "dead": "bad",
}
_FILTERS = (
    click.option("--queue", metavar="NAME", help="Only messages of this queue."),
    click.option("--state", type=click.Choice(get_args(State)), help="Only messages in this state."),
    click.option("--task", metavar="NAME", help="Only messages of this task, by its whole name."),
    click.option("--root", metavar="ID", help="Only messages of this workflow, by its root's task id."),
    click.option("--text", metavar="TEXT", help="Only messages that contain this, in any case."),
)


def _filtered(function: Command) -> Command:
    """Take the filters' options as one `Filter`."""

    @functools.wraps(function)
    def with_filter(*positional: Any, **options: Any) -> Any:
        names = ("queue", "state", "task", "root", "text")
        return function(*positional, which=Filter(**{name: options.pop(name) for name in names}), **options)

    for option in reversed(_FILTERS):
        with_filter = option(with_filter)
    return with_filter  # type: ignore[return-value]


@click.group(cls=Group)
def messages() -> None:
    """Look at messages, and move them by hand."""


@messages.command("list")
@_filtered
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="At most so many.")
@click.option("--before", type=int, metavar="ID", help="Only older ones than this message, to go on with a list.")
@command
def list_(session: Session, which: Filter, limit: int, before: int | None) -> None:
    """List unfinished messages, the newest first."""
    with _searching(session, which):
        now_ms = session.store.now_ms()
        seen = session.store.reads.messages(which, before=before, limit=limit)
        shared = status.shared_names(session.store.hosts.list())
    if session.output.as_json:
        session.output.document(seen)
        return
    head = ("STATE", "ID", "TASK ID", "TASK", "QUEUE", "PRI", "FENCE", "CRASHES", "AGE", "NOTE")
    session.output.table(head, (_row(message, now_ms, shared) for message in seen))


@messages.command()
@click.argument("names", nargs=-1, required=True, metavar="ID...")
@command
def show(session: Session, names: Sequence[str]) -> None:
    """Show messages by id or task id: what they call, who holds them, how often that died.

    Arguments are shown as reprs; values under names that sound secret, or that
    atomic_mask names, are masked, and passwords in URLs. Other positional values are not.
    """
    missing: list[str] = []
    ids = _ids(session, names, missing)
    with trouble.bounded(session.store):
        found = {message_id: _shown(session, message_id) for message_id in ids}
    missing += [str(message_id) for message_id, shown in found.items() if shown is None]
    there = [shown for shown in found.values() if shown is not None]
    if session.output.as_json:
        session.output.document(there)
    else:
        _print_all(session, there)
    _end(names, missing)


@messages.command()
@click.argument("names", nargs=-1, metavar="[ID...]")
@_filtered
@click.option("--limit", type=click.IntRange(min=1), help="At most so many.")
@command
def requeue(session: Session, names: Sequence[str], which: Filter, limit: int | None) -> None:
    """Make messages ready again: dead ones, delayed ones, and running ones, whose holder then loses its lease.

    Name them by id or task id, or choose them by at least one filter.
    """
    _act(session, names, which, limit, operations.requeue)


@messages.command()
@click.argument("names", nargs=-1, metavar="[ID...]")
@_filtered
@click.option("--limit", type=click.IntRange(min=1), help="At most so many.")
@click.option("--reason", default="buried by an operator", show_default=True, help="Why; kept with the message.")
@command
def bury(session: Session, names: Sequence[str], which: Filter, limit: int | None, reason: str) -> None:
    """Put messages aside until they are requeued or deleted.

    Name them by id or task id, or choose them by at least one filter.
    """
    _act(session, names, which, limit, functools.partial(operations.bury, reason=reason))


@messages.command()
@click.argument("names", nargs=-1, metavar="[ID...]")
@_filtered
@click.option("--limit", type=click.IntRange(min=1), help="At most so many.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@command
def delete(session: Session, names: Sequence[str], which: Filter, limit: int | None, yes: bool) -> None:
    """Remove messages for good; they never run.

    Name them by id or task id, or choose them by at least one filter, which asks first.
    """
    if not names and not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("deleting by filter asks first; say --yes where nobody can answer")
        click.confirm("Delete every message that the filters choose?", abort=True, err=True)
    _act(session, names, which, limit, operations.delete)


def _searching(session: Session, which: Filter) -> AbstractContextManager[None]:
    """Allow a search that may have to read every message more time than a look."""
    if which.text is None and which.task is None and which.root is None:
        return trouble.bounded(session.store)
    return trouble.bounded(session.store, _SEARCH_LIMIT_S, hint=_NARROW)


def _act(
    session: Session, names: Sequence[str], which: Filter, limit: int | None, verb: Callable[..., operations.Done]
) -> None:
    if bool(names) == (which != Filter()):
        raise click.UsageError("name messages by id or task id, or choose them by at least one filter; not both")
    missing: list[str] = []
    ids = _ids(session, names, missing) if names else _chosen(session, which, limit)
    done = operations.Done("", (), ())
    for start in range(0, len(ids), operations.BATCH):
        with trouble.bounded(session.store):
            part = verb(session.store, ids[start : start + operations.BATCH], asked_by=operations.asker())
        done = operations.Done(part.verb, done.ids + part.ids, done.skipped + part.skipped)
    _say(session, done)
    _end(names, missing, done.skipped)


def _chosen(session: Session, which: Filter, limit: int | None) -> list[int]:
    """Return the ids that *which* chooses, at most the newest *limit*, the oldest first."""
    found: list[int] = []
    while limit is None or len(found) < limit:
        page_size = _PAGE if limit is None else min(_PAGE, limit - len(found))
        with _searching(session, which):
            page = session.store.reads.messages(which, before=found[-1] if found else None, limit=page_size)
        if not page:
            break
        found += [message.id for message in page]
    return found[::-1]


def _ids(session: Session, names: Sequence[str], missing: list[str]) -> list[int]:
    """Turn ids and task ids into ids; task ids that no unfinished message has go to *missing*."""
    found: dict[int, None] = {}
    with trouble.bounded(session.store):
        for name in names:
            ids = [int(name)] if name.isascii() and name.isdigit() else session.store.reads.ids_of_task(name)
            found |= dict.fromkeys(ids)
            missing += [] if ids else [name]
    return list(found)


def _end(names: Sequence[str], missing: Sequence[str], skipped: Sequence[int] = ()) -> None:
    """End with exit code 1 if something that was named could not be served."""
    for name in missing:
        click.echo(f"no unfinished message {name}: it has ended, was deleted, or was never published", err=True)
    if missing or (names and skipped):
        click.get_current_context().exit(EXIT_FAILED)


def _say(session: Session, done: operations.Done) -> None:
    if session.output.as_json:
        session.output.document(done)
        return
    session.output.line(f"{len(done.ids)} {done.verb}" if done.verb else "nothing chosen")
    if done.skipped:
        ids = " ".join(map(str, done.skipped[:20])) + (" …" if len(done.skipped) > 20 else "")
        session.output.line(f"{len(done.skipped)} left alone, ended or so already: {ids}", "notice")


def _row(message: MessageView, now_ms: int, shared: frozenset[str]) -> list[tables.Cell | str]:
    return [
        tables.Cell(message.state, _TONES[message.state]),
        tables.Cell(str(message.id), right=True),
        message.task_id or "",
        message.task_name or "",
        message.queue,
        tables.Cell(str(message.priority), right=True),
        tables.Cell(str(message.fence), right=True),
        tables.Cell(str(message.crashes), "notice" if message.crashes else "", right=True),
        tables.Cell(tables.span(now_ms - message.published_ms), right=True),
        status.where(message, now_ms, shared),
    ]


def _shown(session: Session, message_id: int) -> dict[str, Any] | None:
    """Everything about a message; None if it has ended."""
    reads = session.store.reads
    message, text = reads.message(message_id), reads.payload(message_id)
    if message is None or text is None:
        return None
    return {
        "message": message,
        "call": payload.read(text, session.settings.mask),
        "crash_history": reads.crashes(message_id),
        "note": status.where(message, session.store.now_ms(), status.shared_names(session.store.hosts.list())),
    }


def _print_all(session: Session, there: Sequence[dict[str, Any]]) -> None:
    for at, shown in enumerate(there):
        if at:
            session.output.line()
        _print_facts(session, shown)


def _print_facts(session: Session, shown: dict[str, Any]) -> None:
    message, call = shown["message"], shown["call"]
    facts = {**dataclasses.asdict(message), **dataclasses.asdict(call)}
    for name, value in facts.items():
        if value is not None:
            session.output.line(f"{session.output.paint(f'{_said(name):<12}', 'faint')}  {_fact(name, value)}")
    if shown["note"]:
        session.output.line(f"{session.output.paint('now'.ljust(12), 'faint')}  {tables.printable(shown['note'])}")
    if shown["crash_history"]:
        rows = [(str(c.fence), c.holder, _moment(c.at_ms), c.reason) for c in shown["crash_history"]]
        session.output.table(("CRASHED AT FENCE", "HOLDER", "WHEN", "REASON"), rows)


def _said(name: str) -> str:
    return name.removesuffix("_ms").replace("_", " ")


def _fact(name: str, value: object) -> str:
    return _moment(value) if name.endswith("_ms") and isinstance(value, int) else tables.printable(str(value))


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, timezone.utc).isoformat(sep=" ", timespec="milliseconds")
