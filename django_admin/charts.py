"""Bars as numbers: where each of them stands in a picture of a fixed size. The templates draw them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atomic_celery.history import History, Period
from atomic_celery.store.controllers import Size

WIDTH, HEIGHT = 480, 72
_GAP = 1.0


@dataclass(frozen=True, slots=True)
class Upright:
    """A part of a bar: from where it stands to where it ends."""

    y: str
    height: str


@dataclass(frozen=True, slots=True)
class Frame:
    """What all bars of a chart share: as high as its highest one, and as long as its period."""

    begun_ms: int
    ended_ms: int
    part_count: int
    most: int
    width: int = WIDTH
    height: int = HEIGHT

    def place(self, at_ms: int) -> float:
        """Return where the part begins that begins then."""
        return (at_ms - self.begun_ms) / (self.ended_ms - self.begun_ms) * WIDTH

    @property
    def step(self) -> float:
        """Return how wide a part is."""
        return WIDTH / self.part_count

    def level(self, count: float) -> float:
        """Return how far down a bar of *count* ends."""
        return HEIGHT - count * HEIGHT / (self.most or 1)

    def upright(self, upto: int, since: int = 0) -> Upright:
        """Return the part of a bar between two counts."""
        return Upright(_pixels(self.level(upto)), _pixels((upto - since) * HEIGHT / (self.most or 1)))

    @classmethod
    def of(cls, period: Period, begun_ms: int, most: int) -> Frame:
        """Frame a period that begins then."""
        return cls(begun_ms, begun_ms + period.length_s * 1000, period.part_count, most)


@dataclass(frozen=True, slots=True)
class Bar:
    """What ended in one part of a period: failures stand on successes."""

    x: str
    width: str
    succeeded_part: Upright
    failed_part: Upright
    begun_ms: int
    succeeded: int
    failed: int
    median_ms: float | None
    median_wait_ms: float | None


@dataclass(frozen=True, slots=True)
class Chart:
    """A period's bars; parts in which nothing ended have none."""

    frame: Frame
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class SizeBar:
    """How many hosts reported in one part of a period, before how many instances were listed."""

    x: str
    width: str
    there_part: Upright
    listed_part: Upright
    begun_ms: int
    wanted: int
    there: int
    listed: int | None


@dataclass(frozen=True, slots=True)
class SizeChart:
    """How many hosts were wanted, as a line, and were there, as bars; where nobody looked there is nothing."""

    frame: Frame
    bars: tuple[SizeBar, ...]
    wanted: str
    """The line, as SVG writes a path."""


def throughput(history: History) -> Chart:
    """Draw how many tasks ended in each part of a period."""
    most = max(part.succeeded + part.failed for part in history.parts)
    frame = Frame.of(history.period, history.parts[0].begun_ms, most)
    return Chart(
        frame,
        tuple(
            Bar(
                x=_pixels(frame.place(part.begun_ms)),
                width=_pixels(frame.step - _GAP),
                succeeded_part=frame.upright(part.succeeded),
                failed_part=frame.upright(part.succeeded + part.failed, part.succeeded),
                begun_ms=part.begun_ms,
                succeeded=part.succeeded,
                failed=part.failed,
                median_ms=part.median_ms,
                median_wait_ms=part.median_wait_ms,
            )
            for part in history.parts
            if part.succeeded or part.failed
        ),
    )


def size(period: Period, begun_ms: int, sizes: Sequence[Size]) -> SizeChart:
    """Draw how large the fleet was, and was to be, in each part of a period that begins then."""
    most = max((max(each.desired_hosts, each.hosts, each.instances or 0) for each in sizes), default=0)
    frame = Frame.of(period, begun_ms, most)
    return SizeChart(
        frame,
        tuple(
            SizeBar(
                x=_pixels(frame.place(each.begun_ms)),
                width=_pixels(frame.step - _GAP),
                there_part=frame.upright(each.hosts),
                listed_part=frame.upright(each.instances or 0),
                begun_ms=each.begun_ms,
                wanted=each.desired_hosts,
                there=each.hosts,
                listed=each.instances,
            )
            for each in sizes
        ),
        _steps(frame, sizes),
    )


def _steps(frame: Frame, sizes: Sequence[Size]) -> str:
    """Write a line that is level over each part, and is broken where one is missing."""
    steps: list[str] = []
    until: float | None = None
    for each in sizes:
        begins, level = frame.place(each.begun_ms), _pixels(frame.level(each.desired_hosts))
        joins = until is not None and abs(begins - until) < _GAP / 2
        steps.append(f"V{level}" if joins else f"M{_pixels(begins)} {level}")
        until = begins + frame.step
        steps.append(f"H{_pixels(until)}")
    return "".join(steps)


def _pixels(value: float) -> str:
    """Write a length as SVG does, whatever the language of the page."""
    return f"{value:.2f}"
