"""Keeping secrets out of what is reported: a program's error output may well quote the credential that was refused."""

from __future__ import annotations

import re
from collections.abc import Mapping

MASK = "[redacted]"

_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|KEY|CREDENTIAL|AUTH", re.IGNORECASE)
_SHORTEST = 4  # a variable like AUTH=1 holds no secret, and its value is everywhere

_NAMED = (  # in any part of a name
    r"[\w-]*(?:access[-_ ]?key|api[-_ ]?key|auth|credential|passwd|password|pwd|secret|signature|\bsig|token)[\w-]*"
)
_NAME = rf"(?=(?P<name>{_NAMED}))(?P=name)"  # a lookahead is tried once: no text takes longer than it is long
_VALUE = r"\"[^\"]*\"|'[^']*'|[^\s,;&\"'}]+"
_PATTERNS = (
    # Things that are secret whatever stands before them, longest first.
    (re.compile(r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)", re.DOTALL), MASK),
    (re.compile(r"\bgithub_pat_\w+|\bgh[a-z]_[\w.-]+"), MASK),
    (re.compile(r"\beyJ[\w-]+\.[\w-]+(?:\.[\w-]*)?"), MASK),  # a JSON web token
    (re.compile(r"\bya29\.[\w.-]+"), MASK),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}"), MASK),
    (re.compile(r"(\b\w+://[^\s:/@]*:)[^\s/]+@"), rf"\1{MASK}@"),
    # Things that their name makes secret: `password=…`, `"access_token": "…"`, `--token …`, `Bearer …`.
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1 {MASK}"),
    (re.compile(rf"((?<![\w-]){_NAME}[\"']?\s*[=:]\s*)(?:{_VALUE})", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(rf"((?<![\w-])(?=-){_NAME}\s+)[^\s-]\S*", re.IGNORECASE), rf"\1{MASK}"),
)


def redact(text: str, environ: Mapping[str, str]) -> str:
    """Return *text* without tokens, passwords, and the values of the variables of *environ* with a secret's name."""
    secrets = {
        value.strip()
        for name, value in environ.items()
        if _SECRET_NAME.search(name) and len(value.strip()) >= _SHORTEST
    }
    for secret in sorted(secrets, key=len, reverse=True):  # one may be a part of another
        text = text.replace(secret, MASK)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text
