"""Where the commands' words go: documents and tables on stdout, troubles on stderr, colour only on a terminal."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from atomic_celery import tables

_STYLES: Mapping[str, Mapping[str, Any]] = {
    "bad": {"fg": "red", "bold": True},
    "faint": {"dim": True},
    "good": {"fg": "green"},
    "notice": {"fg": "yellow"},
    "strong": {"bold": True},
}


class Output:
    """One command's way to its reader, who is a person or, with ``--json``, a program."""

    def __init__(self, *, no_color: bool = False) -> None:
        self.as_json = False
        self._colored = not no_color and not os.environ.get("NO_COLOR") and sys.stdout.isatty()

    def paint(self, text: str, tone: tables.Tone) -> str:
        """Colour *text* if the reader's terminal shows it."""
        if not self._colored or not tone:
            return text
        return click.style(text, **_STYLES[tone])

    def document(self, value: object) -> None:
        """Print *value* as one JSON document."""
        click.echo(json.dumps(value, default=_plain, indent=2))

    def record(self, value: object) -> None:
        """Print *value* as JSON on a line of its own."""
        click.echo(json.dumps(value, default=_plain))

    def line(self, text: str = "", tone: tables.Tone = "") -> None:
        """Print one line for people."""
        click.echo(self.paint(text, tone))

    def lines(self, lines: Iterable[str]) -> None:
        """Print lines that are painted already."""
        for line in lines:
            click.echo(line)

    def table(self, head: Sequence[str], rows: Iterable[Sequence[tables.Cell | str]]) -> None:
        """Print aligned columns."""
        self.lines(tables.table(head, rows, self.paint))


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)
