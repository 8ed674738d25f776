"""One step for each of the package's own migrations: they make the tables, Django keeps count."""
