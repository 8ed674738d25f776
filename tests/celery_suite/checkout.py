"""Celery's own integration tests, from a checkout of Celery that the environment names."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

VARIABLE = "ATOMIC_CELERY_CHECKOUT"
TESTS = Path("t", "integration")
FILES = ("test_tasks.py", "test_inspect.py", "test_canvas.py")


class NoCheckout(Exception):
    """The environment names no checkout of Celery with its tests in it."""


def checkout() -> Path:
    """Return the directory that the environment names.

    Raises:
        NoCheckout: it names none, or one without the tests.
    """
    directory = Path(os.environ.get(VARIABLE, ""))
    if not os.environ.get(VARIABLE) or not (directory / TESTS).is_dir():
        raise NoCheckout(f"set {VARIABLE} to a checkout of Celery: {TESTS} is run from there")
    return directory


def borrow(directory: Path) -> None:
    """Lay the tests out in *directory*: beside them in the checkout is a Celery that would hide the installed one."""
    there = checkout()
    shutil.copytree(there / TESTS, directory / TESTS)
    for name in ("t/__init__.py", "pyproject.toml"):
        shutil.copy(there / name, directory / name)
