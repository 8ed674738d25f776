"""How fast one process publishes no-op tasks: one by one, as a group, in bulk."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median

from tests.benchmarks.subjects import Subject


def measure(subject: Subject, count: int, repetitions: int) -> dict[str, float]:
    """Messages a second in each mode the subject has; the median of *repetitions*."""
    return {f"{mode}_per_s": median(_rate(subject, mode, count) for _ in range(repetitions)) for mode in subject.modes}


def _rate(subject: Subject, mode: str, count: int) -> float:
    with tempfile.TemporaryDirectory() as directory:
        seconds: float = subject.publish(mode, count, Path(directory))["seconds"]
        subject.publish("purge", 0, Path(directory))
    return count / seconds
