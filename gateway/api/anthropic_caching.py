"""cache_control: which parts of a prompt are kept, for how long, and what usage says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from gateway.api.anthropic_models import CacheControl
from gateway.api.anthropic_prompt import Breakpoint, Conversation
from gateway.errors import InvalidRequestError
from prefixcache.text import Mark
from prefixcache.types import Retain, Usage

_MAX_BREAKPOINTS = 4
_SHORT, _LONG = "5m", "1h"
_SECONDS = {_SHORT: 300.0, _LONG: 3600.0}


class Written(msgspec.Struct, frozen=True):
    """Tokens written to the cache, by how long they stay."""

    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int


class UsageReply(msgspec.Struct, frozen=True, kw_only=True):
    """Anthropic's account of tokens: the three kinds of input add up to the prompt."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    cache_creation: Written
    output_tokens: int
    service_tier: str = "standard"


@dataclass(frozen=True, slots=True)
class Kept:
    """How much of a prompt was asked to be kept, in whole blocks: `long_tokens` for longer."""

    short_tokens: int = 0
    long_tokens: int = 0

    def expected(self, prompt_tokens: int, cached_tokens: int) -> UsageReply:
        """Return what can be said before the answer: all that was asked for will be written."""
        return self.usage(Usage(prompt_tokens, cached_tokens, 0, prompt_tokens - cached_tokens))

    def usage(self, usage: Usage) -> UsageReply:
        """Return `usage` as Anthropic writes it: read from the cache, written to it, neither.

        What was not asked to be kept counts as neither, and so does what was, but is not there:
        written are at most the ledger's tokens, the longer time's first.
        """
        read = usage.cached_tokens
        long_written = min(max(0, self.long_tokens - read), usage.written_tokens)
        short_asked = max(0, self.short_tokens - max(self.long_tokens, read))
        short_written = min(short_asked, usage.written_tokens - long_written)
        written = long_written + short_written
        return UsageReply(
            input_tokens=usage.prompt_tokens - read - written,
            cache_creation_input_tokens=written,
            cache_read_input_tokens=read,
            cache_creation=Written(short_written, long_written),
            output_tokens=usage.output_tokens,
        )


def breakpoints_of(made: Conversation, automatic: CacheControl | None) -> list[Breakpoint]:
    """Return the conversation's breakpoints; `automatic` is one more, at its very end.

    Raises:
        InvalidRequestError: there are more than four, a longer time comes after a shorter one,
            or the last block has another time than `automatic`.
    """
    found = list(made.breakpoints)
    if automatic is not None:
        last = Breakpoint("cache_control", Mark(len(made.messages) - 1), automatic)
        found = _with_last(found, last, made)
    if len(found) > _MAX_BREAKPOINTS:
        raise InvalidRequestError(
            f"{found[_MAX_BREAKPOINTS].param}: at most {_MAX_BREAKPOINTS} blocks may have"
            f" cache_control; {len(found)} have",
            found[_MAX_BREAKPOINTS].param,
        )
    for before, after in pairwise(found):
        if _ttl(before) == _SHORT and _ttl(after) == _LONG:
            raise InvalidRequestError(
                f"{after.param}.ttl: 1h must not come after 5m, as it does after {before.param};"
                " the order is tools, system, messages",
                f"{after.param}.ttl",
            )
    return found


def retained(
    breakpoints: Sequence[Breakpoint], fixed_tokens: Sequence[int], block_tokens: int
) -> tuple[tuple[Retain, ...], Kept]:
    """Return what the engine is asked to keep, and what usage will say of it.

    Args:
        fixed_tokens: of the prompt, by each breakpoint.
        block_tokens: KV is kept in blocks of so many; a part of one is not kept.
    """
    kept = {_SHORT: 0, _LONG: 0}
    for each, n_tokens in zip(breakpoints, fixed_tokens, strict=True):
        whole = n_tokens - n_tokens % block_tokens
        kept[_ttl(each)] = max(kept[_ttl(each)], whole)
    retains = tuple(Retain(n, _SECONDS[ttl]) for ttl, n in kept.items() if n)
    return retains, Kept(kept[_SHORT], kept[_LONG])


def _with_last(found: list[Breakpoint], last: Breakpoint, made: Conversation) -> list[Breakpoint]:
    parts = made.messages[-1].get("content")
    part_index = len(parts) - 1 if isinstance(parts, list) else None
    same = (last.mark, Mark(len(made.messages) - 1, part_index))
    if found and found[-1].mark in same and "tool_calls" not in made.messages[-1]:
        if _ttl(found[-1]) != _ttl(last):
            raise InvalidRequestError(
                f"cache_control.ttl: {_ttl(last)}, but the last block has {_ttl(found[-1])}",
                "cache_control.ttl",
            )
        return found
    return [*found, last]


def _ttl(each: Breakpoint) -> str:
    return each.control.ttl or _SHORT
