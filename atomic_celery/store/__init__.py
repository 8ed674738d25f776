"""Storage: the database, its tables, and the protocol's statements, one method each."""
