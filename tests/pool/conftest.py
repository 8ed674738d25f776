"""A real pool on a bare hub: real processes, real signals, real Celery tasks, no broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pool.bench import Bench

OpenBench = Callable[..., Bench]


@pytest.fixture
def open_bench(tmp_path: Path) -> Iterator[OpenBench]:
    """Open a started pool with the options given; it is ended with the test."""
    benches: list[Bench] = []

    def open_one(children: int = 1, **options: Any) -> Bench:
        benches.append(Bench(children, tmp_path, **options))
        return benches[-1].start()

    yield open_one
    for bench in benches:
        bench.end()


@pytest.fixture
def bench(open_bench: OpenBench) -> Bench:
    """A started pool of one child."""
    return open_bench()
