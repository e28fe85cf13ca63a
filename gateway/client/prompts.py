"""Random prompts of exact lengths for servers whose tokenizer is not at hand."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from gateway.client.streaming import BenchError

_TEXT = """
    time year people way day man thing woman life child world school state family student group
    country problem hand part place case week company system program question work number night
    point home water room mother area money story fact month lot right study book eye job word
    business issue side kind head house service friend father power hour game line end member law
    car city community name team minute idea kid body information back parent face others level
    office door health person art war history party result change morning reason research girl
"""
WORDS = tuple(f" {word}" for word in _TEXT.split())
Count = Callable[[str], Awaitable[int]]
_PROBE = 8  # copies of a word


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text and the tokens that a server must count in it."""

    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words that a server takes for one token each, and what it adds to every prompt."""

    words: tuple[str, ...]
    added_tokens: int


async def learn_vocabulary(count: Count, words: Sequence[str] = WORDS) -> Vocabulary:
    """Find out which of `words` are one token each, from what `count` says of a few texts.

    Raises:
        BenchError: fewer than two of them are.

    Cost: two requests, and about 2 log2(words) more for each word that is not one token.
    """
    added = 2 * await count(words[0] * _PROBE) - await count(words[0] * 2 * _PROBE)
    single = await _single(count, words, added)
    if len(single) < 2:
        raise BenchError(f"{len(single)} of {len(words)} words are one token to this server")
    return Vocabulary(tuple(single), added)


class PromptMaker:
    """Fresh prompts, the same ones for every server of a comparison as far as lengths allow."""

    def __init__(self, words: Sequence[str], rng: random.Random) -> None:
        self._words = words
        self._rng = rng

    def fresh(self, tokens: int, vocabulary: Vocabulary) -> Prompt:
        """Return a new prompt that the server with `vocabulary` counts as `tokens`."""
        n_words = max(tokens - vocabulary.added_tokens, 1)
        text = "".join(self._rng.choices(self._words, k=n_words))
        return Prompt(text, n_words + vocabulary.added_tokens)

    def longer(self, prompt: Prompt, more_tokens: int) -> Prompt:
        """Return `prompt` with `more_tokens` new ones after it."""
        more = "".join(self._rng.choices(self._words, k=more_tokens))
        return Prompt(prompt.text + more, prompt.tokens + more_tokens)


async def _single(count: Count, words: Sequence[str], added: int) -> list[str]:
    """Return those of `words` that are one token: all, or else what the halves hold."""
    if await count("".join(words)) - added == len(words):
        return list(words)
    if len(words) == 1:
        return []
    middle = len(words) // 2
    left = await _single(count, words[:middle], added)
    return left + await _single(count, words[middle:], added)
