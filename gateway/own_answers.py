"""Answers of this gateway's own that come back in a conversation: read as they were generated.

What is remembered is a whole prompt with its answer behind it, as text and as tokens. A later
prompt that begins with this text, to the letter, begins with these tokens; so nothing has to be
known of how a template writes an answer, and one that it rewrites is simply not found.
Design: prefixcache/design/0026-own-answers.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from gateway.config import GatewayConfig
from gateway.memory import TenantMemory
from prefixcache.index import pack, unpack
from prefixcache.text import KnownStart, Tokenizer
from prefixcache.types import Delta, Event, Finished, GenerationRequest

_UNREADABLE = "\ufffd"  # stands for bytes that are no text, and so for different tokens
_SHORT_CHARACTERS = 16 * 2**10  # a prompt of so many, and an answer of so many tokens,
_SHORT_TOKENS = 512  # are remembered in about the time in which a thread is asked to


@dataclass(frozen=True, slots=True)
class Remembered:
    """A prompt and its answer."""

    text: str
    token_ids: bytes  # packed


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Whose conversations may go on from each other; within one tenant a salt separates them."""

    tenant: str
    adapter: str | None
    salt: str | None

    def prefix(self) -> str:
        """Return what the keys of all texts in this scope begin with. No two scopes share one."""
        parts = (self.adapter, self.salt)
        return "".join("-" if part is None else f"{len(part)}:{part}" for part in parts) + "/"


class OwnAnswers:
    """The answers of all tenants, each one's own. Safe to use from many threads at once."""

    def __init__(self, memory: TenantMemory[Remembered]) -> None:
        self._memory = memory

    def remember(
        self, scope: Scope, text: str, token_ids: bytes, *, mark: str | None = None
    ) -> None:
        """Remember what a prompt and its answer said, and in which tokens.

        Args:
            scope: who may go on from it.
            text: both of them; `mark` breaks up what must stay text in it.
            token_ids: packed, of both.
        """
        digest = _Digest(mark)
        digest.add(text)
        found = Remembered(text, token_ids)
        n_bytes = len(text.encode("utf-8", "surrogatepass")) + len(token_ids)
        self._memory.put(scope.tenant, scope.prefix() + digest.value(), found, n_bytes=n_bytes)

    def longest(
        self, scope: Scope, text: str, places: Sequence[int], mark: str | None
    ) -> Remembered | None:
        """Return the longest remembered text that `text` has before one of `places`.

        Cost: linear in the text.
        """
        digest, done, prefix = _Digest(mark), 0, scope.prefix()
        candidates: list[Remembered] = []
        for place in places:
            digest.add(text[done:place])
            done = place
            found = self._memory.get(scope.tenant, prefix + digest.value())
            if found is not None:
                candidates.append(found)
        known = (found for found in reversed(candidates) if text.startswith(found.text))
        return next(known, None)


def own_answers_of(config: GatewayConfig, clock: Callable[[], float]) -> OwnAnswers | None:
    """Return an empty memory of the size that `config` says; None where it turns that off."""
    if not config.own_answers:
        return None
    return OwnAnswers(
        TenantMemory(
            max_tenant_bytes=config.max_own_answers_tenant_bytes,
            max_bytes=config.max_own_answers_bytes,
            ttl_seconds=config.own_answer_seconds,
            clock=clock,
        )
    )


@dataclass(frozen=True, slots=True)
class ScopedHistory:
    """What a scope's prompts may begin with: a `History` for the text side."""

    answers: OwnAnswers
    scope: Scope
    begins_with: bytes = b""  # packed: what begins with other tokens is not known

    def longest(self, text: str, places: Sequence[int], mark: str | None) -> KnownStart | None:
        """See `History`."""
        found = self.answers.longest(self.scope, text, places, mark)
        if found is None or not found.token_ids.startswith(self.begins_with):
            return None
        return KnownStart(found.text, unpack(found.token_ids))


@dataclass(slots=True)
class _Answer:
    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)


class Ending(NamedTuple):
    """What is to be done when an answer has ended."""

    run: Callable[[], None]
    is_long: bool  # too long for an event loop


class Recorder:
    """Listens to one call's events and remembers each answer that is whole."""

    def __init__(
        self,
        history: ScopedHistory,
        text: str,
        mark: str | None,
        requests: Sequence[GenerationRequest],
        tokenizer: Tokenizer,
    ) -> None:
        """Listen to the answers to one prompt.

        Args:
            history: where they are remembered.
            text, mark: the prompt's, as it was encoded.
            requests: one for each answer.
            tokenizer: tells what their tokens say.
        """
        self._history = history
        self._text = text
        self._mark = mark
        self._requests = requests
        self._tokenizer = tokenizer
        self._answers = [_Answer() for _ in requests]

    def add(self, index: int, delta: Delta) -> None:
        """Take what request `index` has said."""
        answer = self._answers[index]
        answer.pieces.append(delta.text)
        answer.token_ids += delta.token_ids

    def ending(self, index: int, event: Event) -> Ending | None:
        """Return what remembers the answer of request `index`, if `event` ends it whole."""
        if not isinstance(event, Finished) or event.stop is not None:
            return None
        answer = self._answers[index]
        is_long = len(self._text) > _SHORT_CHARACTERS or len(answer.token_ids) > _SHORT_TOKENS
        return Ending(partial(self._remember, self._requests[index], answer), is_long)

    def _remember(self, request: GenerationRequest, answer: _Answer) -> None:
        """Remember an answer. Cost: linear in the prompt and the answer."""
        text, ids = "".join(answer.pieces), answer.token_ids
        if not text or _UNREADABLE in text or (self._mark and self._mark in text):
            return
        if self._tokenizer.decode(ids, skip_special_tokens=False) != text:
            return  # a special token that was not shown, or text that was cut
        self._history.answers.remember(
            self._history.scope,
            self._text + text,
            request.token_ids + pack(ids),
            mark=self._mark,
        )


class _Digest:
    """Names a text that grows. One with marks in it has another name than one without."""

    def __init__(self, mark: str | None) -> None:
        self._mark = mark
        self._hash = hashlib.blake2b(digest_size=16)
        self._has_mark = False

    def add(self, text: str) -> None:
        self._has_mark |= self._mark is not None and self._mark in text
        self._hash.update(text.encode("utf-8", "surrogatepass"))

    def value(self) -> str:
        return f"{self._mark if self._has_mark else ''}{self._hash.hexdigest()}"
