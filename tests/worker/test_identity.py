"""The id of a host, and the proof that another process is dead."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from atomic_celery import identity

SLEEPER = "import sys; print('up', flush=True); sys.stdin.read()"


def test_an_id_survives_a_restart_and_a_boot_does_not(tmp_path: Path) -> None:
    first = identity.take(tmp_path, journal="db", name="w1@h")
    first.release()
    second = identity.take(tmp_path, journal="db", name="w1@h")
    second.release()
    assert first.id == second.id
    assert first.boot != second.boot


def test_workers_that_run_at_the_same_time_have_ids_of_their_own(tmp_path: Path) -> None:
    both = [identity.take(tmp_path, journal="db", name="w1@h") for _ in range(2)]
    assert both[0].id != both[1].id
    both[0].release()
    again = identity.take(tmp_path, journal="db", name="w1@h")
    assert again.id == both[0].id, "the freed id is used before a new one is minted"
    for each in (again, both[1]):
        each.release()


def test_another_process_cannot_take_an_id_that_is_in_use(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from atomic_celery import identity;"
        f"print(identity.take(Path({str(tmp_path)!r}), journal='db', name='w').id)"
    )
    mine = identity.take(tmp_path, journal="db", name="w")
    theirs = _output_of(program)
    mine.release()
    assert theirs != mine.id
    assert _output_of(program) == mine.id


def test_databases_and_names_have_ids_of_their_own(tmp_path: Path) -> None:
    taken = [
        identity.take(tmp_path, journal=journal, name=name) for journal in ("db1", "db2") for name in ("w1@h", "w2@h")
    ]
    assert len({each.id for each in taken}) == 4
    for each in taken:
        each.release()


def test_a_host_without_a_writable_directory_still_gets_an_id(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    taken = identity.take(blocked / "below", journal="db", name="w")
    assert taken.id
    taken.release()


def test_a_live_process_is_not_proven_dead_and_a_dead_one_is() -> None:
    me = identity.this_process()
    child = subprocess.Popen([sys.executable, "-c", SLEEPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    other = replace(me, pid=child.pid, pid_started=identity.start_of(child.pid) or "")
    assert not other.proven_dead(me)
    child.kill()
    child.wait()
    assert other.proven_dead(me)
    child.communicate()


def test_a_process_that_was_killed_but_not_yet_collected_is_dead() -> None:
    me = identity.this_process()
    child = subprocess.Popen([sys.executable, "-c", SLEEPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    other = replace(me, pid=child.pid, pid_started=identity.start_of(child.pid) or "")
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert other.proven_dead(me)
    child.communicate()


def test_a_number_used_again_does_not_hide_that_the_first_process_is_gone() -> None:
    me = identity.this_process()
    predecessor = replace(me, pid_started="1")
    assert predecessor.proven_dead(me)


def test_nothing_is_proven_about_another_machine_or_another_boot_or_nothing_known() -> None:
    me = identity.this_process()
    gone = replace(me, pid_started="1")
    assert not replace(gone, machine="elsewhere").proven_dead(me)
    assert not replace(gone, machine_boot="earlier").proven_dead(me)
    assert not replace(gone, pid_started="").proven_dead(me)
    nowhere = replace(me, machine="", machine_boot="")
    assert not replace(gone, machine="", machine_boot="").proven_dead(nowhere)


def _output_of(program: str) -> str:
    run = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True, timeout=60)
    return run.stdout.strip()
