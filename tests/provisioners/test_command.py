"""Commands run without a shell, in time or not at all, and what goes wrong has a code and no secret in it."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atomic_celery.errors import CallGivenUp, ProvisionerError
from atomic_celery.fleet.provisioner import Permit
from atomic_celery.provisioners import CommandProvisioner
from atomic_celery.provisioners.configuration import Commands, read
from tests.provisioners.conftest import ids, lives
from tests.support.waiting import wait_until

Put = Callable[[str, str], Path]


def provisioner(**given: Any) -> CommandProvisioner:
    commands = read({"kind": "command", "up": ["up"], "down": ["down"], "list": ["list-hosts"], **given})
    assert isinstance(commands, Commands)
    return CommandProvisioner(commands)


@pytest.fixture
def hosts(programs: Put, tmp_path: Path) -> Callable[..., None]:
    """Return what decides which hosts `list-hosts` prints."""
    programs("list-hosts", f"cat {tmp_path}/hosts")

    def decide(*names: str, state: str = "running") -> None:
        (tmp_path / "hosts").write_text(json.dumps([{"id": name, "state": state} for name in names]))

    decide()
    return decide


@pytest.fixture
def noted(programs: Put, tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    """Return what returns the calls of `up` and `down`, with their arguments and variables."""
    script = f"""
        {{ printf '%s' "$(basename "$0")"; for word in "$@"; do printf '\\037%s' "$word"; done
          printf '\\036%s' "${{ATOMIC_TARGET-}}" "${{ATOMIC_ADD-}}" "${{ATOMIC_PROVIDER_ID-}}" "${{ATOMIC_REMAINING-}}"
          printf '\\n'; }} >> {tmp_path}/noted
    """
    programs("up", script)
    programs("down", script)

    def calls() -> list[dict[str, Any]]:
        path = tmp_path / "noted"
        text = path.read_text() if path.exists() else ""
        return [_call(line) for line in text.split("\n") if line]

    return calls


def _call(line: str) -> dict[str, Any]:
    words, *variables = line.split("\036")
    return {"argv": words.split("\037"), "variables": [value for value in variables if value]}


def argvs(calls: list[dict[str, Any]]) -> list[list[str]]:
    return [call["argv"] for call in calls]


def test_up_gets_the_count_and_the_difference(hosts: Any, noted: Any, permit: Permit) -> None:
    hosts("a")
    provisioner(up=["up", "--count", "{target}", "+{add}"]).scale_to(4, permit, add=3)
    [call] = noted()
    assert call["argv"] == ["up", "--count", "4", "+3"]
    assert call["variables"] == ["4", "3"]


def test_up_each_runs_once_for_each_host(hosts: Any, noted: Any, permit: Permit) -> None:
    hosts("a")
    provisioner(up=["up", "{add}"], upEach=True).scale_to(4, permit, add=3)
    assert argvs(noted()) == [["up", "1"]] * 3


def test_up_adds_no_more_than_are_missing_and_no_more_than_asked(hosts: Any, noted: Any, permit: Permit) -> None:
    hosts("a", "b")
    made = provisioner(up=["up", "{add}"])
    made.scale_to(2, permit, add=2)
    made.scale_to(1, permit, add=1)
    assert noted() == []
    made.scale_to(5, permit, add=1)
    assert argvs(noted()) == [["up", "1"]]


def test_down_gets_the_id_and_what_remains(hosts: Any, noted: Any, permit: Permit) -> None:
    hosts("a", "b", "c")
    provisioner(down=[["down", "--id={id}"], ["down", "to", "{remaining}"]]).drain("b", permit)
    assert argvs(noted()) == [["down", "--id=b"], ["down", "to", "2"]]
    assert noted()[0]["variables"] == ["b", "2"]


@pytest.mark.parametrize("state", ["draining", "gone"])
def test_down_does_not_run_for_what_is_going_or_gone(hosts: Any, noted: Any, permit: Permit, state: str) -> None:
    hosts(*(["b"] if state == "draining" else []), state="draining")
    provisioner().drain("b", permit)
    assert noted() == []


def test_no_shell_reads_an_argument_and_a_value_is_no_placeholder(hosts: Any, noted: Any, permit: Permit) -> None:
    hosts("{remaining}", "$(touch x); `id` 'b")
    made = provisioner(down=["down", "{id}", "$HOME", "*", "a b", "{other}"])
    made.drain("{remaining}", permit)
    made.drain("$(touch x); `id` 'b", permit)
    rest = ["$HOME", "*", "a b", "{other}"]
    assert argvs(noted()) == [["down", "{remaining}", *rest], ["down", "$(touch x); `id` 'b", *rest]]


def test_a_command_has_the_environment_of_the_controller(
    programs: Put, permit: Permit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_LOGIN_OF_THE_TOOL", "vm-7")
    programs("list-hosts", """printf '[{"id": "%s", "state": "running"}]' "$A_LOGIN_OF_THE_TOOL" """)
    assert ids(provisioner().list(permit)) == ["vm-7"]


def test_several_list_commands_report_together(programs: Put, permit: Permit) -> None:
    programs("one", """echo '[{"id": 1, "state": "pending"}, {"id": 2, "state": "pending"}]'""")
    programs("two", """echo '[{"id": 2, "state": "running"}, {"id": 3, "state": "running"}]'""")
    listed = provisioner(list=[["one"], ["two"]]).list(permit)
    assert [(each.id, each.state) for each in listed] == [("1", "pending"), ("2", "running"), ("3", "running")]


def test_a_second_command_does_not_run_when_the_first_failed(
    hosts: Any, noted: Any, programs: Put, permit: Permit
) -> None:
    hosts("a")
    programs("fail", "exit 3")
    with pytest.raises(ProvisionerError):
        provisioner(down=[["fail"], ["down"]]).drain("a", permit)
    assert noted() == []


def test_a_missing_program_is_named_and_its_arguments_are_not(permit: Permit) -> None:
    with pytest.raises(
        ProvisionerError, match="the list command no-such-program cannot be started: No such file"
    ) as refused:
        provisioner(list=["no-such-program", "--secret-argument"]).list(permit)
    assert refused.value.code == "missing-cli"
    assert "argument" not in str(refused.value)


def test_a_program_that_may_not_be_run_is_missing_too(tmp_path: Path, permit: Permit) -> None:
    path = tmp_path / "plain"
    path.write_text("no program")
    with pytest.raises(
        ProvisionerError,
        match=rf"the list command {path} cannot be started: Permission denied; make it executable \(chmod \+x\)",
    ) as refused:
        provisioner(list=[str(path)]).list(permit)
    assert refused.value.code == "missing-cli"


def test_an_exit_code_is_reported_with_the_error_output_without_secrets(
    programs: Put, permit: Permit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUD_TOKEN", "hunter2!")
    programs("list-hosts", 'echo "on stdout"; echo "quota exceeded for hunter2! password=p4ss" >&2; exit 7')
    with pytest.raises(ProvisionerError) as refused:
        provisioner(list=["list-hosts", "--an-argument"]).list(permit)
    assert refused.value.code == "exit"
    assert (
        str(refused.value)
        == "the list command list-hosts exited with 7: quota exceeded for [redacted] password=[redacted]"
    )


@pytest.mark.parametrize(("command", "what"), [("up", "the up command"), ("down", "the down command")])
def test_a_failure_says_which_command_it_was_and_the_program_as_it_is_configured(
    hosts: Any, programs: Put, permit: Permit, command: str, what: str
) -> None:
    hosts("a")
    program = programs("platform", "exit 3")
    made = provisioner(**{command: [str(program), "--an-argument"]})
    with pytest.raises(ProvisionerError) as refused:
        made.scale_to(2, permit, add=1) if command == "up" else made.drain("a", permit)
    assert str(refused.value) == f"{what} {program} exited with 3: it said nothing"


def test_a_missing_program_is_named_with_its_whole_path(permit: Permit) -> None:
    with pytest.raises(ProvisionerError) as refused:
        provisioner(list=["/opt/nope/list"]).list(permit)
    said = "the list command /opt/nope/list cannot be started: No such file or directory; install it or correct PATH"
    assert str(refused.value) == said


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGPIPE])
def test_a_program_that_a_signal_ends(programs: Put, permit: Permit, signum: int) -> None:
    programs("list-hosts", f"kill -{signum:d} $$; sleep 1000")
    with pytest.raises(
        ProvisionerError, match=f"the list command list-hosts was ended by signal {signum:d}: it said nothing"
    ) as refused:
        provisioner().list(permit)
    assert refused.value.code == "exit"


def test_a_program_gets_the_environment_as_it_is_and_no_descriptor_of_ours(
    programs: Put, permit: Permit, tmp_path: Path
) -> None:
    programs("list-hosts", f"cat /proc/$$/environ > {tmp_path}/environ; ls /proc/$$/fd > {tmp_path}/open; echo '[]'")
    assert list(provisioner().list(permit)) == []
    given = dict(part.split(b"=", 1) for part in (tmp_path / "environ").read_bytes().split(b"\0") if part)
    assert given == dict(os.environb)
    # From 10 on they are the shell's own.
    assert {number for number in map(int, (tmp_path / "open").read_text().split()) if number < 10} == {0, 1, 2}


def test_of_long_error_output_the_end_is_kept_and_no_half_of_a_secret(
    programs: Put, permit: Permit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUD_TOKEN", "abcdefgh")
    programs("list-hosts", "for i in $(seq 20000); do printf abcdefgh; done >&2; echo the end >&2; exit 1")
    with pytest.raises(ProvisionerError) as refused:
        provisioner().list(permit)
    text = str(refused.value)
    assert text.endswith("the end")
    assert len(text.encode()) < 17 * 1024
    assert "abcdefgh" not in text
    assert "efgh" not in text


def test_what_is_not_read_of_endless_error_output_may_cut_a_secret_and_nothing_of_it_is_said(
    programs: Put, permit: Permit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret = "s3cr3t-" * 15_000  # so long that a million bytes of it are a few masks
    (tmp_path / "complaint").write_text(f"{secret * 20}\nthe end\n")
    monkeypatch.setenv("CLOUD_TOKEN", secret)
    programs("list-hosts", f"cat {tmp_path}/complaint >&2; exit 1")
    with pytest.raises(ProvisionerError) as refused:
        provisioner().list(permit)
    assert str(refused.value) == "the list command list-hosts exited with 1: the end"


@pytest.mark.parametrize("stream", [1, 2])
def test_a_program_that_prints_without_end_is_ended_before_it_fills_the_disk(
    programs: Put, permit: Permit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: int
) -> None:
    monkeypatch.setattr("atomic_celery.provisioners.programs._MOST_OUTPUT_BYTES", 1024 * 1024)
    programs("list-hosts", f"echo $$ > {tmp_path}/pid; exec yes >&{stream}")
    with pytest.raises(ProvisionerError, match="the list command list-hosts printed more than 1 MiB") as refused:
        provisioner().list(permit)
    assert refused.value.code == "malformed"
    assert not lives(int((tmp_path / "pid").read_text()))


def test_a_machine_that_can_run_nothing_is_no_missing_program(
    hosts: Any, permit: Permit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SO_MUCH", "x" * 3_000_000)  # more than any program can be given
    with pytest.raises(
        ProvisionerError, match="the list command list-hosts cannot be run: Argument list too long"
    ) as refused:
        provisioner().list(permit)
    assert refused.value.code == "exit"


def test_nowhere_to_keep_what_is_printed(
    hosts: Any, permit: Permit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(
        ProvisionerError, match="the list command list-hosts cannot be run: No such file or directory"
    ) as refused:
        provisioner().list(permit)
    assert refused.value.code == "exit"


@pytest.mark.parametrize(("how", "begun"), [("exit 3", 2), ("sleep 1000", 3)])
def test_up_each_that_fails_half_way_says_how_many_are_on_their_way(
    hosts: Any, programs: Put, tmp_path: Path, permit: Permit, how: str, begun: int
) -> None:
    """One that took too long may have been asked for: better to count it than to ask twice."""
    count = tmp_path / "count"
    programs("up", f"echo up >> {count}; test $(wc -l < {count}) -lt 3 || {how}")
    with pytest.raises(ProvisionerError) as failed:
        provisioner(upEach=True, timeoutMs=3000).scale_to(5, permit, add=5)
    assert failed.value.begun == begun


def test_garbage_changes_nothing_and_shows_no_secret(
    programs: Put, noted: Any, permit: Permit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUD_TOKEN", "hunter2!")
    programs("list-hosts", """echo '[{"id": "a", "state": "hunter2!"}]'""")
    made = provisioner()
    for act in (
        lambda: made.list(permit),
        lambda: made.scale_to(3, permit, add=3),
        lambda: made.drain("a", permit),
    ):
        with pytest.raises(ProvisionerError, match=r"its state must be one of .* got '\[redacted\]'") as refused:
            act()
        assert refused.value.code == "malformed"
        assert "hunter2!" not in str(refused.value)
    assert noted() == []


@pytest.mark.parametrize(
    ("program", "exit_code", "said", "code"),
    [
        ("aws", 254, "An error occurred (ExpiredToken) when calling the X operation: expired", "auth"),
        ("aws", 253, "Unable to locate credentials. You can configure credentials by running aws login", "auth"),
        ("aws", 254, "An error occurred (Throttling) when calling the X operation: Rate exceeded", "exit"),
        ("az", 1, "ERROR: Please run 'az login' to setup account.", "auth"),
        ("az", 1, "ERROR: AADSTS700082: The refresh token has expired", "auth"),
        ("az", 1, "ERROR: (QuotaExceeded) Operation could not be completed", "exit"),
        ("gcloud", 1, "ERROR: You do not currently have an active account selected.", "auth"),
        ("gcloud", 1, "ERROR: Quota 'CPUS' exceeded.  Limit: 24.0 in region europe-west1.", "exit"),
        ("kubectl", 1, "error: You must be logged in to the server (Unauthorized)", "auth"),
        ("kubectl", 1, "Unable to connect to the server: dial tcp 10.0.0.1:443: i/o timeout", "exit"),
        ("gh", 4, "", "auth"),
        ("gh", 1, "HTTP 401: Bad credentials (https://api.github.com/)", "auth"),
        ("gh", 1, "HTTP 403: API rate limit exceeded for installation ID 1", "exit"),
        ("my-own-tool", 1, "Unauthorized", "exit"),
    ],
)
def test_the_words_of_a_refusal(
    programs: Put, permit: Permit, program: str, exit_code: int, said: str, code: str
) -> None:
    programs(program, f"cat >&2 <<'SAID'\n{said}\nSAID\nexit {exit_code}")
    with pytest.raises(ProvisionerError) as refused:
        provisioner(list=[program]).list(permit)
    assert refused.value.code == code


def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(family: Any, permit: Permit) -> None:
    with pytest.raises(
        ProvisionerError, match=r"the list command list-hosts took longer than 12 s and was ended"
    ) as refused:
        provisioner(timeoutMs=12_000).list(permit)
    assert refused.value.code == "timeout"
    assert family()
    wait_until(lambda: not any(map(lives, family())), 60)


@pytest.mark.parametrize("how", ["given up", "lapsed"])
def test_a_call_that_is_given_up_ends_with_all_that_it_started(family: Any, how: str) -> None:
    given_up, leads = threading.Event(), [True]
    permit = Permit(lambda: leads[0], given_up)
    caught: list[BaseException] = []

    def call() -> None:
        try:
            provisioner().list(permit)
        except CallGivenUp as error:
            caught.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    started = wait_until(family)
    if how == "given up":
        given_up.set()
    else:
        leads[0] = False
    thread.join(60)
    assert len(caught) == 1
    wait_until(lambda: not any(map(lives, started)), 60)


def test_nothing_is_run_without_the_right_to(hosts: Any, noted: Any) -> None:
    permit = Permit(lambda: False, threading.Event())
    made = provisioner()
    for act in (
        lambda: made.list(permit),
        lambda: made.scale_to(3, permit, add=3),
        lambda: made.drain("a", permit),
    ):
        with pytest.raises(CallGivenUp):
            act()
    assert noted() == []


def test_the_right_is_asked_for_before_each_command(hosts: Any, noted: Any) -> None:
    asked = []

    def leads() -> bool:
        asked.append(len(noted()))
        return asked[-1] < 2

    hosts()
    with pytest.raises(CallGivenUp):
        provisioner(upEach=True).scale_to(5, Permit(leads, threading.Event()), add=5)
    assert len(noted()) == 2


def test_what_a_command_leaves_running_does_not_hold_it_up(programs: Put, tmp_path: Path, permit: Permit) -> None:
    programs("list-hosts", f"sleep 1000 & echo $! > {tmp_path}/left; echo '[]'")
    assert list(provisioner(timeoutMs=20_000).list(permit)) == []
    os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)


def test_changes_run_one_at_a_time(programs: Put, hosts: Any, tmp_path: Path, permit: Permit) -> None:
    programs("up", f"mkdir {tmp_path}/alone || echo crowded >> {tmp_path}/crowded; sleep 0.2; rmdir {tmp_path}/alone")
    made = provisioner()
    threads = [threading.Thread(target=made.scale_to, args=(3, permit), kwargs={"add": 3}) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not (tmp_path / "crowded").exists()
