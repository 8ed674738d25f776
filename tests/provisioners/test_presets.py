"""Each preset drives its platform: adds to a count, removes the one it means, and never lets the platform choose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atomic_celery.errors import ProvisionerError
from atomic_celery.fleet.provisioner import Permit
from atomic_celery.provisioners import CommandProvisioner, from_mapping, listing
from atomic_celery.provisioners.configuration import Commands, read
from tests.provisioners.conftest import JOURNAL, PRESETS, STAGES, Stage, ids, preset, states

PRINTED = Path(__file__).parent / "printed"


def test_every_preset_is_staged() -> None:
    assert {path.stem for path in PRESETS.glob("*.json")} == set(STAGES)


def test_an_empty_group_has_no_instances(stage: Stage, permit: Permit) -> None:
    assert list(stage.provisioner.list(permit)) == []


def test_hosts_are_added_up_to_a_count(stage: Stage, permit: Permit) -> None:
    stage.provisioner.scale_to(3, permit, add=3)
    listed = stage.provisioner.list(permit)
    assert len(listed) == 3
    assert states(listed) == {"pending"}
    stage.settle(STAGES[stage.name][2])
    assert states(stage.provisioner.list(permit)) == {"running"}

    changes = len(stage.changes())
    stage.provisioner.scale_to(3, permit, add=3)  # the answer to the first call was lost, say
    assert len(stage.changes()) == changes
    stage.provisioner.scale_to(5, permit, add=2)
    assert len(stage.provisioner.list(permit)) == 5
    assert stage.read()["victims"] == []


def test_the_host_that_is_meant_is_removed_and_the_count_lowered(stage: Stage, permit: Permit) -> None:
    stage.provisioner.scale_to(4, permit, add=4)
    stage.settle(STAGES[stage.name][2])
    first, second, third, fourth = ids(stage.provisioner.list(permit))

    stage.provisioner.drain(second, permit)

    assert ids(stage.provisioner.list(permit)) == [first, third, fourth]
    assert stage.read()["victims"] == []
    if stage.name != "github-actions":
        assert stage.read()["size"] == 3


def test_to_remove_a_host_twice_or_one_that_is_gone_does_nothing(stage: Stage, permit: Permit) -> None:
    stage.provisioner.scale_to(2, permit, add=2)
    stage.settle(STAGES[stage.name][2])
    first, second = ids(stage.provisioner.list(permit))
    stage.provisioner.drain(first, permit)
    changes = len(stage.changes())

    stage.provisioner.drain(first, permit)
    stage.provisioner.drain("12345", permit)

    assert len(stage.changes()) == changes
    assert ids(stage.provisioner.list(permit)) == [second]


def test_hosts_that_come_and_go_are_counted_right(stage: Stage, permit: Permit) -> None:
    for _ in range(3):
        stage.provisioner.scale_to(3, permit, add=3 - len(stage.provisioner.list(permit)))
        stage.settle(STAGES[stage.name][2])
        listed = ids(stage.provisioner.list(permit))
        assert len(listed) == 3
        for instance in listed[:2]:
            stage.provisioner.drain(instance, permit)
        assert ids(stage.provisioner.list(permit)) == listed[2:]
    assert stage.read()["victims"] == []


def test_refused_credentials_are_known_for_what_they_are(stage: Stage, permit: Permit) -> None:
    stage.write(refuse_login=True)
    with pytest.raises(ProvisionerError) as refused:
        stage.provisioner.list(permit)
    assert refused.value.code == "auth"


def test_a_group_that_is_not_there_is_no_empty_group(stage: Stage, permit: Permit) -> None:
    elsewhere = {"a-scale-set": "wrong", "a-group": "wrong", "acme/flows": "acme/wrong", "fleet": "wrong"}
    text = json.dumps(preset(stage.name))
    for name, wrong in elsewhere.items():
        text = text.replace(f'"{name}"', f'"{wrong}"')
    with pytest.raises(ProvisionerError) as refused:
        from_mapping(json.loads(text), JOURNAL).list(permit)
    assert refused.value.code in ("exit", "malformed", "auth")


def commands_of(name: str) -> Commands:
    commands = read(preset(name))
    assert isinstance(commands, Commands)
    return commands


@pytest.mark.parametrize("name", STAGES)
def test_every_state_that_the_vendor_documents_means_something(name: str) -> None:
    """The printed files have one instance in each state; its id says what it is to become."""
    printed = (PRINTED / f"{name}.json").read_bytes()
    wanted = json.loads((PRINTED / f"{name}.meaning.json").read_text())

    found = {instance.id: instance.state for instance in listing.read(printed, commands_of(name).list_format)}

    assert found == {identifier: state for identifier, state in wanted.items() if state is not None}


# Of gh's runs only those are listed whose state was asked for.
@pytest.mark.parametrize("stage", sorted(set(STAGES) - {"github-actions"}), indirect=True)
def test_a_state_that_no_preset_knows_is_not_guessed_at(stage: Stage, permit: Permit) -> None:
    stage.provisioner.scale_to(1, permit, add=1)
    stage.settle("Rebooting")
    with pytest.raises(ProvisionerError, match="does not say what the state 'Rebooting' means") as refused:
        stage.provisioner.list(permit)
    assert refused.value.code == "malformed"


@pytest.mark.parametrize("stage", ["github-actions"], indirect=True)
def test_runs_that_are_listed_late_are_not_asked_for_again(stage: Stage, permit: Permit) -> None:
    stage.provisioner.scale_to(3, permit, add=3)
    stage.write(unlisted=3)
    assert ids(stage.provisioner.list(permit)) == []
    stage.provisioner.scale_to(4, permit, add=1)  # the controller counts those it asked for
    assert stage.read()["made"] == 4


@pytest.mark.parametrize("stage", ["github-actions"], indirect=True)
def test_runs_are_listed_whatever_they_wait_for_until_they_are_over(stage: Stage, permit: Permit) -> None:
    for state in ("requested", "waiting", "pending", "queued", "in_progress", "completed"):
        stage.write(instances=[{"name": "9000000001", "state": state}])
        wanted = {"completed": [], "in_progress": ["running"]}.get(state, ["pending"])
        assert [run.state for run in stage.provisioner.list(permit)] == wanted, state


@pytest.mark.parametrize("stage", ["github-actions"], indirect=True)
def test_a_run_that_moves_on_between_two_calls_counts_once(stage: Stage, permit: Permit) -> None:
    provisioner = stage.provisioner
    assert isinstance(provisioner, CommandProvisioner)
    moved = [
        listing.read(json.dumps([{"databaseId": 7, "status": state, "createdAt": None}]).encode(), commands.list_format)
        for commands in [commands_of(stage.name)]
        for state in ("queued", "in_progress")
    ]
    [run] = listing.together(moved)
    assert (run.id, run.state) == ("7", "running")


@pytest.mark.parametrize("stage", ["kubernetes"], indirect=True)
def test_a_pod_that_terminates_is_not_counted_although_its_phase_is_running(stage: Stage, permit: Permit) -> None:
    stage.provisioner.scale_to(2, permit, add=2)
    stage.settle("Running")
    first, second = ids(stage.provisioner.list(permit))
    stage.provisioner.drain(first, permit)
    [terminating] = [each for each in stage.read()["instances"] if each["name"] == first]
    assert terminating["state"] == "Running"
    assert ids(stage.provisioner.list(permit)) == [second]
    assert [argv[0] for argv in stage.changes()[-2:]] == ["delete", "scale"]


@pytest.mark.parametrize("stage", ["aws-asg"], indirect=True)
def test_instances_in_a_warm_pool_are_none_of_the_fleet(stage: Stage, permit: Permit) -> None:
    stage.write(instances=[{"name": "i-1", "state": "Warmed:Stopped"}, {"name": "i-2", "state": "InService"}], size=1)
    assert ids(stage.provisioner.list(permit)) == ["i-2"]
    stage.provisioner.drain("i-1", permit)
    assert stage.changes() == []


@pytest.mark.parametrize("stage", ["kubernetes"], indirect=True)
def test_a_pod_that_replaces_one_whose_removal_failed_half_way_is_removed_in_its_turn(
    stage: Stage, permit: Permit
) -> None:
    stage.provisioner.scale_to(2, permit, add=2)
    stage.settle("Running")
    first, second = ids(stage.provisioner.list(permit))
    stage.write(refuse_scale=True)
    with pytest.raises(ProvisionerError, match="unable to return a response"):
        stage.provisioner.drain(first, permit)
    kept, replacement = ids(stage.provisioner.list(permit))
    assert kept == second
    stage.write(refuse_scale=False)
    stage.settle("Running")
    stage.provisioner.drain(replacement, permit)
    assert ids(stage.provisioner.list(permit)) == [second]
    assert (stage.read()["size"], stage.read()["victims"]) == (1, [])
