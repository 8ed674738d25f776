"""``python -m tests.benchmarks``: measure, print a table, write JSON."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks import __doc__ as description
from tests.benchmarks import bare, claiming, completion, drain, fleet, limiting, pickup, publishing, subjects
from tests.benchmarks.database import temporary
from tests.benchmarks.results import Report, Result, machine
from tests.benchmarks.servers import NotInstalledError
from tests.benchmarks.subjects import Subject
from tests.support.postgres import PostgresServer

_CPU_COUNT = 2
_STOCK = {"shared_buffers": "128MB", "synchronous_commit": "on"}


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    drain_divisor: int = 1
    publish_count: int = 2_000
    pickup_count: int = 200
    repetitions: int = 3
    bare_s: float = 3.0
    claim_depths: tuple[int, ...] = (1_000, 100_000, 1_000_000)
    dead_count: int = 50_000
    claim_count: int = 50
    fleet_s: float = 60.0


_QUICK = Scale(
    drain_divisor=20,
    publish_count=100,
    pickup_count=20,
    repetitions=1,
    bare_s=0.2,
    claim_depths=(1_000, 5_000),
    dead_count=1_000,
    claim_count=10,
    fleet_s=5.0,
)


class Run:
    """One run of the chosen benchmarks on one PostgreSQL server."""

    def __init__(self, server: PostgresServer, scale: Scale, benchmarks: Sequence[str]) -> None:
        self._server = server
        self._scale = scale
        self._benchmarks = benchmarks
        version = str(server.execute("SHOW server_version")[0][0])
        self.report = Report(machine(version))

    def bare(self) -> None:
        """Measure the database by itself."""
        if "bare" in self._benchmarks:
            with temporary(self._server) as database:
                values = bare.measure(database, self._scale.bare_s, self._scale.pickup_count)
            self._record("bare", "postgresql", values)

    def store(self) -> None:
        """Measure the protocol by itself: claims from full queues, and what an idle fleet costs."""
        scale = self._scale
        if "claim" in self._benchmarks:
            with temporary(self._server) as database:
                values = claiming.measure(database, scale.claim_depths, scale.dead_count, scale.claim_count)
            self._record("claim", "store", values)
        if "limits" in self._benchmarks:
            with temporary(self._server) as database:
                self._record("limits", "store", limiting.measure(database, scale.publish_count))
        if "fleet" in self._benchmarks and self._server.pid is not None:
            with temporary(self._server) as database:
                self._record("fleet", "store", fleet.measure(database, self._server.pid, scale.fleet_s))

    def subject(self, name: str, opened: subjects.Opener) -> None:
        """Measure one subject, or note why it cannot be."""
        try:
            with (
                tempfile.TemporaryDirectory() as directory,
                opened(Path(directory), self._server) as subject,
            ):
                self._measure(subject)
        except NotInstalledError as error:
            self.report.not_measured[name] = str(error)

    def _measure(self, subject: Subject) -> None:
        scale = self._scale
        drain_count = subject.drain_count // scale.drain_divisor
        measures: dict[str, Callable[[], dict[str, float]]] = {
            "drain": lambda: drain.measure(subject, drain_count, scale.repetitions),
            "completion": lambda: completion.measure(subject, drain_count // 2, scale.pickup_count, scale.repetitions),
            "publish": lambda: publishing.measure(subject, scale.publish_count, scale.repetitions),
            "pickup": lambda: pickup.measure(subject, scale.pickup_count),
        }
        for benchmark in self._benchmarks:
            if benchmark in measures:
                values = measures[benchmark]()
                if subject.database:
                    values = self.report.beside_bare(values)
                self._record(benchmark, subject.name, values)

    def _record(self, benchmark: str, subject: str, values: dict[str, float]) -> None:
        result = Result(benchmark, subject, values)
        self.report.results.append(result)
        print(result, flush=True)


@contextmanager
def _two_cpus() -> Iterator[None]:
    # Every process started meanwhile inherits it: workers, servers, publishers.
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:_CPU_COUNT])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name and name != "none"]
        if unknown := set(names) - set(known):
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}; known: {', '.join(known)}")
        return names

    return parse


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run what the command line asks for."""
    benchmarks = ["bare", "claim", "limits", "fleet", "drain", "completion", "publish", "pickup"]
    ours, peers = list(subjects.OURS), list(subjects.PEERS)
    parser = argparse.ArgumentParser(
        "python -m tests.benchmarks",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", type=_names(benchmarks), default=benchmarks, help="comma-separated")
    parser.add_argument("--ours", type=_names(ours), default=ours, help="comma-separated, or none")
    parser.add_argument("--peers", type=_names(peers), default=peers, help="comma-separated, or none")
    parser.add_argument("--quick", action="store_true", help="small counts: shows that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here, too")
    chosen = parser.parse_args(arguments)

    with _two_cpus(), PostgresServer(durable=True, settings=_STOCK) as server:
        run = Run(server, _QUICK if chosen.quick else Scale(), chosen.only)
        run.bare()
        run.store()
        for name in [*chosen.ours, *chosen.peers]:
            run.subject(name, {**subjects.OURS, **subjects.PEERS}[name])
    if chosen.json:
        run.report.write(chosen.json)
    print(run.report)
    return run.report


if __name__ == "__main__":
    main()
