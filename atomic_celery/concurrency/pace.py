"""How long tasks take here, and how much work it is therefore wise to have at hand. Pure arithmetic."""

from __future__ import annotations

CHILD_AHEAD_S = 0.02
"""How much work may wait in a child: enough to bridge two turns of the host's loop."""

HOST_AHEAD_S = 0.125
"""How much work may wait in the host, for each child: enough to bridge a claim."""

LONG_TASK_S = 0.05
"""Tasks that take longer are never claimed ahead."""

LINGER_S = 0.1
"""What has waited in a child for so long is taken back."""

MOST_IN_CHILD = 64
MOST_IN_HOST = 1000

_WEIGHT = 1 / 16


class Pace:
    """A moving average of how long a child is busy with one task."""

    def __init__(self) -> None:
        self.task_s: float | None = None

    def saw(self, took_s: float) -> None:
        """Count a task that took *took_s*."""
        if self.task_s is None:
            self.task_s = took_s
        else:
            self.task_s += (took_s - self.task_s) * _WEIGHT

    def depth(self) -> int:
        """Return how many tasks may wait in a child behind the one it runs."""
        if self.task_s is None:
            return 1
        return int(min(MOST_IN_CHILD, CHILD_AHEAD_S / max(self.task_s, 1e-6)))

    def lookahead(self, children_count: int, running_s: float) -> int:
        """Return how many tasks the host may hold beside those that fill its free slots.

        Args:
            running_s: How long the tasks that run now have been running, on average: no end has told of them yet.
        """
        if self.task_s is None:
            return 0
        expected_s = max(self.task_s, running_s, 1e-6)
        if expected_s > LONG_TASK_S:
            return 0
        return int(min(MOST_IN_HOST, children_count * HOST_AHEAD_S / expected_s))
