"""Count a directory of Python files on two workers, kill one half-way, and check that nothing is lost or doubled.

python examples/quickstart [DIRECTORY] [--db URL]
"""

from __future__ import annotations

import argparse
import os
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    """Run the demo; 0 if the workers' totals are those of a single process."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="atomic-quickstart-") as scratch:
        _choose_database(options.db, Path(scratch))
        sys.path.insert(0, str(HERE))
        import demo  # only now: the Celery app reads the database's URL when it is imported

        return demo.run(options.directory, Path(scratch))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="quickstart", description=__doc__.split("\n")[0] if __doc__ else None)
    standard_library = Path(sysconfig.get_paths()["stdlib"])
    parser.add_argument("directory", nargs="?", type=Path, default=standard_library, help="default: %(default)s")
    parser.add_argument("--db", help="postgresql://user@host/database; default: SQLite in a temporary directory")
    return parser.parse_args()


def _choose_database(url: str | None, scratch: Path) -> None:
    os.environ["QUICKSTART_BROKER"] = f"atomic+{url}" if url else f"atomic+sqlite:///{scratch}/broker.db"
    os.environ["ATOMIC_STATE_DIR"] = str(scratch / "state")


if __name__ == "__main__":
    sys.exit(main())
