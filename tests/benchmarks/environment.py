"""What a benchmark tells the processes it starts, by way of their environment variables."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_CELERY = "BENCHMARK_CELERY"
_DIRECTORY = "BENCHMARK_DIRECTORY"


def variables(celery: Mapping[str, Any], directory: Path) -> dict[str, str]:
    """The environment of a process with this Celery configuration that reports to *directory*."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        _CELERY: json.dumps(dict(celery)),
        _DIRECTORY: str(directory),
    }


def celery() -> dict[str, Any]:
    """The Celery configuration this process was given."""
    configuration: dict[str, Any] = json.loads(os.environ[_CELERY])
    return configuration


def directory() -> Path:
    """Where this process leaves its counts and stamps."""
    return Path(os.environ[_DIRECTORY])
