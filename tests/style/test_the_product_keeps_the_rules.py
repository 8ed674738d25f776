"""Every module and every SQL file of the product keeps the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.style import layers, rules
from tests.style.sources import Module, modules, sql_files

RULES = [
    rules.banned_names,
    rules.clock_readers,
    rules.long_functions,
    rules.long_modules,
    rules.sql_in_python,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_modules_keep(rule: Callable[[Module], Iterator[str]]) -> None:
    _require_none(found for module in modules() for found in rule(module))


def test_imports_point_down() -> None:
    known = layers.read_layers()
    _require_none(found for module in modules() for found in layers.violations(module, known))


def test_statements_on_held_things_are_fenced() -> None:
    _require_none(found for file in sql_files() for found in rules.unfenced_statements(file))


def test_there_is_something_to_check() -> None:
    assert "atomic_celery.clock" in {module.name for module in modules()}
    assert sql_files()
    assert {"errors", "config", "store", "lease", "transport", "cli"} <= set(layers.read_layers())


def _require_none(violations: Iterator[str]) -> None:
    found = list(violations)
    assert not found, "\n".join(["", *found])
