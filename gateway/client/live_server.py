"""The server that a trace is sent to: what it is, and how its cache is made."""

from __future__ import annotations

from dataclasses import dataclass

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from gateway.client.identity import Identity
from gateway.client.prompts import WORDS, Vocabulary, learn_vocabulary
from gateway.client.streaming import stream_completion

DEFAULT_BLOCK_TOKENS = 16
OWN_KIND = "prefixcache"
_TOKENS = "prefixcache_block_tokens"
_BLOCKS = "prefixcache_pool_blocks"


@dataclass(frozen=True, slots=True)
class ServerCache:
    """How a server's cache is made, and who says so."""

    block_tokens: int
    capacity_blocks: int | None  # None: without a limit, or not known
    source: str


@dataclass(frozen=True, slots=True)
class Learned:
    """A server's vocabulary, and what it was asked for that, which it may have cached."""

    vocabulary: Vocabulary
    probes: tuple[tuple[str, int], ...]  # (text, the tokens that the server counted)


async def server_cache(
    session: aiohttp.ClientSession,
    url: str,
    *,
    block_tokens: int | None,
    capacity_blocks: int | None,
) -> ServerCache:
    """Return what is given of a server's cache, else what its metrics say, else what is usual.

    Only servers of ours say it, and only to whoever may read their metrics.
    """
    if block_tokens is not None and capacity_blocks is not None:
        return ServerCache(block_tokens, capacity_blocks, "given")
    told = await _told(session, url)
    source = "given" if block_tokens or capacity_blocks else "assumed" if told is None else "server"
    found_tokens, found_blocks = told or (DEFAULT_BLOCK_TOKENS, None)
    return ServerCache(block_tokens or found_tokens, capacity_blocks or found_blocks, source)


async def learn(session: aiohttp.ClientSession, url: str, identity: Identity) -> Learned:
    """Find out which words are one token to a server. Raises BenchError."""
    probes: list[tuple[str, int]] = []

    async def count(text: str) -> int:
        body = {"model": identity.model, "prompt": text, "max_tokens": 1, "temperature": 0}
        answer = await stream_completion(
            session, url, {**body, **identity.kind.extra}, needs_text=False
        )
        probes.append((text, answer.prompt_tokens))
        return answer.prompt_tokens

    vocabulary = await learn_vocabulary(count, WORDS)
    return Learned(vocabulary, tuple(probes))


async def _told(session: aiohttp.ClientSession, url: str) -> tuple[int, int | None] | None:
    """Return the tokens of a block and the blocks of the pool, where a server of ours tells."""
    try:
        async with session.get(f"{url}/metrics", allow_redirects=False) as response:
            if response.status != 200:
                return None
            families = list(text_string_to_metric_families(await response.text()))
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None
    samples = [sample for family in families for sample in family.samples]
    block_tokens = sum(int(sample.value) for sample in samples if sample.name == _TOKENS)
    n_blocks = sum(int(sample.value) for sample in samples if sample.name == _BLOCKS)
    return (block_tokens, n_blocks or None) if block_tokens else None
