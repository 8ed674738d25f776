"""A migrated store for every test, on each database."""

from tests.store.conftest import desk, postgres_desk, postgres_store, sqlite_store, store

__all__ = ["desk", "postgres_desk", "postgres_store", "sqlite_store", "store"]
