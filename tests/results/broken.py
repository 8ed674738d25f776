"""An error that worker and caller both know."""

from __future__ import annotations


class Broken(Exception):
    """An error of the project's own, with two arguments."""

    def __init__(self, what: str, why: int) -> None:
        super().__init__(what, why)
