"""Settings are checked once, together, and answer back."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from atomic_celery import config
from atomic_celery.config import Settings, from_sources
from atomic_celery.errors import ConfigError

NUMBERS = [each.name for each in dataclasses.fields(Settings) if str(each.type).startswith(("int", "float"))]


def test_the_defaults_are_those_the_documentation_states() -> None:
    settings = Settings()
    assert (settings.prefix, settings.lease_s, settings.renew_every_s, settings.lease_margin_s) == ("atomic", 30, 10, 1)
    assert (settings.report_every_s, settings.stale_after_s, settings.max_crashes) == (5, 15, 5)
    assert settings.notify
    assert settings.shutdown_timeout_s is None
    assert settings.lease_ms == 30_000


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().lease_s = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"prefix": "Team"}, "prefix must be"),
        ({"prefix": "a" * 25}, "1 to 24 characters"),
        ({"prefix": 'x"; DROP'}, "prefix must be"),
        ({"lease": 30, "renew_every": 11}, r"renew_every must be in \(0, lease / 3 = 10\]"),
        ({"lease": 1}, "longer than its margin"),
        ({"statement_timeout": 30}, "statement_timeout must be shorter than the lease"),
        ({"stale_after": 5}, "stale_after must be longer"),
        ({"report_every": 0}, "report_every must be above 0"),
        ({"max_crashes": 0}, "max_crashes must be at least 1"),
        ({"slots": 0}, "slots must be at least 1"),
        ({"password_file": "/a", "token_file": "/b"}, "exactly one credential"),
        ({"labels": {"a b": "c"}}, "a key is 1 to 63"),
        ({"labels": {"a": "x" * 256}}, "at most 255"),
        ({"labels": {"a": "x\0"}}, "label 'a': a value holds no NUL"),
        ({"provider_id": "x\0y"}, "provider_id holds NUL or half a surrogate"),
        ({"beat_name": "\ud800"}, "beat_name holds NUL or half a surrogate"),
        ({"labels": "zone"}, "atomic_labels: expected"),
        ({"slots": "many"}, "atomic_slots: expected int"),
        ({"notify": "maybe"}, "atomic_notify: expected bool"),
    ],
)
def test_a_bad_value_is_refused_with_its_reason(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        from_sources(given, env={})


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["nan", "inf", "1e300", "-1"])
def test_a_number_is_one_that_can_be_counted_with(name: str, value: str) -> None:
    key = name.removesuffix("_s")
    with pytest.raises(ConfigError, match=rf"{key}\b.*(?:from 0 to|expected int)"):
        from_sources({key: value}, env={})


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError, match=r"prefix.*max_crashes"):
        from_sources({"prefix": "", "max_crashes": 0}, env={})


def test_an_unknown_setting_is_answered_with_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'atomic_leese'; did you mean 'atomic_lease'"):
        from_sources({"leese": 3}, env={})


def test_options_win_over_the_environment_and_that_over_the_configuration() -> None:
    def slots_of(options: dict[str, Any]) -> int | None:
        return from_sources(options, {"slots": 3}, env={"ATOMIC_SLOTS": "2"}).slots

    assert slots_of({"slots": 1}) == 1
    assert slots_of({"slots": None}) == 2
    assert from_sources({}, {"slots": 3}, env={}).slots == 3


def test_variables_of_other_programs_are_left_alone() -> None:
    assert from_sources(env={"ATOMIC_GITHUB_HOST": "example.com"}) == Settings()


def test_labels_may_be_a_mapping_or_text() -> None:
    wanted = {"zone": "east", "size": "a=b"}
    assert from_sources({"labels": wanted}, env={}).labels == wanted
    assert from_sources({"labels": "zone=east,size=a=b"}, env={}).labels == wanted
    assert from_sources({"labels": ("zone=east", "size=a=b")}, env={}).labels == wanted


def test_words_may_be_a_sequence_or_text() -> None:
    assert from_sources({"mask": " iban, card,"}, env={}).mask == ("iban", "card")
    assert from_sources({"mask": ["iban"]}, env={}).mask == ("iban",)
    assert from_sources(env={"ATOMIC_MASK": "iban,card"}).mask == ("iban", "card")


def test_only_atomic_keys_are_taken_from_a_celery_configuration() -> None:
    assert config.celery_keys({"atomic_lease": 9, "task_acks_late": True}) == {"lease": 9}
