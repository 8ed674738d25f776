"""A run as a picture: hosts and unfinished messages over time, as SVG that reads in light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

WIDTH, HEIGHT, LEFT, TOP, PANEL, GAP = 760, 330, 56, 24, 120, 36
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#888}"
    ".hosts{stroke:#2a78d0;fill:none;stroke-width:2}.queue{stroke:#d0782a;fill:#d0782a33;stroke-width:1.5}"
    ".axis{stroke:#8886;stroke-width:1}"
)


class Point(Protocol):
    """The fleet at one moment."""

    @property
    def at_s(self) -> float: ...
    @property
    def hosts(self) -> int: ...
    @property
    def unfinished(self) -> int: ...


def draw(seen: Sequence[Point]) -> str:
    """Return the picture."""
    last_s = max(point.at_s for point in seen)
    panels = [
        _panel([(p.at_s, p.hosts) for p in seen], last_s, TOP, "hosts", "registered hosts"),
        _panel([(p.at_s, p.unfinished) for p in seen], last_s, TOP + PANEL + GAP, "queue", "unfinished messages"),
    ]
    step_s = max(10, round(last_s / 80) * 10)
    ticks = [
        f'<text x="{_x(at_s, last_s):.0f}" y="{HEIGHT - 8}" text-anchor="middle">{at_s} s</text>'
        for at_s in range(0, int(last_s) + 1, step_s)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="Hosts and unfinished messages over time"><style>{STYLE}</style>{"".join(panels + ticks)}</svg>\n'
    )


def _x(at_s: float, last_s: float) -> float:
    return LEFT + at_s / last_s * (WIDTH - LEFT - 16)


def _panel(values: Sequence[tuple[float, int]], last_s: float, top: int, kind: str, title: str) -> str:
    most = max(1, *(value for _, value in values))
    path, before = [], 0
    for at_s, value in values:
        x = _x(at_s, last_s)
        path += [(x, before), (x, value)]  # steps: what is counted does not slope
        before = value
    points = " ".join(f"{x:.1f},{top + PANEL - value / most * PANEL:.1f}" for x, value in [*path, (path[-1][0], 0)])
    return (
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH - 16}" y1="{top + PANEL}" y2="{top + PANEL}"/>'
        f'<polyline class="{kind}" points="{points}"/><text x="{LEFT}" y="{top - 8}">{title}</text>'
        f'<text x="{LEFT - 8}" y="{top + 10}" text-anchor="end">{most}</text>'
        f'<text x="{LEFT - 8}" y="{top + PANEL}" text-anchor="end">0</text>'
    )
