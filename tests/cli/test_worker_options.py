"""Importing the commands is also what teaches `celery worker` its new words."""

from __future__ import annotations

import pytest

from tests.cli.conftest import CommandLine


def test_the_workers_help_lists_the_pool_and_the_options(cli: CommandLine) -> None:
    run = cli.celery("worker", "--help")

    assert run.returncode == 0
    assert "|atomic]" in run.stdout
    for option in ("--slots", "--label", "--provider-id", "--idle-exit", "--password-file", "--token-file", "--prefix"):
        assert option in run.stdout


@pytest.mark.parametrize("pool", ["-Patomic", "--pool=atomic"])
def test_the_pool_is_a_valid_choice(cli: CommandLine, pool: str) -> None:
    # The option after it is wrong, so the command ends while it reads its options, past the pool.
    run = cli.celery("worker", pool, "--slots", "none")

    assert "'none' is not a valid integer" in run.stderr
