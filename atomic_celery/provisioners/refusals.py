"""How the platforms' command lines say that they were not let in: by an exit code, or in words."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Manners:
    words: re.Pattern[str]
    exit_codes: frozenset[int] = frozenset()
    unless: re.Pattern[str] | None = None
    """What looks like a refusal and is none."""


def _any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


_MANNERS = {
    "aws": _Manners(
        _any_of(
            r"\((AccessDenied\w*|AuthFailure|ExpiredToken\w*|IncompleteSignature|InvalidClientTokenId"
            r"|InvalidSignatureException|NotAuthorized|OptInRequired|SignatureDoesNotMatch|UnauthorizedOperation"
            r"|UnrecognizedClientException)\)",
            r"unable to locate credentials",
            r"error when retrieving (credentials|token)",
            r"(token|session) (has|associated with this profile has) expired",
        )
    ),
    "az": _Manners(
        _any_of(
            r"\bAADSTS\d+",
            r"\b(AuthenticationFailed|AuthorizationFailed|ExpiredAuthenticationToken|InvalidAuthenticationToken\w*"
            r"|LinkedAuthorizationFailed)\b",
            r"please run '?\"?az login",
            r"no subscription found",
        )
    ),
    "gcloud": _Manners(
        _any_of(
            r"required '[\w.]+' permission",
            r"\bPERMISSION_DENIED\b",
            r"\binvalid_grant\b",
            r"do not currently have an active account",
            r"problem refreshing your current auth tokens",
            r"could not (automatically determine|load the default) credentials",
            r"request (had invalid|is missing required) authentication credential",
            r"insufficient authentication scopes",
        )
    ),
    "gh": _Manners(
        _any_of(
            r"\bHTTP 40[13]\b",
            r"\bgh auth login\b",
            r"bad credentials",
            r"resource not accessible by",
            r"must have (admin|write) (access|rights)",
        ),
        exit_codes=frozenset({4}),
        unless=_any_of(r"rate limit"),
    ),
    "kubectl": _Manners(
        _any_of(
            r"error from server \(forbidden\)",
            r"error: you must be logged in to the server",
            r"\(unauthorized\)",
            r"provide credentials",
        )
    ),
}


def is_refusal(program: str, exit_code: int, error_output: str) -> bool:
    """Whether *program* ended because its credentials were refused, or it had none."""
    manners = _MANNERS.get(os.path.basename(program))
    if manners is None or (manners.unless and manners.unless.search(error_output)):
        return False
    return exit_code in manners.exit_codes or bool(manners.words.search(error_output))
