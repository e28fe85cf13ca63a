"""What OpenAI's fields say of the cache: which prefixes are to stay, and for how long.

Matching needs no breakpoints here: every prefix that is still there is found, however it came.
`prompt_cache_key` chooses a machine where there are several; with one it has no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from prefixcache.types import Retain

Lifetime = Literal["30m", "12h"]
CacheKey = Annotated[str, Meta(max_length=1024)]

LIFETIME_SECONDS: dict[Lifetime, float] = {"30m": 30 * 60.0, "12h": 12 * 3600.0}
MAX_BREAKPOINTS = 4  # that are written of one prompt

_DEFAULT_LIFETIME: Lifetime = "30m"
_MAX_EXPLICIT = {
    "implicit": 3,
    "explicit": MAX_BREAKPOINTS,
}  # the latest so many breakpoints are written


class Breakpoint(msgspec.Struct, frozen=True, kw_only=True):
    """On a part of a message: what is read up to its end is worth keeping."""

    mode: Literal["explicit"]
    ttl: Lifetime | None = None  # None: as the request's options say


class PromptCacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which prefixes of a prompt are kept, and for how long at least."""

    mode: Literal["implicit", "explicit"] | None = None  # implicit
    ttl: Lifetime | None = None


@dataclass(frozen=True, slots=True)
class Marked:
    """A breakpoint, and how many tokens of the prompt lie before it."""

    n_tokens: int
    ttl: Lifetime | None


@dataclass(frozen=True, slots=True)
class CachePlan:
    """Whether a prompt is cached at all, and what of it stays for longer."""

    is_used: bool  # False: nothing is read from the cache, and nothing left there
    retain: tuple[Retain, ...] = ()


def plan_cache(
    options: PromptCacheOptions | None, breakpoints: Iterable[Marked], *, n_tokens: int
) -> CachePlan:
    """Return what is kept of a prompt of `n_tokens` tokens.

    Implicit: all of it is cached, for as long as there is room; a `ttl` asks for longer. The
    latest 3 breakpoints are kept for their lifetime. Explicit: the latest 4 are, and a prompt
    without any does without the cache. `breakpoints` are in prompt order.
    """
    options = options or PromptCacheOptions()
    mode = options.mode or "implicit"
    latest = list(breakpoints)[-_MAX_EXPLICIT[mode] :]
    if mode == "explicit" and not latest:
        return CachePlan(is_used=False)
    if mode == "implicit" and options.ttl is not None:
        latest.append(Marked(n_tokens, options.ttl))
    return CachePlan(True, tuple(_retained(latest, options.ttl or _DEFAULT_LIFETIME)))


def _retained(breakpoints: Sequence[Marked], lifetime: Lifetime) -> Iterable[Retain]:
    """Yield what to keep; of several breakpoints in one place the longest lifetime counts."""
    longest: dict[int, float] = {}
    for each in breakpoints:
        seconds = LIFETIME_SECONDS[each.ttl or lifetime]
        longest[each.n_tokens] = max(longest.get(each.n_tokens, 0.0), seconds)
    for n_tokens, seconds in sorted(longest.items()):
        if n_tokens > 0:
            yield Retain(n_tokens, seconds)
