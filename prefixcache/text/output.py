"""What a reader sees of a model's output: text, up to a stop string."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prefixcache.text.detokenize import IncrementalDetokenizer
from prefixcache.text.stops import StopMatcher
from prefixcache.text.tokenizer import Tokenizer


class OutputText:
    """Turns one answer's ids into text and ends it at the first stop string.

    Special tokens are left out, but for `shown_ids`. Not for use by two threads at once.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, stop: Sequence[str] = (), shown_ids: Sequence[int] = ()
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer, shown_ids=shown_ids)
        self._matcher = StopMatcher(stop)

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the answer, or None."""
        return self._matcher.matched

    def push(self, ids: Iterable[int]) -> str:
        """Take the next ids and return the text that is safe to show; "" once stopped."""
        return self._matcher.push(self._detokenizer.push(ids))

    def finish(self) -> str:
        """Say that the answer is over and return the rest of its text.

        A stop string that the last, held-back text completes still counts: look at `stopped`
        afterwards.
        """
        return self._matcher.push(self._detokenizer.finish()) + self._matcher.finish()
