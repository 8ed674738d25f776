"""The benchmarks run; how fast is for their table to say."""

from __future__ import annotations

import json
from pathlib import Path

from tests.benchmarks.__main__ import main


def test_the_bare_database_is_measured_and_written_down(tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    main(["--quick", "--ours", "none", "--peers", "none", "--only", "bare", "--json", str(output)])

    [result] = json.loads(output.read_text())["results"]
    assert result["benchmark"] == "bare"
    assert all(value > 0 for value in result["values"].values())
