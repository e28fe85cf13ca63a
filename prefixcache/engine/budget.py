"""How many prompt tokens a step may take, so that it ends in about a set time."""

from __future__ import annotations

MIN_TOKENS = 32
OVERSHOOT = 1.25  # a rest this little above the budget is taken whole, to save a step


class StepBudget:
    """Learns the machine's speed from the steps it has seen.

    A step is the soonest that a cancelled request can be let go, and the pace of everybody
    who is decoding beside a long prompt; so it is bounded in time, whatever the machine.
    """

    def __init__(self, *, step_seconds: float, max_tokens: int, first_tokens: int) -> None:
        self._step_seconds = step_seconds
        self._max_tokens = max_tokens
        self.tokens = min(first_tokens, max_tokens)

    def share(self, pending: int, used: int) -> int:
        """Return how many of `pending` prompt tokens still fit a step that has `used` tokens."""
        left = self.tokens - used
        if left <= 0:
            return 0
        most = min(left * OVERSHOOT, self._max_tokens - used)
        return pending if pending <= most else left

    def record(self, n_tokens: int, seconds: float) -> None:
        """Learn from a step of `n_tokens` rows; small ones say nothing about long prompts."""
        if n_tokens < MIN_TOKENS or seconds <= 0:
            return
        fitting = n_tokens / seconds * self._step_seconds
        self.tokens = int(min(max((self.tokens + fitting) / 2, MIN_TOKENS), self._max_tokens))
