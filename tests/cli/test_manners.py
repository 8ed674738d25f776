"""Exit codes, what goes to stderr, and colour only where somebody sees it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.cli.conftest import PATIENCE_S, CommandLine, World, project

ESCAPE = "\x1b["


@pytest.fixture
def cli(sqlite_url: str, tmp_path: Path) -> CommandLine:
    return project(tmp_path, f"atomic+{sqlite_url}")


@pytest.fixture
def broker_url(sqlite_url: str) -> str:
    return f"atomic+{sqlite_url}"


@pytest.mark.parametrize(
    "words",
    [
        ("statsu",),
        ("status", "--nope"),
        ("--nope", "status"),
        ("messages", "list", "--state", "asleep"),
        ("messages", "list", "--limit", "0"),
        ("messages", "show"),
        ("messages", "requeue"),
        ("messages", "requeue", "1", "--state", "dead"),
        ("messages", "delete", "--state", "dead"),
        ("drain",),
    ],
    ids=" ".join,
)
def test_wrong_use_ends_with_64_and_says_so_on_stderr(cli: CommandLine, words: tuple[str, ...]) -> None:
    run = cli(*words)

    assert (run.returncode, run.stdout) == (64, "")
    assert "Error: " in run.stderr


def test_a_misspelt_command_is_corrected(cli: CommandLine) -> None:
    assert "Did you mean one of these?\n    status" in cli("statsu").stderr


def test_help_is_no_error(cli: CommandLine) -> None:
    run = cli("--help")

    assert run.returncode == 0
    assert "Look after the fleet" in run.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--prefix", "Bad", "status"), "prefix must be 1 to 24 characters"),
        (("--password-file", "a", "--token-file", "b", "status"), "exactly one credential"),
        (("--password-file", "a", "status", "--auth", "aws"), "exactly one credential"),
    ],
)
def test_a_wrong_setting_ends_with_1(cli: CommandLine, words: tuple[str, ...], says: str) -> None:
    run = cli(*words)

    assert (run.returncode, run.stdout) == (1, "")
    assert says in run.stderr


def test_another_broker_is_refused_without_a_word_of_its_url(tmp_path: Path) -> None:
    run = project(tmp_path, "amqp://user:hunter2@host//")("status")

    assert (run.returncode, run.stdout) == (1, "")
    assert "broker_url names no atomic_celery database" in run.stderr
    assert "hunter2" not in run.stderr


def test_the_option_b_names_another_database(cli: CommandLine, world: World, tmp_path: Path) -> None:
    elsewhere = project(tmp_path, "amqp://")
    url = f"atomic+sqlite:///{tmp_path / 'atomic.db'}"

    assert elsewhere.celery("-b", url, "atomic", "status").returncode == 0


def test_with_json_an_error_is_json_on_stderr(cli: CommandLine) -> None:
    run = cli("status", "--json")

    assert (run.returncode, run.stdout) == (1, "")
    assert json.loads(run.stderr)["kind"] == "SchemaMismatch"


def test_a_pipe_gets_no_colour(cli: CommandLine, world: World) -> None:
    world.publish("one")

    assert ESCAPE not in cli("status").stdout


@pytest.mark.parametrize(
    ("options", "env", "colored"),
    [
        ((), {}, True),
        ((), {"NO_COLOR": "1"}, False),
        (("--no-color",), {}, False),
    ],
)
def test_a_terminal_gets_colour_unless_told_otherwise(
    cli: CommandLine, world: World, options: tuple[str, ...], env: dict[str, str], colored: bool
) -> None:
    world.publish("one")

    assert (ESCAPE in on_terminal(cli, *options, "atomic", "status", env=env)) is colored


def on_terminal(cli: CommandLine, *words: str, env: dict[str, str]) -> str:
    """Run a command whose stdout is a terminal, and return what it shows."""
    screen, tty = pty.openpty()
    with subprocess.Popen(
        cli.command(*words), cwd=cli.directory, env=cli.environment | env, stdin=subprocess.DEVNULL, stdout=tty
    ) as process:
        os.close(tty)
        shown = b""
        while chunk := _read(screen):
            shown += chunk
        assert process.wait(PATIENCE_S) == 0
    os.close(screen)
    return shown.decode()


def _read(screen: int) -> bytes:
    try:
        return os.read(screen, 65536)
    except OSError:  # Linux ends a terminal with an error
        return b""


@pytest.mark.parametrize("option", ["--password-file", "--token-file"])
def test_the_password_may_be_in_a_file(postgres_url: str, tmp_path: Path, option: str) -> None:
    url = urlsplit(postgres_url)
    assert url.password is not None
    secret = tmp_path / "secret"
    secret.write_text(f"{url.password}\n")
    secret.chmod(0o600)
    bare = url._replace(netloc=f"{url.username}@{url.hostname}:{url.port}").geturl()

    cli = project(tmp_path, f"atomic+{bare}")

    for words in ((option, str(secret), "migrate"), ("status", option, str(secret))):
        run = cli(*words)
        assert run.returncode == 0, run.stderr
