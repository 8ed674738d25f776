"""What a provisioner says and is told."""

from __future__ import annotations

import pickle
import threading

import pytest

from atomic_celery import errors
from atomic_celery.fleet.provisioner import Instance, Permit


@pytest.mark.parametrize(
    ("instance_id", "state", "said"),
    [
        ("", "running", "id must be"),
        (7, "running", "got 7"),
        ("vm-1", "RUNNING", "'vm-1': its state must be one of"),
        ("vm-1", [], "'vm-1': its state must be one of"),
    ],
)
def test_an_instance_that_makes_no_sense_is_malformed(instance_id: str, state: str, said: str) -> None:
    with pytest.raises(errors.ProvisionerError, match=said) as caught:
        Instance(id=instance_id, state=state)  # type: ignore[arg-type]
    assert caught.value.code == "malformed"


@pytest.mark.parametrize("since_ms", [1.5, "2026-11-14", -1, 0, True, 10**18, 1_700_000_000])
def test_a_moment_that_makes_no_sense_is_malformed(since_ms: int) -> None:
    with pytest.raises(errors.ProvisionerError, match="'vm-1': since_ms must be whole milliseconds since 1970"):
        Instance(id="vm-1", state="running", since_ms=since_ms)


@pytest.mark.parametrize("host_id", [7, "a\0", "\ud800", "x" * 513])
def test_the_id_of_a_host_that_makes_no_sense_is_malformed(host_id: str) -> None:
    with pytest.raises(errors.ProvisionerError, match="'vm-1': its host's id must") as caught:
        Instance(id="vm-1", state="running", host_id=host_id)
    assert caught.value.code == "malformed"


def test_a_permit_ends_with_the_lead() -> None:
    leads = [True]
    permit = Permit(lambda: leads[0], threading.Event())
    permit.require("adding hosts")
    leads[0] = False
    with pytest.raises(errors.CallGivenUp, match="adding hosts: given up, as the controller leads no more or ends"):
        permit.require("adding hosts")


def test_a_permit_ends_when_the_call_is_given_up() -> None:
    given_up = threading.Event()
    permit = Permit(lambda: True, given_up)
    assert not permit.wait(0)
    given_up.set()
    assert permit.wait(0)
    with pytest.raises(errors.CallGivenUp):
        permit.require("adding hosts")


def test_the_errors_survive_a_pickle() -> None:
    error = pickle.loads(pickle.dumps(errors.ProvisionerError("auth", "refused", begun=2)))
    assert (error.code, str(error), error.begun) == ("auth", "refused", 2)
    given_up = pickle.loads(pickle.dumps(errors.CallGivenUp("listing")))
    assert given_up.doing == "listing"
