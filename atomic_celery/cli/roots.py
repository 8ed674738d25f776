"""``atomic roots``: workflows, as one sees and steers them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import click

from atomic_celery import errors, operations, tables, trouble
from atomic_celery.cli.group import EXIT_FAILED, Group
from atomic_celery.cli.session import Session, command
from atomic_celery.store.roots import COUNT_BOUND, RootState, RootTerms, RootView

_STATES: tuple[RootState, ...] = ("running", "paused", "budget_exceeded", "cancelled")
_TONES: dict[RootState, tables.Tone] = {
    "running": "good",
    "paused": "notice",
    "budget_exceeded": "bad",
    "cancelled": "faint",
}

LONGEST_GRACE_S = 24 * 3600.0


@click.group(cls=Group)
def roots() -> None:
    """Workflows that somebody declared, steered, or published a great many tasks of."""


@roots.command("list")
@click.option("--state", type=click.Choice(_STATES), help="Only in this state.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="At most so many.")
@click.option("--before", metavar="ID", help="Only older ones than this root, to go on with a list.")
@command
def list_(session: Session, state: RootState | None, limit: int, before: str | None) -> None:
    """List roots, the latest first."""
    with trouble.bounded(session.store):
        last = None if before is None else _found(session, before)
        key = None if last is None else (last.created_ms, last.id)
        seen, now_ms = session.store.roots.list(state=state, before=key, limit=limit), session.store.now_ms()
    if session.output.as_json:
        session.output.document(seen)
        return
    head = ("STATE", "ROOT", "RUNNING", "WAITING", "STARTED", "SPENT", "AGE", "LABELS")
    session.output.table(head, (_row(view, now_ms) for view in seen))


@roots.command()
@click.argument("root_id", metavar="ID")
@command
def show(session: Session, root_id: str) -> None:
    """Show one root."""
    with trouble.bounded(session.store):
        view, unfinished = _found(session, root_id), session.store.roots.unfinished(root_id)
    if session.output.as_json:
        session.output.document({**dataclasses.asdict(view), "unfinished": dataclasses.asdict(unfinished)})
        return
    facts = {**dataclasses.asdict(view), "unfinished": unfinished.total, "delayed": unfinished.delayed}
    for name, value in {**facts, "dead": unfinished.dead, "labels": _labels(view)}.items():
        session.output.line(f"{name:<16} {tables.NOTHING if value in (None, '') else value}")


@roots.command()
@click.argument("root_id", metavar="ID")
@command
def pause(session: Session, root_id: str) -> None:
    """Let nothing of a root start; what runs goes on."""
    _steer(session, lambda: operations.pause_root(session.store, root_id, asked_by=operations.asker()), "paused")


@roots.command()
@click.argument("root_id", metavar="ID")
@command
def resume(session: Session, root_id: str) -> None:
    """Let a paused root go on."""
    _steer(session, lambda: operations.resume_root(session.store, root_id, asked_by=operations.asker()), "resumed")


@roots.command()
@click.argument("root_id", metavar="ID")
@click.option(
    "--grace",
    type=click.FloatRange(0, LONGEST_GRACE_S),
    default=30.0,
    show_default=True,
    help="Seconds until what runs is killed.",
)
@command
def cancel(session: Session, root_id: str, grace: float) -> None:
    """End a root for good: what waits is revoked, what runs is killed after the grace."""
    grace_ms, asked_by = round(grace * 1000), operations.asker()
    _steer(
        session,
        lambda: operations.cancel_root(session.store, root_id, grace_ms=grace_ms, asked_by=asked_by),
        "cancelled",
    )


@roots.command("set")
@click.argument("root_id", metavar="ID")
@click.option("--max-running", help="How many run at once; 'none' for any number.")
@click.option("--children", help="How many may start; 'none' for any number.")
@click.option("--cost", help="How much they may cost; 'none' for any amount.")
@click.option("--tokens", help="How many tokens they may use; 'none' for any number.")
@click.option("--duration", help="How many seconds it may run, without pauses; 'none' for any time.")
@click.option("--warn-at-percent", type=click.IntRange(1, 100), help="When a fleet event warns.")
@command
def set_(session: Session, root_id: str, **said: str | int | None) -> None:
    """Change what a root may have; what is not named stays as it is."""
    with trouble.bounded(session.store):
        operations.set_root(session.store, root_id, _changed(session, root_id, said), asked_by=operations.asker())
    if session.output.as_json:
        session.output.document({"root": root_id})
    else:
        session.output.line(f"{root_id}: set", "good")


def _changed(session: Session, root_id: str, said: dict[str, str | int | None]) -> RootTerms:
    view = session.store.roots.get(root_id)
    terms = RootTerms() if view is None else view.terms
    numbers: dict[str, Callable[[str], float]] = {
        "max_running": int,
        "children": int,
        "cost": float,
        "tokens": int,
        "duration": lambda text: round(float(text) * 1000),
    }
    changes: dict[str, float | int | None] = {}
    for name, number in numbers.items():
        text = said[name]
        if text is not None:
            changes["duration_ms" if name == "duration" else name] = _number(name, str(text), number)
    if said["warn_at_percent"] is not None:
        changes["warn_at_percent"] = int(said["warn_at_percent"])
    return dataclasses.replace(terms, **changes)  # type: ignore[arg-type]


def _number(name: str, text: str, number: Callable[[str], float]) -> float | None:
    if text == "none":
        return None
    try:
        return number(text)
    except (ValueError, OverflowError):
        raise errors.ConfigError(f"--{name.replace('_', '-')} is a number or 'none', got {text!r}") from None


def _found(session: Session, root_id: str) -> RootView:
    view = session.store.roots.get(root_id)
    if view is None:
        raise errors.ConfigError(f"no root {root_id!r} was declared or steered")
    return view


def _steer(session: Session, act: Callable[[], operations.RootDone], did: str) -> None:
    with trouble.bounded(session.store):
        done = act()
    if session.output.as_json:
        session.output.document(done)
    elif done.changed:
        session.output.line(f"{done.root}: {did}", "good")
    else:
        session.output.line(f"{done.root}: it was so already, or is cancelled", "notice")
    if not done.changed:
        click.get_current_context().exit(EXIT_FAILED)


def _row(view: RootView, now_ms: int) -> list[tables.Cell | str]:
    of = f"/{view.max_running}" if view.max_running else ""
    children = f"/{view.budget_children}" if view.budget_children else ""
    return [
        tables.Cell(view.state, _TONES[view.state]),
        view.id,
        tables.Cell(f"{view.running}{of}", right=True),
        tables.number(min(view.waiting, COUNT_BOUND), exact=view.waiting <= COUNT_BOUND),
        tables.Cell(f"{view.started}{children}", right=True),
        tables.Cell(_spent(view), right=True),
        f"{tables.span(now_ms - view.created_ms)}",
        _labels(view),
    ]


def _spent(view: RootView) -> str:
    return f"{view.spent_cost:g}" + (f"/{view.budget_cost:g}" if view.budget_cost else "")


def _labels(view: RootView) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(view.labels.items()))
