"""What keeps a worker from starting is said all at once, each with its fix; and what its options mean."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from atomic_celery import setup_check
from atomic_celery.config import Settings
from atomic_celery.errors import ConfigError
from atomic_celery.store import open_store
from tests.support.postgres import free_port
from tests.support.workers import Fleet


def said(text: str, settings: Settings | None = None) -> str:
    """Return what a worker says of its set-up."""
    return setup_check.examine(text, settings or Settings()).text()


def test_a_good_setup_has_no_problem(broker_url: str) -> None:
    if "postgresql" in broker_url:
        with closing(open_store(broker_url, Settings())) as store:
            store.schema.migrate()
    assert said(broker_url) == ""


def test_missing_tables_are_named_with_the_command(postgres_url: str) -> None:
    assert "\n    fix: run: celery -A <your project> atomic migrate" in said(f"atomic+{postgres_url}")


def test_tables_of_a_newer_release_are_refused(broker_url: str) -> None:
    with closing(open_store(broker_url, Settings())) as store:
        store.schema.migrate()
        store.schema._exec("note", name="schema_version", number=99)
        store.schema._exec("note", name="schema_floor", number=99)
    assert "\n    fix: upgrade atomic_celery on this machine" in said(broker_url)


def test_an_unreachable_database_is_named_without_its_password() -> None:
    text = said(f"atomic+postgresql://me:secret@127.0.0.1:{free_port()}/db")
    assert "cannot be used" in text
    assert "secret" not in text


def test_a_missing_driver_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    text = said("atomic+postgresql+psycopg://me@127.0.0.1/db")
    assert "psycopg is not installed" in text
    assert "pip install 'atomic_celery[psycopg3]'" in text


def test_a_sqlite_that_is_too_old_is_named_with_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlite3.sqlite_version_info", (3, 34, 1))
    monkeypatch.setattr("sqlite3.sqlite_version", "3.34.1")
    text = said(f"atomic+sqlite:///{tmp_path}/x.db")
    assert "this Python's SQLite is 3.34.1, and 3.35 or newer is needed" in text
    assert "fix: upgrade the system's libsqlite3" in text
    with pytest.raises(ConfigError, match=r"3\.34\.1"):
        open_store(f"atomic+sqlite:///{tmp_path}/x.db", Settings()).now_ms()


WITHOUT_SQLITE = """
import sys
sys.modules["_sqlite3"] = None  # as in a Python that was built without it
import kombu, atomic_celery
from atomic_celery.config import Settings
from atomic_celery.errors import SchemaMismatch
from atomic_celery.setup_check import examine
from atomic_celery.store import open_store
print(examine("atomic+sqlite:///x.db", Settings()).text())
store = open_store(sys.argv[1], Settings())
store.schema.migrate()
print(store.now_ms() > 0)
kombu.Connection(sys.argv[1]).default_channel.queue_declare("q")
try:
    open_store(sys.argv[1], Settings(prefix="other")).schema.require()
except SchemaMismatch as error:
    print(error.what)
