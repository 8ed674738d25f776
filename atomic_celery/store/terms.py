"""Terms: who leads, one holder a name, under a fence that grows with every term."""

from __future__ import annotations

from dataclasses import dataclass

from atomic_celery.store.database import Noun


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a term."""

    holder: str
    fence: int
    left_ms: int
    """How much longer it lasts unless it is renewed; below 0 since it is over."""
    free: bool
    """Whether anybody may begin the next one."""


@dataclass(frozen=True, slots=True)
class TermView:
    """A term, the last one of its name."""

    name: str
    holder: str
    fence: int
    begun_ms: int
    renewed_ms: int
    left_ms: int
    """How much longer it lasts unless it is renewed; not above 0 once it is over."""


_Terms = list[TermView]  # inside the class, list is a verb


class Terms(Noun):
    """The verbs of a leader's lease."""

    noun = "terms"

    def look(self, name: str) -> Standing | None:
        """Say who leads; None when nobody ever did."""
        row = self._one("look", name=name)
        return None if row is None else Standing(row[0], row[1], row[2], bool(row[3]))

    def list(self) -> _Terms:
        """Return the last term of every name that anybody ever led under, by name."""
        return [TermView(*row) for row in self._many("list")]

    def begin(self, name: str, holder: str, lease_ms: int) -> int | None:
        """Begin a term and return its fence; None while another one lasts.

        Atomicity: one statement.
        """
        row = self._one("begin", name=name, holder=holder, lease_ms=lease_ms)
        return None if row is None else int(row[0])

    def renew(self, name: str, fence: int, lease_ms: int) -> bool:
        """Let a term last for *lease_ms* from now; False: it is over.

        Atomicity: one statement.
        """
        return self._exec("renew", name=name, fence=fence, lease_ms=lease_ms) == 1

    def hold(self, name: str, fence: int) -> bool:
        """Keep the next term from beginning until the caller's transaction ends; False: this one is over.

        Atomicity: joins the caller's transaction, without which it would mean nothing.
        """
        return self._one("hold", name=name, fence=fence) is not None

    def hand_over(self, name: str, fence: int) -> None:
        """End a term, so that anybody may begin the next; one that is over already stays so.

        Atomicity: one statement.
        """
        self._exec("hand_over", name=name, fence=fence)
