"""Keeping secrets out of what is reported: a program's error output may well quote the credential that was refused."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote, quote_plus

MASK = "[redacted]"

_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|KEY|CREDENTIAL|AUTH", re.IGNORECASE)
_SHORTEST = 4  # a variable like AUTH=1 holds no secret, and its value is everywhere
_SHORTEST_LINE = 8

_NAMED = (  # in any part of a name
    r"[\w-]*(?:(?:access|account|api|client|private|shared)[-_ ]?key|auth|cookie|credential|passphrase|passwd|password"
    r"|pwd|secret|signature|\bsig|token)[\w-]*"
)
_NAME = rf"(?=(?P<name>{_NAMED}))(?P=name)"  # a lookahead is tried once: no text takes longer than it is long
_EDGE = r"(?:\b|(?<=%[0-9A-Fa-f]{2}))"  # also behind what is quoted in a URL
_VALUE = r"\"[^\"]*\"|'[^']*'|[^\s,;&\"'}]+"
_PATTERNS = (
    # Things that are secret whatever stands before them, longest first.
    (re.compile(r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)", re.DOTALL), MASK),
    (re.compile(rf"{_EDGE}(?:github_pat_\w+|gh[a-z]_[\w.-]+)"), MASK),
    (re.compile(rf"{_EDGE}eyJ[\w-]+\.[\w-]+(?:\.[\w-]*)?"), MASK),  # a JSON web token
    (re.compile(rf"{_EDGE}ya29\.[\w.-]+"), MASK),
    (re.compile(rf"{_EDGE}(?:AKIA|ASIA)[A-Z0-9]{{12,}}"), MASK),
    (re.compile(r"(\b\w+://[^\s:/@]*:)[^\s/]+@"), rf"\1{MASK}@"),
    # Things that their name makes secret: `password=…`, `"access_token": "…"`, `--token …`, `Bearer …`.
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1 {MASK}"),
    (re.compile(rf"((?<![\w-]){_NAME}[\"']?\s*[=:]\s*)(?:{_VALUE})", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(rf"((?<![\w-])(?=-){_NAME}\s+)[^\s-]\S*", re.IGNORECASE), rf"\1{MASK}"),
)


_REST_OF_A_KEY = re.compile(r"\A[\w+/=\s-]*-----END [A-Z ]+-----")


def redact(text: str, environ: Mapping[str, str]) -> str:
    """Return *text* without tokens, passwords, and the values of the variables of *environ* with a secret's name."""
    for secret in sorted(_secrets(environ), key=len, reverse=True):  # one may be a part of another
        text = text.replace(secret, MASK)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def redact_end(said: bytes, environ: Mapping[str, str], most_bytes: int, *, whole: bool) -> str:
    """Return the end of what a program said, at most *most_bytes*; it is redacted first, and cut then.

    Args:
        said: The end of it, longer than what is asked for.
        environ: As in `redact`.
        most_bytes: How much to return, as UTF-8.
        whole: Whether *said* is all of it. If not, it may begin inside a secret, which nothing can tell by then.
    """
    text = said.decode(errors="replace")
    if whole:
        text = redact(text, environ)
    else:  # each line of a secret is one, so that a half ends with its line, or where the next one begins
        text = redact(_REST_OF_A_KEY.sub(MASK, text), environ)
        longest = max(map(len, _secrets(environ)), default=0)
        text = text.partition("\n")[2] or text.partition(MASK)[2] or text[longest:]
    return text.encode()[-most_bytes:].decode(errors="ignore").strip()


def _secrets(environ: Mapping[str, str]) -> set[str]:
    values = {value.strip() for name, value in environ.items() if _SECRET_NAME.search(name)}
    return {form for value in values if len(value) >= _SHORTEST for form in _forms(value)}


def _forms(value: str) -> Iterator[str]:
    """Yield *value* as programs write it: plain, line by line, quoted, in a URL, and as Kubernetes keeps secrets."""
    yield value
    yield from (line.strip() for line in value.splitlines() if len(line.strip()) >= _SHORTEST_LINE)
    yield repr(value)[1:-1]
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    raw = value.encode(errors="surrogateescape")
    yield from (quote(raw), quote(raw, safe=""), quote_plus(raw))
    yield base64.b64encode(raw).decode()
