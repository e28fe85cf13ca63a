"""The prompts that a trace's requests become: its own texts, or words that share what ids share."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from gateway.client.prompts import Vocabulary
from gateway.client.streaming import CHAT, COMPLETIONS
from prefixcache.index import pack
from prefixcache.traces import TraceRequest


@dataclass(frozen=True, slots=True)
class LivePrompt:
    """What is sent of a prompt, and its tokens as far as they are known here."""

    route: str
    fields: Mapping[str, object]  # of the request's body
    tokens: bytes  # packed; words have ids of their own, equal where the words are
    expected_tokens: int | None  # what the server must count; None: not known


class WordPrompts:
    """Prompts for a trace of block ids: for each id the same words, one token each.

    Prompts that begin with the same ids begin with the same words, as many as the blocks have
    tokens; after that a word may be the same by chance. A server's own tokens, such as one for
    the beginning, are part of the length that is asked for.
    """

    def __init__(self, vocabulary: Vocabulary, seed: int) -> None:
        self._words = vocabulary.words
        self._places = {word: place for place, word in enumerate(vocabulary.words)}
        self._head = range(len(self._words), len(self._words) + vocabulary.added_tokens)
        self._seed = seed

    def prompt(self, request: TraceRequest, number: int) -> LivePrompt:
        """Return the prompt of request `number` of a trace.

        Tokens of it that have no id are words that no other request has.
        """
        n_words = max(request.input_tokens - len(self._head), 1)
        places: list[int] = []
        for id in request.hash_ids:
            if len(places) >= n_words:
                break
            places += self._run(str(id), request.block_tokens)
        if len(places) < n_words:
            places += self._run(f"after {number}", n_words - len(places))
        del places[n_words:]
        text = "".join([self._words[place] for place in places])
        packed = pack([*self._head, *places])
        return LivePrompt(COMPLETIONS, {"prompt": text}, packed, len(places) + len(self._head))

    def probe(self, text: str, n_tokens: int) -> bytes:
        """Return the tokens of a text of words that a server counted as `n_tokens`.

        From the first word on that is not one token, they are tokens that no prompt has.
        """
        places = [self._places.get(f" {word}") for word in text.split()]
        known = list(takewhile(lambda place: place is not None, places))
        tokens = [*self._head, *(place for place in known if place is not None)]
        unknown = range(self._head.stop, self._head.stop + max(n_tokens - len(tokens), 0))
        return pack([*tokens, *unknown])

    def _run(self, name: str, n_words: int) -> Sequence[int]:
        rng = random.Random(f"{self._seed}/{name}")  # noqa: S311 (prompts, not secrets)
        return rng.choices(range(len(self._words)), k=n_words)


def own_prompt(request: TraceRequest) -> LivePrompt:
    """Return the prompt of a request whose trace has its text: as a text, or as messages."""
    prompt = request.prompt
    assert prompt is not None
    if prompt.text is not None:
        return LivePrompt(COMPLETIONS, {"prompt": prompt.text}, prompt.tokens, None)
    fields: dict[str, object] = {"messages": prompt.messages}
    if prompt.tools:
        fields["tools"] = prompt.tools
    return LivePrompt(CHAT, fields, prompt.tokens, None)
