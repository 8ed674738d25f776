"""The project's own tests are run by its manage.py, not by pytest."""

collect_ignore_glob = ["proj/*", "pages/*"]
