"""Roots: workflows, how far they have come, and steering each as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import get_args

from django.http import HttpRequest

from atomic_celery import errors, operations
from atomic_celery.store.roots import RootState, RootTerms, RootView
from atomic_celery.store.searches import Relative
from atomic_celery.store.store import Store
from django_admin.actions import Action, Asked, Field, Outcome, outcome_of
from django_admin.events import told
from django_admin.pages import MOST_COUNTED, Context, FleetPage, filters, is_number, pager

PAGE_SIZE = 50
MOST_CHILDREN = 200
_DEEPEST = 8
_MOST = 2**53
_NUMBERS = (
    Field("max_running", "At once, at most", kind="number"),
    Field("children", "Children", kind="number"),
    Field("cost", "Cost"),
    Field("tokens", "Tokens", kind="number"),
    Field("duration_s", "Seconds, pauses not counted"),
)
_CANCELLED = "it was so already, or is cancelled for good"


@dataclass(frozen=True, slots=True)
class Course:
    """How far a root has come, and when it may be done."""

    done: int
    done_at_most: bool
    """Whether fewer may be."""
    all: int
    all_at_least: bool
    """Whether there may be more."""
    eta_ms: int | None


def _pause(store: Store, asked: Asked) -> Outcome:
    turned = [(root, operations.pause_root(store, root, asked_by=asked.by).changed) for root in asked.targets]
    return outcome_of(turned, "paused", _CANCELLED)


def _resume(store: Store, asked: Asked) -> Outcome:
    turned = [(root, operations.resume_root(store, root, asked_by=asked.by).changed) for root in asked.targets]
    return outcome_of(turned, "resumed", _CANCELLED)


def _cancel(store: Store, asked: Asked) -> Outcome:
    grace_ms = round((_number("grace_s", asked.answers) or 0) * 1000)
    turned = [
        (root, operations.cancel_root(store, root, grace_ms=grace_ms, asked_by=asked.by).changed)
        for root in asked.targets
    ]
    return outcome_of(turned, "cancelled", "it was cancelled before")


def _set(store: Store, asked: Asked) -> Outcome:
    terms = _terms(asked.answers)
    for root in asked.targets:
        before = store.roots.get(root)
        warn_at_percent = (RootTerms() if before is None else before.terms).warn_at_percent  # not asked for
        operations.set_root(store, root, replace(terms, warn_at_percent=warn_at_percent), asked_by=asked.by)
    return Outcome(asked.targets, "changed")


class RootPage(FleetPage):
    """Every root that was declared or steered, and one of them."""

    name = "roots"
    one_name = "root"
    noun = "root"
    title = "Roots"
    steers = (
        Action(
            name="pause",
            label="Pause",
            permission="pause_root",
            run=_pause,
            warning="Nothing of them starts until they are resumed. What runs goes on.",
        ),
        Action(name="resume", label="Resume", permission="pause_root", run=_resume),
        Action(
            name="set",
            label="Change limits",
            permission="set_root",
            run=_set,
            warning="They have these limits and no others; an empty one is none. What waits starts if they let it.",
            fields=_NUMBERS,
            prefill=lambda store, root: _prefilled(store.roots.get(root)),
        ),
        Action(
            name="cancel",
            label="Cancel",
            permission="cancel_root",
            run=_cancel,
            warning="For good: what waits is revoked, and what runs is told, and killed after the grace.",
            fields=(Field("grace_s", "Grace, seconds", default="30", kind="number"),),
            destroys=True,
        ),
    )

    def look(self, request: HttpRequest, store: Store) -> Context:
        """Read a page of roots, the latest first; or look for one by its id."""
        wanted = filters(request, ("state", "id"))
        state = wanted.get("state")
        if by_id := wanted.get("id"):
            one = store.roots.get(by_id)
            roots = [] if one is None else [one]
        else:
            known: RootState | None = next((each for each in get_args(RootState) if each == state), None)
            roots = store.roots.list(state=known, before=_before(request), limit=PAGE_SIZE + 1, bound=MOST_COUNTED)
        page, now_ms = roots[:PAGE_SIZE], store.now_ms()
        last = page[-1] if len(roots) > PAGE_SIZE else None
        place = {} if last is None else {"before_ms": last.created_ms, "before": last.id}
        return {
            **pager(wanted, **place),
            "rows": [
                (root, self.address("change", root.id), now_ms - root.created_ms, course(root), spent(root))
                for root in page
            ],
            "is_first": "before" not in request.GET,
            "states": get_args(RootState),
        }

    def look_at(self, request: HttpRequest, store: Store, key: str) -> Context | None:
        """Read everything about one root; one without a row is shown as long as it has messages."""
        root, unfinished = store.roots.get(key), store.roots.unfinished(key, MOST_COUNTED)
        if root is None and not unfinished.total:
            return None
        family = store.searches.family(key, limit=MOST_CHILDREN)
        return {
            "root": root,
            "unfinished": unfinished,
            "course": None if root is None else course(root),
            "spent": [] if root is None else spent(root),
            "age_ms": None if root is None else store.now_ms() - root.created_ms,
            "tree": tree(family),
            "family_is_whole": len(family) < MOST_CHILDREN,
            "rows": told(store, store.events.list(root=key, limit=50)),
        }


def course(root: RootView) -> Course:
    """Say how far a root has come, and when it is done if it goes on like that; not while some wait for their time."""
    done, left = root.finished, root.running + root.waiting + root.delayed
    at_least = not root.exact or max(root.waiting, root.delayed) > MOST_COUNTED
    going = root.state == "running" and done and left and not root.delayed and not at_least
    eta_ms = round(root.ran_ms / done * left) if going else None
    return Course(done, not root.exact, done + left, at_least, eta_ms)


def spent(root: RootView) -> list[tuple[str, float, float]]:
    """List what a root may use up, how much of it is used, and how much there is."""
    budgets = (
        ("children", root.started, root.budget_children),
        ("cost", root.spent_cost, root.budget_cost),
        ("tokens", root.spent_tokens, root.budget_tokens),
        ("seconds", root.ran_ms // 1000, None if root.budget_ms is None else root.budget_ms / 1000),
    )
    return [(what, used, budget) for what, used, budget in budgets if budget is not None]


def tree(family: Iterable[Relative]) -> list[tuple[int, Relative]]:
    """Put each child below the one that sent it, if that is unfinished too, and say how deep; dead ones first."""
    ordered = sorted(family, key=lambda child: (child.state != "dead", child.id))
    known = {child.task_id for child in ordered if child.task_id is not None}
    below: dict[str | None, list[Relative]] = defaultdict(list)
    for child in ordered:
        is_first = child.parent_id not in known or child.parent_id == child.task_id
        below[None if is_first else child.parent_id].append(child)
    found: dict[int, tuple[int, Relative]] = {}
    waiting = [(0, child) for child in reversed([*below[None], *ordered])]
    while waiting:
        depth, child = waiting.pop()
        if child.id not in found:  # whoever names each other for a parent is found in the end, at depth 0
            found[child.id] = (min(depth, _DEEPEST), child)
            waiting += [(depth + 1, each) for each in reversed(below[child.task_id] if child.task_id else [])]
    return list(found.values())


def _before(request: HttpRequest) -> tuple[int, str] | None:
    at_ms, root_id = request.GET.get("before_ms", ""), request.GET.get("before", "").replace("\0", "")
    return (int(at_ms), root_id) if is_number(at_ms) and root_id else None


def _prefilled(root: RootView | None) -> Mapping[str, object]:
    if root is None:
        return {}
    return {
        "max_running": root.max_running,
        "children": root.budget_children,
        "cost": root.budget_cost,
        "tokens": root.budget_tokens,
        "duration_s": None if root.budget_ms is None else root.budget_ms / 1000,
    }


def _terms(answers: Mapping[str, str]) -> RootTerms:
    duration_s = _number("duration_s", answers)
    return RootTerms(
        max_running=_whole("max_running", answers),
        children=_whole("children", answers),
        cost=_number("cost", answers),
        tokens=_whole("tokens", answers),
        duration_ms=None if duration_s is None else round(duration_s * 1000),
    )


def _whole(name: str, answers: Mapping[str, str]) -> int | None:
    number = _number(name, answers)
    if number is not None and number != int(number):
        raise errors.ConfigError(f"{name} is a whole number, got {answers[name]!r}")
    return None if number is None else int(number)


def _number(name: str, answers: Mapping[str, str]) -> float | None:
    text = answers.get(name, "").strip()
    try:
        number = float(text) if text else None
    except ValueError:
        number = float("nan")
    if number is not None and not 0 <= number < _MOST:
        raise errors.ConfigError(f"{name} is a number from 0 on, got {text!r}")
    return number
