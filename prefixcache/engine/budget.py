"""How many prompt tokens a step may take, so that it ends in about a set time."""

from __future__ import annotations

from prefixcache.engine.costs import StepCosts, moved
from prefixcache.engine.readers import TILE_ROWS

MIN_TOKENS = 32
QUIET_STEPS = 2  # a step that keeps nobody from a next token may last so many times as long


class StepBudget:
    """Learns the machine's speed from the steps it has seen.

    A step is the soonest that a cancelled request can be let go, and the pace of everybody
    who is decoding beside a long prompt; so it is bounded in time, whatever the machine.
    """

    def __init__(self, *, step_seconds: float, max_tokens: int, first_tokens: int) -> None:
        self._step_seconds = step_seconds
        self.max_tokens = max_tokens
        self.costs = StepCosts()
        self.tokens = min(first_tokens, max_tokens)  # prompt tokens to aim at; decodes are extra
        self.tokens_per_second: float | None = None  # of prompts; None: none was read yet

    def room(self, n_decodes: int) -> int:
        """Return the most prompt tokens of a step that has so many decodes: never exceeded."""
        return max(self.max_tokens - n_decodes, 0)

    def aim(self, n_decodes: int) -> int:
        """Return the prompt tokens to aim at in a step that has so many decodes.

        Larger steps read weights and cached keys less often, so with nobody to wait for a next
        token they may be longer; large ones are whole tiles of attention.
        """
        if n_decodes:
            return self.tokens
        most = min(QUIET_STEPS * self.tokens, self.max_tokens)
        return most if most < 2 * TILE_ROWS else most - most % TILE_ROWS

    def record(self, n_tokens: int, seconds: float) -> None:
        """Learn from a step of `n_tokens` rows; small ones say nothing about long prompts."""
        self.costs.record(n_tokens, seconds)
        if n_tokens < MIN_TOKENS or seconds <= 0:
            return
        speed = n_tokens / seconds
        self.tokens_per_second = moved(self.tokens_per_second, speed)
        fitting = speed * self._step_seconds
        self.tokens = int(min(max((self.tokens + fitting) / 2, MIN_TOKENS), self.max_tokens))
