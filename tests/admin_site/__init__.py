"""A Django project whose admin shows a fleet: its pages are tested by its own tests, and in a browser."""
