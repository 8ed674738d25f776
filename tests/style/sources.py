"""The files the rules are checked on, each read and parsed once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("atomic_celery", "django_admin")


@dataclass(frozen=True)
class Module:
    """A Python module of the product: its dotted name and its source."""

    name: str
    source: str
    is_package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed source."""
        return ast.parse(self.source)

    @property
    def line_count(self) -> int:
        """How many lines the module has."""
        return len(self.source.splitlines())

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Yield every function and method, nested ones too."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node

    def imports(self) -> Iterator[tuple[int, str]]:
        """Yield (line, dotted name) of everything imported anywhere, absolute and in full."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self._base_of(node)
                yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)

    def _base_of(self, node: ast.ImportFrom) -> str:
        if node.level == 0:
            return node.module or ""
        here = self.name.split(".") + ([""] if self.is_package else [])
        return ".".join([*here[: -node.level], *filter(None, [node.module])])


@dataclass(frozen=True)
class SqlFile:
    """A file of named statements."""

    name: str
    source: str


def modules(root: Path = ROOT) -> list[Module]:
    """Return the product's modules, in the order of their names."""
    paths = sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))
    return [_module(root, path) for path in paths]


def sql_files(root: Path = ROOT) -> list[SqlFile]:
    """Return the product's SQL files."""
    paths = sorted(path for package in PACKAGES for path in (root / package).rglob("*.sql"))
    return [SqlFile(str(path.relative_to(root)), path.read_text()) for path in paths]


def _module(root: Path, path: Path) -> Module:
    parts = path.relative_to(root).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    return Module(".".join(parts[:-1] if is_package else parts), path.read_text(), is_package)
