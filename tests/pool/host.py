"""A host that prints the ids of its two children, one of them busy, and waits to be killed."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.pool import tasks
from tests.pool.bench import Bench

if __name__ == "__main__":
    directory = Path(sys.argv[1])
    bench = Bench(2, directory).start()
    held = bench.apply(tasks.hold, str(directory), "held")
    bench.run_until(lambda: held.began)
    print(*bench.pids, flush=True)
    bench.run_until(lambda: False, deadline_s=600)
