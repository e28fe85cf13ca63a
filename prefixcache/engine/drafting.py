"""Guessing what an answer goes on with, from what was said before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from prefixcache.index import TOKEN_BYTES, pack, unpack

Continuation = Callable[[bytes, int], bytes]  # packed tokens, how many at most -> what followed

GRAMS = (4, 3, 2)  # how many of the last tokens are looked for, the best first
SEARCHED_TOKENS = 16_384  # of the end of prompt and answer
STORED_TOKENS = 256  # taken from the tree at a time
_MOST_LOOK_GAP = 64  # tokens between two look-ups in vain
_MOST_PAUSE = 32  # tokens without drafts after misses
_MEMORY = 0.7  # of what was tested before, at each new test
_PRIOR_WEIGHT = 2.0


class Trust:
    """How likely the next draft of one kind is right, from how the last ones fared."""

    def __init__(self, prior: float) -> None:
        """Begin with `prior`, a chance."""
        self._prior = prior
        self._right = self._tested = 0.0
        self._n_misses = 0  # in a row: not even the first draft was right
        self._paused_until = 0

    @property
    def chance(self) -> float:
        """The chance of each draft whose forerunners were right."""
        return (self._right + self._prior * _PRIOR_WEIGHT) / (self._tested + _PRIOR_WEIGHT)

    def is_paused(self, n_said: int) -> bool:
        """Whether nothing is to be drafted after so many tokens of output."""
        return n_said < self._paused_until

    def learn(self, n_drafted: int, n_right: int, n_said: int) -> None:
        """Take note of a verification. After misses there is a pause, each time twice as long."""
        self._right = self._right * _MEMORY + n_right
        self._tested = self._tested * _MEMORY + min(n_right + 1, n_drafted)
        self._n_misses = 0 if n_right else self._n_misses + 1
        if self._n_misses:
            self._paused_until = n_said + min(2**self._n_misses, _MOST_PAUSE)


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may come next, the first ones first, and how far they are trusted."""

    tokens: Sequence[int]
    trust: Trust


class Drafter:
    """Guesses for one answer: what the tree holds after it, else what followed its last words.

    Cost a call: a search of memory, some microseconds for thousands of tokens; a look-up in the
    tree at the start, at its end and where the answer leaves it, and seldom while it knows nothing.
    """

    def __init__(self, prompt: bytes, continuation: Continuation | None) -> None:
        """Begin after `prompt`, packed. `continuation` tells what is stored; None: nobody does."""
        self._said = bytearray(prompt)
        self._n_output = 0
        self._continuation = continuation
        self._stored: list[int] = []  # what may follow `_said`
        self._known = bytearray()  # what the tree gave: an answer that left it may come back
        self._n_prompt_bytes = len(prompt)
        self._stored_trust, self._repeated_trust = Trust(0.9), Trust(0.5)
        self._next_look = self._look_gap = 0

    def draft(self, output: Sequence[int], n_most: int) -> Draft | None:
        """Return a guess of at most `n_most` tokens after `output`, all of it so far, or None."""
        self._catch_up(output)
        if not self._stored_trust.is_paused(self._n_output):
            self._look_up(n_most)
            if self._stored:
                return Draft(self._stored[:n_most], self._stored_trust)
        if self._repeated_trust.is_paused(self._n_output):
            return None
        tokens = self._repeated(n_most)
        return Draft(tokens, self._repeated_trust) if tokens else None

    def _catch_up(self, output: Sequence[int]) -> None:
        new = output[self._n_output :]
        if self._stored[: len(new)] == new:
            del self._stored[: len(new)]
        else:
            self._stored = []
        self._said += pack(new)
        self._n_output = len(output)

    def _look_up(self, n_most: int) -> None:
        """Ask the tree again when what it gave comes to an end."""
        if self._continuation is None or self._n_output < self._next_look:
            return
        if len(self._stored) >= n_most:
            return
        found = self._continuation(bytes(self._said), STORED_TOKENS)
        if not (found or self._known or self._look_gap):  # it left the tree with its first words
            prompt = bytes(self._said[: self._n_prompt_bytes])
            self._known += self._continuation(prompt, STORED_TOKENS)
        self._known += found[len(self._stored) * TOKEN_BYTES :]
        self._stored = unpack(found)
        self._look_gap = 0 if found else min(2 * self._look_gap + 1, _MOST_LOOK_GAP)
        self._next_look = self._n_output + self._look_gap

    def _repeated(self, n_most: int) -> list[int]:
        """Return what followed the last tokens when they came before; a short period goes on."""
        window = self._said[-SEARCHED_TOKENS * TOKEN_BYTES :]
        for n in GRAMS:
            size = n * TOKEN_BYTES
            words = bytes(window[-size:])
            for text in (window, self._known) if len(window) > size else ():
                at = _last_before(text, words)
                if at is not None:
                    following = unpack(bytes(text[at + size : at + size + n_most * TOKEN_BYTES]))
                    return list(islice(cycle(following), n_most))
        return []


def _last_before(window: bytearray, words: bytes) -> int | None:
    """Return where `words` began last with something after them in `window`; None: nowhere."""
    stop = len(window) - 1
    while (at := window.rfind(words, 0, stop)) >= 0:
        if not at % TOKEN_BYTES:
            return at
        stop = at + len(words) - 1
    return None
