"""What an engine has done since it started."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from prefixcache.engine.sequence import Sequence


@dataclass(slots=True)
class Counters:
    """Totals that never fall, in steps and tokens."""

    steps: int = 0
    requests: int = 0  # admitted
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    output_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    misses: Counter[str] = field(default_factory=Counter)

    def count_admission(self, sequence: Sequence) -> None:
        """Count a request that was admitted for the first time."""
        usage = sequence.usage
        self.requests += 1
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        if sequence.lease is not None and (miss := sequence.lease.miss) is not None:
            self.misses[miss.reason.value] += 1
