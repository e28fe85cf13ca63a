"""Finding stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class StopMatcher:
    """Passes text on until a stop string appears, and nothing of the stop string.

    The match that starts earliest wins; of two that start together, the one that is complete
    first. Only the end of the text that may yet be the start of a stop is held back, so a
    match that is complete waits while one that started before it can still come true. What
    comes out does not depend on how the text was cut into pieces. Empty stops match nothing.

    Cost: amortised O(1) per character and stop, whatever the stops' lengths.
    """

    def __init__(self, stops: Iterable[str] = ()) -> None:
        self._patterns = [_Pattern(stop) for stop in dict.fromkeys(stops) if stop]
        self._held = ""
        self._held_at = 0  # where `_held` starts in the whole text
        self._read = 0  # characters of the whole text so far
        self._best: _Match | None = None
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, or None."""
        return self._matched

    def push(self, text: str) -> str:
        """Take the next piece and return what is safe to show; after a match that is nothing."""
        if self._matched is not None:
            return ""
        if not self._patterns:
            return text
        self._held += text
        for letter in text:
            self._feed(letter)
            if self._is_decided():
                return self._end()
        return self._release(self._undecided_from())

    def finish(self) -> str:
        """Say that the text is over and return what was held back and belongs to it."""
        return self._end() if self._matched is None else ""

    def _feed(self, letter: str) -> None:
        self._read += 1
        for pattern in self._patterns:
            if pattern.feed(letter):
                start = self._read - len(pattern.stop)
                if self._best is None or start < self._best.start:
                    self._best = _Match(start, pattern.stop)

    def _is_decided(self) -> bool:
        return self._best is not None and self._undecided_from() == self._best.start

    def _undecided_from(self) -> int:
        """Return where the earliest complete or possible match starts, or the text's end."""
        growing = self._read - max(pattern.grown for pattern in self._patterns)
        return growing if self._best is None else min(growing, self._best.start)

    def _end(self) -> str:
        if self._best is None:
            return self._release(self._read)
        shown = self._release(self._best.start)
        self._matched, self._held = self._best.stop, ""
        return shown

    def _release(self, until: int) -> str:
        n_safe = until - self._held_at
        shown, self._held = self._held[:n_safe], self._held[n_safe:]
        self._held_at = until
        return shown


class _Match(NamedTuple):
    start: int  # in the whole text
    stop: str


class _Pattern:
    """One stop string and how much of it the text's end spells (Knuth, Morris and Pratt)."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.grown = 0  # the longest proper start of `stop` that the text ends with
        self._fallbacks = _fallbacks(stop)

    def feed(self, letter: str) -> bool:
        """Take one character; return whether `stop` ends with it."""
        while self.grown and self.stop[self.grown] != letter:
            self.grown = self._fallbacks[self.grown]
        if self.stop[self.grown] == letter:
            self.grown += 1
        if self.grown < len(self.stop):
            return False
        self.grown = self._fallbacks[self.grown]
        return True


def _fallbacks(stop: str) -> list[int]:
    """Return, for each length, the longest proper start of stop[:length] that also ends it."""
    table = [0, 0]
    for letter in stop[1:]:
        length = table[-1]
        while length and stop[length] != letter:
            length = table[length]
        table.append(length + (stop[length] == letter))
    return table
