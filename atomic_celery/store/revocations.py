"""Task ids that must not run any more."""

from __future__ import annotations

from collections.abc import Iterable

from atomic_celery.store.database import Noun

Stamp = tuple[str, str]
"""A stamped header's name, and one of its values."""

_STAMPED = "stamp:"


class Revocations(Noun):
    """Remembers revoked task ids, and stamps of tasks, over restarts, each for a while."""

    noun = "revocations"

    def add(self, task_ids: Iterable[str], keep_ms: int) -> None:
        """Let no message with one of *task_ids* run for the next *keep_ms*.

        Atomicity: one statement; joins the caller's transaction if one is open.
        """
        if asked := sorted(set(task_ids)):
            self._exec("add", task_ids=asked, keep_ms=keep_ms)

    def contains(self, task_ids: Iterable[str]) -> set[str]:
        """Return those of *task_ids* that are revoked; may be empty."""
        asked = sorted(set(task_ids))
        return {row[0] for row in self._many("contains", task_ids=asked)} if asked else set()

    def revoke_stamps(self, stamps: Iterable[Stamp], keep_ms: int) -> None:
        """Let no message with one of these stamps run for the next *keep_ms*; workers ask for them when they start.

        Atomicity: one statement; joins the caller's transaction if one is open.
        """
        self.add((f"{_STAMPED}{header}={value}" for header, value in stamps), keep_ms)

    def stamps(self) -> set[Stamp]:
        """Return every stamp that is revoked."""
        rows = self._many("starting_with", prefix=_STAMPED)
        texts = (str(row[0]).removeprefix(_STAMPED).partition("=") for row in rows)
        return {(header, value) for header, _, value in texts}
