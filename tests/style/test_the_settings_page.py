"""The page on settings lists each of them, once, with the default it really has."""

from __future__ import annotations

import dataclasses
import re

from atomic_celery.config import Settings
from tests.style.sources import ROOT

ROW = re.compile(r"^\| `atomic_(?P<key>\w+)` \| (?P<default>[^|]+) \|", re.MULTILINE)
# What a worker works out by itself when nothing is set.
WORKED_OUT = {"slots": "half the CPUs, from 1 to 16", "state_dir": "~/.local/state/atomic_celery"}


def test_the_page_lists_every_setting_with_its_default() -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    listed = [(row["key"], row["default"].replace("`", "")) for row in ROW.finditer(page)]

    assert sorted(listed) == sorted(
        (field.name.removesuffix("_s"), _in_words(field.name, getattr(Settings(), field.name)))
        for field in dataclasses.fields(Settings)
    )


def _in_words(name: str, value: object) -> str:
    if value is None or value in ({}, ()):
        return WORKED_OUT.get(name, "none")
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.0f}" if isinstance(value, float) else str(value)
