"""The password of a URL is seen by the database and by nobody else."""

from __future__ import annotations

import logging

import kombu
import pytest
from celery import Celery

import atomic_celery  # noqa: F401 - bare kombu loads no entry points before it connects
from tests.support.daemons import free_port

PASSWORD = "s3cr3t-p%40ss"
PLAIN = "s3cr3t-p@ss"


@pytest.fixture
def secret_url() -> str:
    return f"atomic+postgresql://someone:{PASSWORD}@127.0.0.1:{free_port()}/nowhere"


def hidden(text: str) -> bool:
    return PASSWORD not in text and PLAIN not in text


def test_a_connection_shows_its_url_without_the_password(secret_url: str) -> None:
    connection = kombu.Connection(secret_url)
    for text in (connection.as_uri(), repr(connection), str(connection)):
        assert hidden(text)
        assert "someone:***@127.0.0.1" in text
    assert PASSWORD in connection.as_uri(include_password=True)


def test_an_alternate_that_was_switched_to_hides_it_too(secret_url: str) -> None:
    connection = kombu.Connection(f"{secret_url};{secret_url}")
    connection.maybe_switch_next()
    assert hidden(connection.as_uri())
    assert "someone:***@127.0.0.1" in connection.as_uri()


def test_an_error_names_no_password(secret_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with kombu.Connection(secret_url) as connection, pytest.raises(Exception) as refused:  # noqa: PT011
        connection.connect()
    for error in (refused.value, refused.value.__cause__):
        assert hidden(repr(error) + str(error))
    assert hidden(caplog.text)


def test_celery_shows_it_nowhere(secret_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with Celery("secrets", broker=secret_url, set_as_current=False) as app:
        app.conf.task_publish_retry_policy = {"max_retries": 1, "interval_start": 0, "interval_step": 0}
        with pytest.raises(Exception) as refused:  # noqa: PT011
            app.send_task("a.task")
        assert hidden(str(refused.value))
        assert hidden(app.connection_for_write().as_uri())
        assert hidden(app.bugreport())
    assert hidden(caplog.text)


@pytest.mark.parametrize("url", ["atomic+postgresql://u:p@h:port/db", "atomic+oracle://u:p@h/db"])
def test_a_url_that_cannot_be_read_is_not_shown_at_all(url: str) -> None:
    assert kombu.Connection(url).as_uri() == "atomic+invalid://"
