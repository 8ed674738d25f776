"""The store: every statement, on each database."""
