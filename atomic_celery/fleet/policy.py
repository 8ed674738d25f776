"""How many hosts an operator wants for how much work: the numbers, checked together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from atomic_celery.errors import ConfigError

if TYPE_CHECKING:
    from atomic_celery.config import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The numbers that the scaling signal and the fleet controller go by.

    Raises:
        ConfigError: They make no sense, or not together; says all that is wrong.
    """

    min_hosts: int = 0
    """Hosts kept however idle."""
    max_hosts: int = 10
    """Hosts never exceeded."""
    workers_per_host: int = 4
    """The slots that hosts start with."""
    scale_up_queue_depth: int | None = None
    """Messages allowed to wait before hosts are added; None: `workers_per_host`."""
    scale_up_delay_ms: int = 20_000
    """How long more than that wait first."""
    idle_drain_ms: int = 300_000
    """How long a host holds nothing before it is drained."""
    boot_timeout_ms: int = 600_000
    """Time that a new host has to register."""

    def __post_init__(self) -> None:
        problems = []
        if self.min_hosts < 0:
            problems.append(f"min_hosts must not be below 0, got {self.min_hosts}")
        if self.max_hosts < max(1, self.min_hosts):
            least = f"at least 1 and no less than min_hosts ({self.min_hosts})"
            problems.append(f"max_hosts must be {least}, got {self.max_hosts}")
        if self.workers_per_host < 1:
            problems.append(f"workers_per_host must be at least 1, got {self.workers_per_host}")
        problems += [
            f"{name} must not be below 0, got {getattr(self, name)}"
            for name in ("scale_up_queue_depth", "scale_up_delay_ms", "idle_drain_ms")
            if (getattr(self, name) or 0) < 0
        ]
        if self.boot_timeout_ms < 1:
            problems.append(f"boot_timeout_ms must be above 0, got {self.boot_timeout_ms}")
        if problems:
            raise ConfigError("; ".join(problems))

    @property
    def waiting_allowed(self) -> int:
        """Messages that may wait before hosts are added."""
        return self.workers_per_host if self.scale_up_queue_depth is None else self.scale_up_queue_depth

    @classmethod
    def of(cls, settings: Settings, **numbers: int | None) -> Policy:
        """Take the policy out of the settings, but for these *numbers*.

        Raises:
            ConfigError: A number is none of the policy's, or the policy makes no sense.
        """
        for name in numbers.keys() - set(FIELDS):
            raise ConfigError(f"the policy has no {name!r}; it has {', '.join(FIELDS)}")
        return cls(**{name: getattr(settings, name) for name in FIELDS} | numbers)


FIELDS = tuple(Policy.__dataclass_fields__)
