"""The tables' version: what it is, what it should be, and the way from one to the other."""

from __future__ import annotations

from contextlib import nullcontext

from atomic_celery import errors
from atomic_celery.store import migrations
from atomic_celery.store.database import Database, Noun
from atomic_celery.store.migrations import Migration

_MIGRATE = "celery -A <your project> atomic migrate"


class Schema(Noun):
    """Checks and migrates the tables of one database."""

    noun = "schema"

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._migrations = migrations.load(database.dialect)
        self.target = self._migrations[-1].number
        """The version that this release brings the tables to."""

    def version(self) -> int | None:
        """Return the number of the last migration that ran; None when there are no tables."""
        return self._numbers().get("schema_version")

    def plan(self) -> list[str]:
        """Name the migrations that have not run yet, in order."""
        return [migration.name for migration in self._missing(self._numbers())]

    def migrate(self, *, additive_only: bool = False) -> list[str]:
        """Run the migrations that have not run yet and name them.

        Atomicity: one transaction, all or nothing, or a guest's; two programs at once take turns.

        Args:
            additive_only: Stop before the first step that the release before could not live with.

        Raises:
            SchemaMismatch: The tables are newer than this release. Nothing was changed.
        """
        guest = self._database.guest()
        joining = self._database.hosting(guest) if guest is not None and guest.in_transaction else nullcontext()
        with joining, self._database.transaction("migrate"):
            self._one("lock")
            self._exec("be_patient")
            numbers = self._numbers()
            self._refuse_newer(numbers)
            done = []
            for migration in self._missing(numbers):
                if additive_only and not migration.additive:
                    break
                self._apply(migration)
                done.append(migration.name)
        return done

    def require(self) -> None:
        """Make sure that this release can work on the tables.

        Raises:
            SchemaMismatch: It cannot; says why, and the command to run.
        """
        with self._database.in_time():
            numbers = self._numbers()
        self._refuse_newer(numbers)
        needed = max(step.number for step in self._migrations if step.additive)
        version = numbers.get("schema_version")
        if version is None:
            raise errors.SchemaMismatch(
                f"there are no {self._database.settings.prefix}_ tables in {self._database.url}", f"run: {_MIGRATE}"
            )
        if version < needed:
            raise errors.SchemaMismatch(
                f"the tables are of version {version}, this release needs {needed}", f"run: {_MIGRATE}"
            )

    def now_ms(self) -> int:
        """Ask the database for its time; needs no tables."""
        with self._database.in_time():
            row = self._one("clock")
        assert row is not None
        return int(row[0])

    def _refuse_newer(self, numbers: dict[str, int]) -> None:
        floor = numbers.get("schema_floor", 0)
        if floor > self.target:
            raise errors.SchemaMismatch(
                f"the tables are of version {numbers['schema_version']} and need a release that knows "
                f"version {floor}; this one knows {self.target}",
                "upgrade atomic_celery on this machine",
            )

    def _numbers(self) -> dict[str, int]:
        exists = self._one("exists")
        if exists is None or not exists[0]:
            return {}
        return {name: int(number) for name, number in self._many("numbers")}

    def _missing(self, numbers: dict[str, int]) -> list[Migration]:
        version = numbers.get("schema_version", 0)
        return [migration for migration in self._migrations if migration.number > version]

    def _apply(self, migration: Migration) -> None:
        script = self._database.statements.script(migration.name, migration.text)
        self._database.run(script)
        self._exec("note", name="schema_version", number=migration.number)
        if not migration.additive or migration.number == 1:
            self._exec("note", name="schema_floor", number=migration.number)
