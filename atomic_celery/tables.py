"""Facts as aligned lines of text: what people read in a terminal, a log or a mail.

Nothing here prints. Colour is the caller's: every function that can use it takes a `Paint`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Tone = Literal["", "good", "notice", "bad", "faint", "strong"]
Paint = Callable[[str, Tone], str]

NOTHING = "-"
_GAP = "  "
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"))


@dataclass(frozen=True, slots=True)
class Cell:
    """One field of a table, and how it should strike the eye."""

    text: str
    tone: Tone = ""
    right: bool = False


def plain(text: str, _tone: Tone) -> str:
    """Leave *text* without colour."""
    return text


def table(head: Sequence[str], rows: Iterable[Sequence[Cell | str]], paint: Paint = plain) -> list[str]:
    """Align *rows* below *head*, one line each; no rows, no lines."""
    cells = [[_cell(field) for field in row] for row in rows]
    if not cells:
        return []
    titles = [Cell(title, "faint", right=cells[0][at].right) for at, title in enumerate(head)]
    lines = [titles, *cells]
    widths = [max(_width(line[at].text) for line in lines) for at in range(len(head))]
    return [_line(line, widths, paint) for line in lines]


def number(value: int, *, exact: bool = True) -> Cell:
    """Show a count, with a plus where it is only a lower bound."""
    return Cell(count(value, exact=exact), right=True)


def count(value: int, *, exact: bool = True) -> str:
    """Write a count; "100000+" means at least that many."""
    return f"{value}" if exact else f"{value}+"


def amount(value: int, thing: str) -> str:
    """Write how many of a *thing* there are: ``1 host``, ``2 hosts``."""
    return f"{value} {thing}{'s' * (value != 1)}"


def span(duration_ms: float | None) -> str:
    """Write a duration in its two largest units, "-" for none: ``3m12s``, ``2d4h``, ``850ms``."""
    if duration_ms is None:
        return NOTHING
    duration_ms = round(duration_ms)
    if 0 <= duration_ms < 1000:
        return f"{duration_ms}ms"
    sign, rest = ("-", -duration_ms) if duration_ms < 0 else ("", duration_ms)
    at = next((at for at, (size, _) in enumerate(_UNITS) if rest >= size), len(_UNITS) - 1)
    (size, unit), finer = _UNITS[at], _UNITS[at + 1 : at + 2]
    small = [(rest % size // finer_size, name) for finer_size, name in finer]
    return f"{sign}{rest // size}{unit}" + "".join(f"{n}{name}" for n, name in small if n)


def printable(text: str) -> str:
    """Make *text* safe on one line of a terminal: control characters become escapes."""
    return "".join(map(_printable, text))


def _printable(character: str) -> str:
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return character.encode("unicode_escape", "surrogatepass").decode("ascii")
    return character


def _cell(field: Cell | str) -> Cell:
    cell = field if isinstance(field, Cell) else Cell(field)
    return Cell(printable(cell.text) or NOTHING, cell.tone, cell.right)


def _line(cells: Sequence[Cell], widths: Sequence[int], paint: Paint) -> str:
    last = len(cells) - 1
    return _GAP.join(
        _padded(cell, 0 if at == last and not cell.right else width, paint)
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )


def _padded(cell: Cell, width: int, paint: Paint) -> str:
    # Padding stays outside the colour, or underlined and inverted themes look broken.
    padding = " " * max(0, width - _width(cell.text))
    text = paint(cell.text, cell.tone) if cell.tone else cell.text
    return padding + text if cell.right else text + padding


def _width(text: str) -> int:
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    combining = sum(unicodedata.combining(character) > 0 for character in text)
    return len(text) + wide - combining
