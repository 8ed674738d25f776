"""What an operator may do on a page: who may, whether it is asked twice, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.utils.text import capfirst

from atomic_celery.store.store import Store
from django_admin.apps import LABEL

MOST_SAID = 10


@dataclass(frozen=True, slots=True)
class Asked:
    """What an operator asks for."""

    targets: tuple[str, ...]
    by: str
    answers: Mapping[str, str]
    """What was written into the action's fields."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of it."""

    done: tuple[str, ...]
    verb: str
    """What was done to them: requeued, drained."""
    left: tuple[str, ...] = ()
    because: str = ""
    """Why the others were left alone."""


@dataclass(frozen=True, slots=True)
class Field:
    """Something an operator may write down beside."""

    name: str
    label: str
    default: str = ""
    kind: str = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A verb of `atomic_celery.operations` as a page offers it."""

    name: str
    label: str
    permission: str
    """Its own; ``operate_…`` of the same model includes it."""
    run: Callable[[Store, Asked], Outcome]
    warning: str = ""
    """What is said before it is done; empty: it is done at once."""
    fields: tuple[Field, ...] = ()
    destroys: bool = False
    prefill: Callable[[Store, str], Mapping[str, object]] | None = None
    """What stands in the fields when there is one target; None: their defaults."""

    @property
    def asks(self) -> bool:
        """Whether there is a page between the click and the deed."""
        return bool(self.warning or self.fields)

    def allowed(self, request: HttpRequest) -> bool:
        """Whether this user may."""
        user: Any = request.user
        operate = f"{LABEL}.operate_{self.permission.rpartition('_')[2]}"
        return bool(user.has_perm(f"{LABEL}.{self.permission}") or user.has_perm(operate))


def sentence(outcome: Outcome, noun: str) -> str:
    """Say what was done."""
    return f"{capfirst(outcome.verb)} {_number(outcome.done, noun)}: {names(outcome.done)}."


def remainder(outcome: Outcome, noun: str) -> str:
    """Say what was not done, and why."""
    return f"Not done for {_number(outcome.left, noun)}: {names(outcome.left)}. {capfirst(outcome.because)}."


def names(targets: Sequence[str]) -> str:
    """List the first of them."""
    more = len(targets) - MOST_SAID
    return ", ".join(targets[:MOST_SAID]) + (f" and {more} more" if more > 0 else "")


def outcome_of(results: Iterable[tuple[str, bool]], verb: str, because: str) -> Outcome:
    """Sort targets into those that were reached and the others."""
    reached = dict(results)
    return Outcome(
        done=tuple(target for target, ok in reached.items() if ok),
        verb=verb,
        left=tuple(target for target, ok in reached.items() if not ok),
        because=because,
    )


def _number(targets: Sequence[str], noun: str) -> str:
    return f"{len(targets)} {noun}" + ("" if len(targets) == 1 else "s")
