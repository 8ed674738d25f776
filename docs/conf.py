"""How Sphinx builds this documentation: Markdown pages, no warning tolerated."""

from __future__ import annotations

from importlib.metadata import version as version_of

project = "atomic_celery"
author = "The atomic_celery contributors"
release = version_of("atomic_celery")
version = release

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"atomic_celery {release}"
