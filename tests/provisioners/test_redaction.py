"""Nothing that could be a secret is reported."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomic_celery import payload
from atomic_celery.provisioners.redaction import MASK, redact, redact_end


@pytest.mark.parametrize(
    "name",
    [
        "GH_TOKEN",
        "client_secret",
        "PGPASSWORD",
        "MY_PASSWD",
        "AWS_SECRET_ACCESS_KEY",
        "A_CREDENTIAL",
        "HTTP_AUTH_HEADER",
    ],
)
def test_the_value_of_a_variable_with_a_secret_s_name(name: str) -> None:
    assert redact("denied: hunter2!", {name: "hunter2!"}) == f"denied: {MASK}"


def test_other_variables_and_values_too_short_for_a_secret_stay() -> None:
    assert redact("exit 1 in /usr/bin", {"AUTH": "1", "PATH": "/usr/bin"}) == "exit 1 in /usr/bin"


def test_a_secret_that_is_a_part_of_another() -> None:
    assert redact("abcdefgh abcd", {"A_KEY": "abcd", "B_KEY": "abcdefgh"}) == f"{MASK} {MASK}"


@pytest.mark.parametrize(
    "write",
    [
        str,
        repr,
        json.dumps,
        lambda secret: json.dumps(secret, ensure_ascii=False),
        quote,
        lambda secret: quote(secret, safe=""),
        quote_plus,
        lambda secret: base64.b64encode(secret.encode()).decode(),
    ],
)
def test_a_secret_in_each_form_that_programs_write_it_in(write: Callable[[str], str]) -> None:
    secret = "p@ss \"w\\ö'rd"
    assert re.fullmatch(r"refused ['\"]?\[redacted\]['\"]?!", redact(f"refused {write(secret)}!", {"A_TOKEN": secret}))


def test_a_line_of_a_secret_that_has_several() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQ\n-----END KEY-----\n"
    assert redact("no key: 'hkiG9w0BAQ'", {"APP_KEY": key}) == f"no key: '{MASK}'"


KEPT = 200


@given(
    secret=st.text("abcdefgh", min_size=4, max_size=300),
    before=st.text("xyz \n", max_size=400),
    after=st.text("xyz \n", max_size=400),
    times=st.integers(1, 5),
    cut=st.integers(0, 3000),
)
def test_no_half_of_a_secret_is_left_wherever_the_text_is_cut(
    secret: str, before: str, after: str, times: int, cut: int
) -> None:
    """Of what was said only the end is read, and of that the end is kept."""
    said = f"{before}{secret}{after}".encode() * times
    read = said[-cut:] if cut else b""
    kept = redact_end(read, {"A_TOKEN": secret}, KEPT, whole=len(read) == len(said))
    assert not set(kept) & set("bfgh")  # the mask has none of these
    assert len(kept) <= KEPT


def test_the_rest_of_a_key_that_began_before_the_cut() -> None:
    rest = b"QIBADANBgkq\nhkiG9w0BAQ==\n-----END RSA PRIVATE KEY-----\nin file x\nrefused"
    assert redact_end(rest, {}, KEPT, whole=False) == "in file x\nrefused"


def test_what_is_kept_is_counted_in_bytes() -> None:
    kept = redact_end("é".encode() * 1000, {}, 101, whole=True)
    assert kept == "é" * 50


@pytest.mark.parametrize(
    ("said", "secret"),
    [
        ("AccountName=x;AccountKey=s3cr3t==;EndpointSuffix=y", "s3cr3t"),
        ('{"private_key": "s3cr3t"}', "s3cr3t"),
        ("passphrase: s3cr3t", "s3cr3t"),
        ("Cookie: session=s3cr3t", "s3cr3t"),
        ("postgresql://u:p4ssw0rd@host/db", "p4ssw0rd"),
        ("Authorization: Bearer abcdefghijk.lmn", "abcdefghijk"),
        ("bearer AbCdEfGhIjKl+/=", "AbCdEfGhIjKl"),
        ("password=p4ssw0rd&user=u", "p4ssw0rd"),
        ('{"access_token": "s3cr3t value", "x": 1}', "s3cr3t value"),
        ("'client_secret': 's3cr3t'", "s3cr3t"),
        ("--token s3cr3t --name x", "s3cr3t"),
        ("--access-token=s3cr3t", "s3cr3t"),
        ("-password s3cr3t", "s3cr3t"),
        ("password = s3cr3t", "s3cr3t"),
        ("https://u:s3@cr3t@host/x", "s3"),
        ("https://u:s3@cr3t@host/x", "cr3t"),
        ("https://:s3cr3t@host", "s3cr3t"),
        ("--db-password=s3cr3t", "s3cr3t"),
        ("API-KEY: s3cr3t", "s3cr3t"),
        ("https://x/y?sv=1&sig=s3cr3t%3D&se=2", "s3cr3t"),
        ("token ghp_0123456789abcdef", "ghp_0123456789abcdef"),
        ("https://x-access-token%3Aghs_16C7e42F@github.com", "16C7e42F"),
        ("url=https%3A%2F%2Fx%3FeyJhbGciOi.eyJpc3Mi.c2ln-_x", "c2ln"),
        ("ghs_16C7e42F292c6912E7710c838347Ae178B4a", "16C7e42F"),
        ("ghs_123456_eyJhbGciOi.eyJpc3Mi.c2ln-_x", "c2ln"),
        ("github_pat_11ABC_defghi", "11ABC"),
        ("jwt eyJhbGciOi.eyJpc3Mi.c2ln-_x", "c2ln"),
        ("ya29.a0AfH6SMB-xyz", "a0AfH6SMB"),
        ("key AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIB\n-----END RSA PRIVATE KEY-----\nrest", "MIIEpAIB"),
        ("-----BEGIN PRIVATE KEY-----\nMIIEpAIB\ncut off", "MIIEpAIB"),
    ],
)
def test_what_looks_like_a_secret(said: str, secret: str) -> None:
    redacted = redact(said, {})
    assert secret not in redacted
    assert MASK in redacted


@pytest.mark.parametrize(
    "said",
    [
        "ERROR: (ResourceNotFound) The Resource 'a-scale-set' was not found.",
        "An error occurred (ValidationError) when calling the SetDesiredCapacity operation: above max value 20",
        'Error from server (NotFound): pods "worker-5d4f8c7b9c-00001" not found',
        "HTTP 404: Not Found (https://api.github.com/repos/acme/flows/actions/workflows)",
    ],
)
def test_what_an_operator_needs_stays(said: str) -> None:
    assert redact(said, {}) == said


HOSTILE = [
    "-" * 100_000,
    "a" * 100_000,
    "token" * 20_000,
    "token-" * 20_000,
    "-token" * 20_000,
    "token " * 20_000,
    "_key" * 25_000 + " ",
    "a://" * 25_000,
    "a://b:" * 20_000,
    "a://b:c@" * 15_000,
    "a.b+c-" * 20_000 + "://",
    "'" * 100_000,
    'token="' * 15_000,
    "token: '" * 15_000,
    "eyJ" * 35_000,
    "eyJa." * 20_000,
    "bearer " * 15_000,
    "AKIA" * 25_000,
    "ghp_" * 25_000,
    "-----BEGIN A " * 10_000,
    "-----BEGIN A-----" * 6_000,
    "=" * 100_000,
    " " * 100_000,
]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:12])
def test_hostile_text_takes_no_longer_than_it_is_long(text: str) -> None:
    """What grows with the square of a hundred thousand outlasts the test."""
    redact(text, {})


@pytest.mark.timeout(30)
@pytest.mark.parametrize("text", [*HOSTILE, "a-" * 50_000 + "://", "http" * 25_000], ids=lambda text: text[:12])
def test_hostile_text_is_shown_in_pages_as_fast(text: str) -> None:
    payload.without_passwords(f"{text} ://")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("https://u:p@ss@host/x", f"https://u:{MASK}@host/x"),
        ("amqp://:p@host", f"amqp://:{MASK}@host"),
        ("x postgresql+psycopg://u:p:q@h/d y", f"x postgresql+psycopg://u:{MASK}@h/d y"),
        ("http://host:8080/a@b", "http://host:8080/a@b"),
        ("no url: a:b@c", "no url: a:b@c"),
        ("a://u:p1@h b://v:p2@h", f"a://u:{MASK}@h b://v:{MASK}@h"),
    ],
)
def test_the_passwords_of_urls_are_shown_in_no_page(said: str, shown: str) -> None:
    assert payload.without_passwords(said) == shown.replace(MASK, payload.MASK)
