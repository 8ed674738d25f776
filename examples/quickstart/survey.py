"""What is counted: one Python source file at a time, without Celery."""

from __future__ import annotations

import hashlib
import io
import tokenize
from pathlib import Path
from typing import TypedDict


class Facts(TypedDict):
    """What the survey knows of one file."""

    path: str
    digest: str
    lines: int
    tokens: int


class Totals(TypedDict):
    """What the survey knows of all files together."""

    files: int
    lines: int
    tokens: int
    digest: str


def sources(directory: Path) -> list[Path]:
    """List the ``.py`` files below *directory*, sorted; tests and installed packages are left out."""
    skipped = {"site-packages", "test", "tests", "__pycache__"}
    return sorted(path for path in directory.rglob("*.py") if not skipped & set(path.parts[:-1]))


def examine(path: str) -> Facts:
    """Count lines and tokens of one file; a file ``tokenize`` refuses counts with the tokens before the fault."""
    data = Path(path).read_bytes()
    return Facts(path=path, digest=hashlib.sha256(data).hexdigest(), lines=data.count(b"\n"), tokens=_token_count(data))


def add_up(facts: list[Facts]) -> Totals:
    """Add all files up. The digest is over every (path, digest) pair, so a missing or doubled file shows."""
    whole = hashlib.sha256()
    for fact in sorted(facts, key=lambda fact: fact["path"]):
        whole.update(f"{fact['path']} {fact['digest']}\n".encode())
    return Totals(
        files=len(facts),
        lines=sum(fact["lines"] for fact in facts),
        tokens=sum(fact["tokens"] for fact in facts),
        digest=whole.hexdigest(),
    )


def _token_count(data: bytes) -> int:
    count = 0
    try:
        for _ in tokenize.tokenize(io.BytesIO(data).readline):
            count += 1
    except (SyntaxError, tokenize.TokenError):
        pass
    return count
