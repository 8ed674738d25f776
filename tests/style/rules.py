"""The rules a reader may rely on, each a function that yields what breaks it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.style.sources import Module, SqlFile

LINES_A_MODULE = 400
LINES_A_FUNCTION = 50
BANNED_CALLS = {
    "asyncio.sleep",
    "datetime.date.today",
    "datetime.datetime.now",
    "datetime.datetime.today",
    "datetime.datetime.utcnow",
    "time.monotonic",
    "time.monotonic_ns",
    "time.perf_counter",
    "time.sleep",
    "time.time",
    "time.time_ns",
}
# Words of the vocabulary's right column, less those that are right at kombu's boundary.
BANNED_WORDS = {
    *("ack", "batch", "dequeue", "etag", "extend", "fetch", "job", "lock", "master", "nack", "owner"),
    *("pop", "reap", "reaper", "rescue", "restore", "rollback", "touch", "try"),
    *("common", "handler", "handlers", "helper", "helpers", "manager", "misc", "util", "utils"),
}
HELD_TABLES = "claim|execution|step|step_attempt|effect|outbound_call|outbound_attempt|undo|term"
SQL_LITERAL = re.compile(
    r"\s*(SELECT\s|INSERT\s+INTO\s|UPDATE\s+\S+\s+SET\s|DELETE\s+FROM\s|WITH\s+\w+\s+AS\s"
    r"|(CREATE|DROP|ALTER)\s+(UNLOGGED\s+)?(TABLE|INDEX)\s)"
)
STATEMENT = re.compile(r"^-- name: *(?P<name>\w+)(?P<text>.*?)(?=^-- name:|\Z)", re.DOTALL | re.MULTILINE)
CHANGES_HELD = re.compile(rf"\b(UPDATE|DELETE\s+FROM|INSERT\s+INTO)\s+atomic_({HELD_TABLES})\b", re.IGNORECASE)
UNFENCED = re.compile(r"^-- unfenced: \S+", re.MULTILINE)


def long_modules(module: Module) -> Iterator[str]:
    """Yield *module* if it is longer than a reader keeps in mind."""
    if module.line_count > LINES_A_MODULE:
        yield f"{module.name}: {module.line_count} lines, more than {LINES_A_MODULE}"


def long_functions(module: Module) -> Iterator[str]:
    """Yield the functions that do not fit on a screen."""
    for function in module.functions():
        count = (function.end_lineno or function.lineno) - function.lineno + 1
        if count > LINES_A_FUNCTION:
            yield f"{module.name}:{function.lineno}: {function.name} has {count} lines, more than {LINES_A_FUNCTION}"


def banned_names(module: Module) -> Iterator[str]:
    """Yield *module* if its name has a word that the vocabulary replaces."""
    for part in module.name.split("."):
        for word in sorted(BANNED_WORDS & set(part.split("_"))):
            yield f"{module.name}: the vocabulary has another word for {word!r}"


def clock_readers(module: Module) -> Iterator[str]:
    """Yield uses of the machine's clocks outside `clock.py`."""
    if module.name == "atomic_celery.clock":
        return
    known = dict(_imported_names(module))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute | ast.Name) and (name := _dotted(node, known)) in BANNED_CALLS:
            yield f"{module.name}:{node.lineno}: {name}; take a Clock, or wait on an event"


def sql_in_python(module: Module) -> Iterator[str]:
    """Yield statements that stand in Python instead of in `store/sql/`."""
    if module.name.startswith("atomic_celery.store."):
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and SQL_LITERAL.match(node.value):
            yield f"{module.name}:{node.lineno}: SQL belongs in store/sql/"


def unfenced_statements(file: SqlFile) -> Iterator[str]:
    """Yield statements that change what somebody holds and do not say the fence.

    One that must not ask for it says why in a line `-- unfenced: …`.
    """
    for statement in STATEMENT.finditer(file.source):
        sql = re.sub(r"--.*", "", statement["text"])
        if CHANGES_HELD.search(sql) and "fence" not in sql and not UNFENCED.search(statement["text"]):
            yield f"{file.name}: {statement['name']} changes what is held and does not mention the fence"


def _imported_names(module: Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _dotted(node: ast.expr, known: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, known)}.{node.attr}"
    return known.get(node.id, "") if isinstance(node, ast.Name) else ""
