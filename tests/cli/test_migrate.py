from __future__ import annotations

import json
import subprocess

from atomic_celery.store.schema import Schema
from tests.cli.conftest import CommandLine, World


def test_a_plan_changes_nothing_and_migrate_does_what_it_said(cli: CommandLine) -> None:
    planned = cli.json("migrate", "--plan")
    assert planned["version"] is None
    assert planned["planned"]

    applied = cli.json("migrate")  # does not fail for what a plan has done already

    assert applied == {"applied": planned["planned"], "version": planned["target"], "target": planned["target"]}
    assert cli("migrate").stdout == f"Nothing to do: the tables are of version {planned['target']}.\n"


def test_several_at_once_upgrade_once(cli: CommandLine) -> None:
    commands = [cli.command("atomic", "migrate", "--json") for _ in range(3)]
    patient = cli.environment | {"ATOMIC_LEASE": "180", "ATOMIC_STATEMENT_TIMEOUT": "110"}
    running = [
        subprocess.Popen(command, cwd=cli.directory, env=patient, stdout=subprocess.PIPE, text=True)
        for command in commands
    ]
    said = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    applied = [json.loads(each)["applied"] for each in said]
    assert sorted(map(bool, applied)) == [False, False, True]


def test_a_prefix_of_ones_own_makes_tables_of_ones_own(cli: CommandLine, world: World) -> None:
    assert cli("--prefix", "team", "migrate").stdout.startswith("applied 0001_")
    world.publish("only-in-atomic")

    run = cli("--prefix", "team", "messages", "list", "--json")

    assert (run.returncode, run.stdout) == (0, "[]\n")


def test_without_tables_the_command_to_make_them_is_named(cli: CommandLine) -> None:
    run = cli("status")

    assert run.returncode == 1
    assert run.stdout == ""
    assert "no atomic_ tables" in run.stderr
    assert "atomic migrate" in run.stderr


def test_tables_of_a_newer_release_are_refused(cli: CommandLine, world: World) -> None:
    schema: Schema = world.store.schema
    newer = schema.target + 1
    for name in ("schema_version", "schema_floor"):
        schema._exec("note", name=name, number=newer)

    for command in ("status", "migrate"):
        run = cli(command)
        assert run.returncode == 1
        assert f"version {newer}" in run.stderr
        assert "upgrade atomic_celery" in run.stderr
