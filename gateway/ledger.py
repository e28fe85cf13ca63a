"""The one account of a call's tokens: usage, metrics and the log line are read from it."""

from __future__ import annotations

from collections import Counter

from prefixcache.types import Delta, Event, Failed, Finished, Started, Usage


class Ledger:
    """Counts the tokens of a call: p prompts with n choices each, choice c of prompt p at p*n+c.

    A prompt counts once, whatever its number of choices; so does what was cached of it, as the
    first choice that was admitted found it. Output counts for every choice, also of those that were
    cut off, and so does what they left in the cache, for no two leave the same.
    """

    def __init__(self, *, n_requests: int, choices_per_prompt: int) -> None:
        self._n_choices = choices_per_prompt
        self._prompts = [0] * n_requests
        self._cached = [0] * n_requests
        self._written = [0] * n_requests
        self._tiers: list[dict[str, int]] = [{}] * n_requests  # of the cached ones, by tier
        self._output = [0] * n_requests
        self._is_begun = [False] * n_requests
        self.first_token_at: float | None = None  # by the clock of whoever reads the events

    @property
    def n_waiting(self) -> int:
        """How many of the requests have neither begun nor failed."""
        return self._is_begun.count(False)

    def add_output(self, index: int, delta: Delta) -> None:
        """Count what request `index` has said."""
        self._is_begun[index] = True
        self._output[index] += len(delta.token_ids)

    def observe(self, index: int, event: Event) -> None:
        """Take the next event of request `index` into account."""
        self._is_begun[index] = True
        match event:
            case Delta():
                self.add_output(index, event)
            case Started():
                self._prompts[index] = event.prompt_tokens
                self._cached[index] = event.cached_tokens
                self._tiers[index] = event.tier_tokens
            case Finished(usage=Usage() as usage) | Failed(usage=Usage() as usage):
                self._prompts[index] = usage.prompt_tokens
                self._cached[index] = usage.cached_tokens
                self._written[index] = usage.written_tokens
                self._output[index] = usage.output_tokens
            case Failed():
                pass  # what was counted from its deltas stands

    def each(self) -> list[Usage | None]:
        """Return what was counted for each request; None: it was never admitted."""
        counts = zip(self._prompts, self._cached, self._output, self._written, strict=True)
        return [Usage(*found) if found[0] else None for found in counts]

    def usage(self) -> Usage:
        """Return the sums so far."""
        counted = self._all_counted()
        return Usage(
            prompt_tokens=sum(self._prompts[index] for index in counted),
            cached_tokens=sum(self._cached[index] for index in counted),
            output_tokens=sum(self._output),
            written_tokens=sum(self._written),
        )

    def tier_tokens(self) -> dict[str, int]:
        """Return how many of the cached tokens were loaded from below the device, by tier."""
        sums = Counter[str]()
        for index in self._all_counted():
            sums.update(self._tiers[index])
        return dict(sums)

    def _all_counted(self) -> list[int]:
        return [self._counted(first) for first in range(0, len(self._prompts), self._n_choices)]

    def _counted(self, first: int) -> int:
        """Return which choice of the prompt whose first one is `first` counts for the prompt."""
        choices = range(first, first + self._n_choices)
        return next((index for index in choices if self._prompts[index]), first)
