from __future__ import annotations

import json
import subprocess

from tests.cli.conftest import PATIENCE_S, CommandLine, World


def test_events_are_listed_the_latest_last(cli: CommandLine, world: World) -> None:
    world.store.events.record("host-registered", host="h1", instance="i-1")
    world.store.events.record("drain-asked", instance="i-1", detail={"asked_by": "ada@desk", "reason": "new kernel"})

    first, second = cli("events").stdout.splitlines()

    assert first.endswith("host-registered host=h1 instance=i-1")
    assert second.endswith('drain-asked instance=i-1 asked_by=ada@desk reason="new kernel"')
    assert [event["kind"] for event in cli.json("events", "--kind", "drain-asked")] == ["drain-asked"]
    assert [event["kind"] for event in cli.json("events", "--limit", "1")] == ["drain-asked"]


def test_following_shows_each_event_once_as_it_comes(cli: CommandLine, world: World) -> None:
    world.store.events.record("host-registered", host="h1")
    with subprocess.Popen(
        cli.command("atomic", "events", "--follow", "--json"),
        cwd=cli.directory,
        env=cli.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            seen = [json.loads(process.stdout.readline())["host"]]
            for host in ("h2", "h3"):
                world.store.events.record("host-left", host=host)
                seen.append(json.loads(process.stdout.readline())["host"])
        finally:
            process.kill()
            process.wait(PATIENCE_S)

    assert seen == ["h1", "h2", "h3"]