"""


def test_a_python_without_sqlite_works_with_postgresql(postgres_url: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_SQLITE, f"atomic+{postgres_url}"],
        check=False,
        capture_output=True,
        cwd=tmp_path,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert "this Python was built without SQLite" in run.stdout
    assert "fix: use one that has it" in run.stdout
    assert "True\nthere are no other_ tables" in run.stdout


def test_all_problems_are_said_at_once(tmp_path: Path) -> None:
    settings = Settings(password_file=str(tmp_path / "absent"))
    text = said("atomic+mysql://host/db", settings)
    assert text.startswith(setup_check.HEADLINE)
    assert "absent" in text
    assert "no database is called 'mysql'" in text
    assert text.count("fix: ") == 2


def test_a_credential_that_others_can_read_is_warned_of_and_accepted(tmp_path: Path, postgres_url: str) -> None:
    parts = urlsplit(postgres_url)
    password = tmp_path / "password"
    password.write_text(parts.password or "")
    password.chmod(0o644)
    url = f"atomic+postgresql://{parts.username}@{parts.hostname}:{parts.port}{parts.path}"
    settings = Settings(password_file=str(password))
    with closing(open_store(url, settings)) as store:
        store.schema.migrate()
    findings = setup_check.examine(url, settings)
    assert findings.warnings == [f"other users can read the password-file {password}: chmod 600 {password}"]
    assert not findings.problems
    password.chmod(0o600)
    assert not setup_check.examine(url, settings).warnings


def test_a_credential_for_a_file_is_a_problem(tmp_path: Path, sqlite_url: str) -> None:
    password = tmp_path / "password"
    password.write_text("secret")
    text = said(f"atomic+{sqlite_url}", Settings(password_file=str(password)))
    assert "takes no password" in text
    assert "secret" not in text


def test_an_empty_credential_is_a_problem(tmp_path: Path, broker_url: str) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    assert "is empty" in said(broker_url, Settings(token_file=str(token)))


def test_a_credential_is_read_as_it_will_be_for_a_connection(
    tmp_path: Path, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("one\ntwo\n")
    assert "the token-file ~/token holds more than one line" in said(broker_url, Settings(token_file="~/token"))
    token.write_text("one\n")
    assert "cannot be read" not in said("atomic+mysql://host/db", Settings(token_file="~/token"))
    token.unlink()
    os.mkfifo(token)
    assert "is no regular file" in said(broker_url, Settings(token_file="~/token"))


def test_the_file_system_is_the_one_mounted_closest(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    shared = tmp_path / "a b"
    shared.mkdir()
    escaped = str(shared).replace(" ", "\\040")
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\nserver:/y {escaped} cifs rw 0 0\n")
    assert setup_check.file_system_of(Path("/var/x.db"), mounts) == "ext4"
    assert setup_check.file_system_of(tmp_path / "x.db", mounts) == "nfs4"
    assert setup_check.file_system_of(shared / "x.db", mounts) == "cifs"
    assert setup_check.file_system_of(tmp_path, tmp_path / "absent") is None


def test_sqlite_on_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_check, "file_system_of", lambda path: "nfs4")
    assert "network file system (nfs4)" in said(f"atomic+sqlite:///{tmp_path}/x.db")


def test_a_worker_whose_setup_is_incomplete_exits_1_and_says_why(fleet: Fleet) -> None:
    options = ("--prefix", "Wrong", "--label", "no-equals-sign")
    worker = fleet.worker(options=options).start()
    assert worker.wait() == 1
    assert setup_check.HEADLINE in worker.log
    assert "fix: " in worker.log
    assert "Traceback" not in worker.log


def test_a_wrong_setting_hides_nothing_else_that_is_missing(fleet: Fleet) -> None:
    url = f"atomic+postgresql+nodriver://me@127.0.0.1:{free_port()}/db"
    worker = fleet.worker(options=("--prefix", "Wrong"), env={"TEST_BROKER": url}).start()
    assert worker.wait() == 1
    assert "prefix must be" in worker.log
    assert "nodriver" in worker.log
    assert worker.log.count("fix: ") == 2
    assert "Traceback" not in worker.log


def test_a_worker_without_tables_exits_1(postgres_url: str, tmp_path: Path) -> None:
    with closing(Fleet(postgres_url, tmp_path)) as fleet:
        worker = fleet.worker(options=("--prefix", "elsewhere")).start()
        assert worker.wait() == 1
        assert "there are no elsewhere_ tables" in worker.log


def test_options_reach_the_list_of_hosts(fleet: Fleet) -> None:
    options = ("--slots", "3", "--label", "zone=a,b", "--label", "kind=gpu", "--provider-id", "vm-1")
    worker = fleet.worker(options=options).start()
    ready = worker.wait_line("ready")
    assert (ready["slots"], ready["instance"]) == ("3", "vm-1")
    fleet.wait_until(lambda: fleet.store.hosts.list()[0].queues, what="a report")
    [host] = fleet.store.hosts.list()
    assert (host.id, host.slots, host.provider_id) == (ready["host"], 3, "vm-1")
    assert host.labels == {"zone": "a,b", "kind": "gpu"}
    assert list(host.queues) == ["celery"]
    assert host.versions["celery"]
    assert host.pid == worker.pid


def test_environment_and_settings_do_what_the_options_do(database_url: str, tmp_path: Path) -> None:
    conf = {"atomic_provider_id": "from-conf", "atomic_labels": {"a": "b"}}
    with closing(Fleet(database_url, tmp_path, conf=conf, settings={"ATOMIC_LABELS": "c=d"})) as fleet:
        fleet.worker().start().wait_line("ready")
        [host] = fleet.store.hosts.list()
        assert (host.provider_id, host.labels) == ("from-conf", {"c": "d"})


@pytest.mark.parametrize(
    ("options", "env", "expected"),
    [
        (("--provider-id", "said"), {"ATOMIC_PROVIDER_ID": "variable", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "said"),
        ((), {"ATOMIC_PROVIDER_ID": "variable", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "variable"),
        ((), {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "pod-7"}, "pod-7"),
        ((), {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": ""}, socket.gethostname()),
        ((), {"HOSTNAME": "no-pod"}, None),
    ],
)
def test_where_a_host_runs_is_an_option_a_variable_or_the_name_of_its_pod(
    fleet: Fleet, options: tuple[str, ...], env: dict[str, str], expected: str | None
) -> None:
    fleet.worker(options=options, env=env).start().wait_line("ready", **({"instance": expected} if expected else {}))
    [host] = fleet.store.hosts.list()
    assert host.provider_id == expected


def test_json_lines_are_all_that_stands_on_stdout(fleet: Fleet) -> None:
    worker = fleet.worker(options=("--json", "--idle-exit", "300")).start()
    assert worker.wait() == 0
    events = [json.loads(line) for line in worker.lines]
    assert [event["event"] for event in events] == ["ready", "draining", "drained"]
    assert all(event["at"] for event in events)


def test_without_a_number_half_the_processors_are_slots(fleet: Fleet) -> None:
    worker = fleet.worker(slots=0).start()
    assert int(worker.wait_line("ready")["slots"]) == max(1, min((os.cpu_count() or 2) // 2, 16))


@pytest.mark.parametrize(("results", "count"), [("atomic", 0), ("file://{directory}", 1)])
def test_that_results_are_elsewhere_is_said_once(broker_url: str, tmp_path: Path, results: str, count: int) -> None:
    directory = tmp_path / "results"
    directory.mkdir()
    url = broker_url.removeprefix("atomic+")
    with closing(Fleet(url, tmp_path, results=results.format(directory=directory))) as fleet:
        worker = fleet.worker().start()
        assert fleet.send("add", 1, 2).get(timeout=60) == 3
        assert worker.log.count("which is not where the messages are") == count


def test_of_several_brokers_a_worker_takes_the_first_that_can_be_used(fleet: Fleet) -> None:
    away = f"atomic+postgresql://me:secret@127.0.0.1:{free_port()}/db"
    fleet.send("note", "n")
    worker = fleet.worker(options=("--idle-exit", "10000"), env={"TEST_BROKER": f"{away};{fleet.url}"}).start()
    assert worker.wait(60) == 0
    assert fleet.ledger.rows() == ["n"]
    assert "warning: the database atomic+postgresql://me:***@127.0.0.1" in worker.log
    assert "secret" not in worker.log


def test_when_none_of_several_brokers_can_be_used_all_are_named(fleet: Fleet) -> None:
    ports = [free_port(), free_port()]
    urls = ";".join(f"atomic+postgresql://me@127.0.0.1:{port}/db" for port in ports)
    worker = fleet.worker(env={"TEST_BROKER": urls}).start()
    assert worker.wait(60) == 1
    assert all(f"127.0.0.1:{port}" in worker.log for port in ports)
    assert worker.log.count("fix: ") == 2
