"""The project's own tests are run by its manage.py, not by pytest."""

from importlib.util import find_spec

collect_ignore_glob = ["proj/*", "pages/*"]
if find_spec("playwright") is None:  # the extra "browser"
    collect_ignore_glob += ["test_browser.py", "browser.py"]
