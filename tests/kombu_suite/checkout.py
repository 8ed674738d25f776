"""kombu's own functional tests, from a checkout of kombu that the environment names."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

VARIABLE = "ATOMIC_KOMBU_CHECKOUT"
FILE = Path("t", "integration", "common.py")


def common() -> ModuleType | None:
    """Load the classes of the checkout; None when there is none."""
    checkout = os.environ.get(VARIABLE)
    if not checkout:
        return None
    # Loaded by path: importing the checkout as a package would put its kombu in front of the installed one.
    spec = importlib.util.spec_from_file_location("kombu_checkout_common", Path(checkout, FILE))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
