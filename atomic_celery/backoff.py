"""How long to wait after the n-th failure in a row."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """Waits that double from *first_s* up to *ceiling_s*, until something succeeds."""

    first_s: float = 1.0
    ceiling_s: float = 30.0
    failures: int = field(default=0, init=False)

    def failed(self) -> float:
        """Count a failure and return the seconds to wait before the next try."""
        self.failures += 1
        # 2**63 seconds is past every ceiling; the bound keeps the float finite.
        return min(self.first_s * 2.0 ** min(self.failures - 1, 63), self.ceiling_s)

    def succeeded(self) -> bool:
        """Forget the failures; True if there were any."""
        had_failed, self.failures = self.failures > 0, 0
        return had_failed
