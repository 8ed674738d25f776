"""Bars as numbers: where each of them stands in a picture of a fixed size. The templates draw them."""

from __future__ import annotations

from dataclasses import dataclass

from atomic_celery.history import History

WIDTH, HEIGHT = 480, 72
_GAP = 1.0


@dataclass(frozen=True, slots=True)
class Bar:
    """What ended in one part of a period: failures stand on successes."""

    x: str
    width: str
    succeeded_y: str
    succeeded_height: str
    failed_y: str
    failed_height: str
    begun_ms: int
    succeeded: int
    failed: int
    median_ms: float | None
    median_wait_ms: float | None


@dataclass(frozen=True, slots=True)
class Chart:
    """A period's bars, as high as its busiest part."""

    bars: tuple[Bar, ...]
    most: int
    width: int = WIDTH
    height: int = HEIGHT


def throughput(history: History) -> Chart:
    """Draw how many tasks ended in each part of a period."""
    most = max(part.succeeded + part.failed for part in history.parts)
    step, unit = WIDTH / len(history.parts), HEIGHT / (most or 1)
    return Chart(
        tuple(
            Bar(
                x=_pixels(place * step),
                width=_pixels(step - _GAP),
                succeeded_y=_pixels(HEIGHT - part.succeeded * unit),
                succeeded_height=_pixels(part.succeeded * unit),
                failed_y=_pixels(HEIGHT - (part.succeeded + part.failed) * unit),
                failed_height=_pixels(part.failed * unit),
                begun_ms=part.begun_ms,
                succeeded=part.succeeded,
                failed=part.failed,
                median_ms=part.median_ms,
                median_wait_ms=part.median_wait_ms,
            )
            for place, part in enumerate(history.parts)
        ),
        most,
    )


def _pixels(value: float) -> str:
    """Write a length as SVG does, whatever the language of the page."""
    return f"{value:.2f}"
