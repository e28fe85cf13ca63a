"""How the prompts of a step share its tokens, so that long ones never stop short ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prefixcache.engine.sequence import Sequence

OLDEST_PART = 4  # the oldest prompt has a quarter of each step, however many shorter ones come
OVERSHOOT = 4  # a rest of at most a quarter above the aim is taken whole, to save a step


@dataclass(frozen=True, slots=True)
class Share:
    """A sequence's part of a step: its next `n_tokens` tokens, and guesses of what follows them."""

    sequence: Sequence
    n_tokens: int
    drafts: tuple[int, ...] = ()

    @property
    def n_rows(self) -> int:
        """Tokens that are fed for it."""
        return self.n_tokens + len(self.drafts)


class PromptShares:
    """The prompts that a step goes on with.

    By priority, and then the shortest rest first, so that a short prompt is through within a step
    or two, whatever is being read beside it. The oldest of the highest priority always gets a part,
    so that it is not starved by a stream of short ones.
    """

    def __init__(
        self, *, aim_tokens: int, most_tokens: int, level: Callable[[Sequence], int]
    ) -> None:
        """Begin a step.

        Args:
            aim_tokens: what is shared out.
            most_tokens: what a small rest may take it to, never exceeded.
            level: a sequence's priority, the lowest first.
        """
        self._aim = min(aim_tokens, most_tokens)
        self._most = most_tokens
        self._level = level
        self._readers: list[Sequence] = []  # in order of admission

    def add(self, sequence: Sequence) -> None:
        """Take a prompt into the step."""
        self._readers.append(sequence)

    def has_share_for(self, sequence: Sequence, n_pending: int) -> bool:
        """Whether one with so much to read would get a part of the step. Cost: the readers."""
        place = self._level(sequence), n_pending
        before = sum(each.n_feedable for each in self._readers if self._place(each) <= place)
        oldest = self._oldest()
        if oldest is not None and self._place(oldest) > place:
            before += self._oldest_part(oldest)
        return before < self._aim

    def split(self) -> list[Share]:
        """Return everybody's part, in the order of admission; who gets nothing is left out."""
        parts = dict.fromkeys(self._readers, 0)
        left = self._aim
        oldest = self._oldest()
        if oldest is not None:
            parts[oldest] = self._oldest_part(oldest)
            left -= parts[oldest]
        in_order = sorted(self._readers, key=self._place)
        for sequence in in_order:
            more = min(sequence.n_feedable - parts[sequence], left)
            parts[sequence] += more
            left -= more
        self._finish_small_rests(in_order, parts)
        return [Share(sequence, n_tokens) for sequence, n_tokens in parts.items() if n_tokens]

    def _finish_small_rests(self, in_order: list[Sequence], parts: dict[Sequence, int]) -> None:
        spare = min(self._most - sum(parts.values()), self._aim // OVERSHOOT)
        for sequence in in_order:
            rest = sequence.n_feedable - parts[sequence]
            if parts[sequence] and rest <= spare:
                parts[sequence] += rest
                spare -= rest

    def _oldest(self) -> Sequence | None:
        return min(self._readers, key=self._level, default=None)

    def _oldest_part(self, oldest: Sequence) -> int:
        return min(oldest.n_feedable, max(self._aim // OLDEST_PART, 1))

    def _place(self, sequence: Sequence) -> tuple[int, int]:
        return self._level(sequence), sequence.n_pending
