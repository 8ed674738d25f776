"""Measured values, as a table for people and as JSON for programs."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

_BARE = {  # what the bare database does instead
    "tasks_per_s": "drain_100_per_s",
    "single_per_s": "insert_1_per_s",
    "grouped_per_s": "insert_100_per_s",
    "bulk_per_s": "insert_100_per_s",
    "p50_ms": "pickup_p50_ms",
    "p95_ms": "pickup_p95_ms",
}
_PACKAGES = ("celery", "kombu", "redis", "pgmq", "psycopg2-binary")


@dataclass(frozen=True, slots=True)
class Result:
    """The values of one benchmark for one subject; each value's unit is in its name."""

    benchmark: str
    subject: str
    values: Mapping[str, float]

    def __str__(self) -> str:
        values = " ".join(f"{name}={_cell(value)}" for name, value in self.values.items())
        return f"{self.benchmark} {self.subject}: {values}"


@dataclass
class Report:
    """All results of one run, what could not be measured, and where it ran."""

    machine: dict[str, str]
    results: list[Result] = field(default_factory=list)
    not_measured: dict[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write everything to *path* as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    def beside_bare(self, values: Mapping[str, float]) -> dict[str, float]:
        """*values*, and the ratio of each to what the bare database did in this run."""
        bare = {name: self.value("bare", "postgresql", counterpart) for name, counterpart in _BARE.items()}
        ratios = {f"{n}/bare": values[n] / b for n, b in bare.items() if b and n in values}
        return {**values, **ratios}

    def value(self, benchmark: str, subject: str, name: str) -> float | None:
        """One value, or None if it was not measured."""
        for result in self.results:
            if (result.benchmark, result.subject) == (benchmark, subject):
                return result.values.get(name)
        return None

    def __str__(self) -> str:
        facts = [f"{name}: {fact}" for name, fact in self.machine.items()]
        missing = [f"not measured: {name}: {why}" for name, why in self.not_measured.items()]
        benchmarks = dict.fromkeys(result.benchmark for result in self.results)
        tables = [self._table(benchmark) for benchmark in benchmarks]
        return "\n".join([*facts, *missing, *tables])

    def _table(self, benchmark: str) -> str:
        results = [result for result in self.results if result.benchmark == benchmark]
        names = list(dict.fromkeys(name for result in results for name in result.values))
        rows = [[r.subject, *(_cell(r.values.get(name)) for name in names)] for r in results]
        return "\n".join(["", *_aligned([[benchmark, *names], *rows])])


def machine(server_version: str) -> dict[str, str]:
    """What the numbers depend on, beside the code."""
    installed = {package: _version(package) for package in _PACKAGES}
    return {
        "python": platform.python_version(),
        "postgresql": server_version,
        "packages": ", ".join(f"{name} {version}" for name, version in installed.items()),
        "cpus": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "load at start": f"{os.getloadavg()[0]:.2f}",
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _aligned(rows: Iterable[list[str]]) -> list[str]:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in rows
    ]
