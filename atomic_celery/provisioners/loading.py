"""Finding the provisioner that ``--provisioner`` names."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any, cast

from atomic_celery.errors import ConfigError
from atomic_celery.fleet.provisioner import Provisioner
from atomic_celery.provisioners.command import CommandProvisioner
from atomic_celery.provisioners.configuration import Commands, read
from atomic_celery.provisioners.local import LocalProvisioner

_METHODS = ("list", "scale_to", "drain")
_DEFAULT_NAME = "provisioner"


def load(named: str, journal: str) -> Provisioner:
    """Return the provisioner of a JSON file, or of a module: ``fleet.json``, ``package.module[:object]``.

    Without a name the module's ``provisioner`` is meant. An object that is a class, or another callable without the
    methods of a provisioner, is called.

    Args:
        named: The file or the object.
        journal: Whose fleet it is for, as `Store.journal` has it.

    Raises:
        ConfigError: There is none, or it is none.
    """
    if named.endswith(".json") or os.sep in named:
        return _from_file(Path(named), journal)
    found = _import(named)
    if missing := _lacks(found):
        raise ConfigError(f"the provisioner {named} has no {', '.join(missing)}")
    return cast(Provisioner, found)


def _import(named: str) -> Any:
    module_name, _, name = named.partition(":")
    if not all(module_name.split(".")):
        raise ConfigError(f"a provisioner is a file.json or package.module[:object], got {named!r}")
    try:
        found = getattr(importlib.import_module(module_name), name or _DEFAULT_NAME)
    except ImportError as error:
        raise ConfigError(f"the provisioner {named} cannot be imported: {error}") from error
    except AttributeError:
        raise ConfigError(f"the module {module_name} has no {name or _DEFAULT_NAME}") from None
    except (Exception, SystemExit) as error:  # whatever the module of somebody else does
        raise ConfigError(f"the provisioner {named} cannot be imported: {_said(error)}") from error
    if not isinstance(found, type) and not (callable(found) and _lacks(found)):
        return found
    try:
        return found()
    except (Exception, SystemExit) as error:
        raise ConfigError(f"the provisioner {named} cannot be made: {_said(error)}") from error


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def from_mapping(given: Any, journal: str) -> Provisioner:
    """Return the provisioner that the content of a JSON file describes, for the fleet of *journal*.

    Raises:
        ConfigError: It describes none; says everything that is wrong with it.
    """
    described = read(given)
    if isinstance(described, Commands):
        return CommandProvisioner(described)
    return LocalProvisioner(described, journal)


def _lacks(found: Any) -> list[str]:
    methods = [name for name in _METHODS if not callable(getattr(found, name, None))]
    return methods if isinstance(getattr(found, "kind", None), str) else [*methods, "kind"]


def _from_file(path: Path, journal: str) -> Provisioner:
    try:
        given = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except OSError as error:
        raise ConfigError(f"cannot read the provisioner {path}: {error.strerror}") from None
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"the provisioner {path} is no JSON: {error}") from None
    try:
        return from_mapping(given, journal)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of *pairs*, none of which may be there twice: nobody could tell which one is meant."""
    names = [name for name, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"an object has {', '.join(twice)} twice")
    return dict(pairs)
