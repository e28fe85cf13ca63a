"""Decoding several tokens of an answer in one step, where guesses of them are worth their rows.

Design: prefixcache/design/0015-speculation.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile

from prefixcache.config import EngineConfig
from prefixcache.engine.costs import StepCosts
from prefixcache.engine.counters import Counters
from prefixcache.engine.drafting import Draft, Drafter
from prefixcache.engine.sequence import Sequence, reads_cache
from prefixcache.engine.shares import Share
from prefixcache.engine.window_room import WindowRoom
from prefixcache.index import PrefixCache

MOST_ROWS = 256  # of drafts in a step: each has a row of logits, 50 MB in all
SLOWEST_PACE = 0.9  # of what it would have without drafts: nobody is slowed below it


@dataclass(frozen=True, slots=True)
class Trial:
    """Drafts that are being verified."""

    sequence: Sequence
    draft: Draft
    n_drafted: int
    n_computed: int  # before the step


class Speculation:
    """Puts drafts into steps, and learns from what became of them.

    Drafts take only what nobody else has use for: free blocks, and rows that a step has left. Wrong
    ones cost their rows and change nothing.
    """

    def __init__(
        self,
        cache: PrefixCache,
        windows: WindowRoom,
        config: EngineConfig,
        costs: StepCosts,
        counters: Counters,
        *,
        vocab_size: int,
    ) -> None:
        """Begin.

        Args:
            costs: read before each step that could have drafts.
            vocab_size: ids from there on are never fed; a prompt that was published but never
                read may hold some.
        """
        self._vocabulary = range(vocab_size)
        self._cache = cache
        self._windows = windows
        self._config = config
        self._costs = costs
        self._counters = counters
        self._trials: list[Trial] = []

    def with_drafts(self, shares: list[Share]) -> list[Share]:
        """Return the shares of a step, those that decode with drafts as far as these pay."""
        self._trials = []
        if self._config.speculation == "off" or not shares:
            return shares
        drafts = [self._draft(share) for share in shares]
        if not any(drafts):
            return shares
        lengths = self._lengths(shares, drafts)
        return [
            share if draft is None or not n_tokens else self._with_room(share, draft, n_tokens)
            for share, draft, n_tokens in zip(shares, drafts, lengths, strict=True)
        ]

    def settle(self) -> None:
        """Count what was right in the step, and let go of the room that was not needed."""
        for trial in self._trials:
            sequence = trial.sequence
            n_right = max(sequence.n_computed - trial.n_computed - 1, 0)
            self._counters.accepted_tokens += n_right
            trial.draft.trust.learn(trial.n_drafted, n_right, len(sequence.output))
            if sequence.lease is not None:
                self._cache.ahead.settle(sequence.lease, sequence.n_tokens)
        self._trials = []

    def _draft(self, share: Share) -> Draft | None:
        sequence = share.sequence
        n_most = min(self._config.max_draft_tokens, sequence.max_tokens - len(sequence.output) - 1)
        if not sequence.output or sequence.n_pending != 1 or n_most < 1:
            return None
        if sequence.drafter is None:
            sequence.drafter = self._drafter(sequence)
        return sequence.drafter.draft(sequence.output, n_most)

    def _drafter(self, sequence: Sequence) -> Drafter:
        reads = reads_cache(self._config, sequence)
        continuation = partial(self._cache.ahead.continuation, sequence.namespace)
        return Drafter(sequence.request.token_ids, continuation if reads else None)

    def _lengths(self, shares: list[Share], drafts: list[Draft | None]) -> list[int]:
        """Return how many drafts of each share make the step give most tokens a second.

        The likeliest come first, as many as pay; nobody is to fall below `SLOWEST_PACE`.
        """
        n_rows = sum(share.n_tokens for share in shares)
        gains = sorted(
            (-(draft.trust.chance ** (place + 1)), index)
            for index, draft in enumerate(drafts)
            if draft is not None
            for place in range(len(draft.tokens))
        )
        n_most = max(min(len(gains), self._config.max_step_tokens - n_rows, MOST_ROWS), 0)
        costs = self._costs.relative(n_rows, n_most)
        expected = [float(share.sequence.n_pending == share.n_tokens) for share in shares]
        total = best = sum(expected)
        n_best = 0
        for n_drafts, (gain, index) in enumerate(gains[:n_most], 1):
            expected[index] -= gain
            total -= gain
            pace = total / costs[n_drafts]
            slowest = min((each for each in expected if each), default=1.0)
            if pace > best and slowest >= SLOWEST_PACE * costs[n_drafts]:
                best, n_best = pace, n_drafts
        lengths = [0] * len(shares)
        for _, index in gains[:n_best]:
            lengths[index] += 1
        return lengths

    def _with_room(self, share: Share, draft: Draft, n_tokens: int) -> Share:
        """Return a share with drafts, as many as there is free room for."""
        sequence = share.sequence
        assert sequence.lease is not None
        known = tuple(takewhile(self._vocabulary.__contains__, draft.tokens[:n_tokens]))
        room = self._cache.ahead.reserve(sequence.lease, sequence.n_tokens + len(known))
        tokens = known[: max(room - sequence.n_tokens, 0)]
        start = sequence.n_computed
        if not tokens or not self._windows.reaches(sequence.lease, start, start + 1 + len(tokens)):
            return share
        self._trials.append(Trial(sequence, draft, len(tokens), start))
        self._counters.drafted_tokens += len(tokens)
        return replace(share, drafts=tokens)
