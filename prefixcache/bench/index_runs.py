"""One run of each timed workload over a fresh cache."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from prefixcache.bench.index_rows import Row
from prefixcache.bench.index_workloads import (
    BLOCK_TOKENS,
    Chats,
    Conversation,
    LongPrompt,
    SharedPrompts,
    ThinLeaves,
)
from prefixcache.index import TOKEN_BYTES, Namespace, PrefixCache, pack, unpack

Clock = Callable[[], float]  # seconds

_NAMESPACE = Namespace()
_LOOKUPS = 7  # of the long prompt, in one run
_MOST_NODES = 100_000  # more than any conversation makes
_MICRO = 1e6


class Visit(NamedTuple):
    """One request through the index: seconds of each call, and the tokens it found."""

    acquire: float
    commit: float
    release: float
    hit_tokens: int
    prompt_tokens: int

    @property
    def seconds(self) -> float:
        """All three calls."""
        return self.acquire + self.commit + self.release


class Look(NamedTuple):
    """A prompt that is packed, looked up and compared: seconds of each, and the tokens it found."""

    pack: float
    match: float
    compare: float
    matched_tokens: int


class Eviction(NamedTuple):
    """One call of `evict`: seconds, and the blocks it gave up."""

    seconds: float
    n_blocks: int


def measure_shared(workload: SharedPrompts, clock: Clock) -> Row:
    """A: conversion from a list and each call of a request apart; nothing is evicted."""
    cache = PrefixCache(pool_blocks=[workload.pool_blocks])
    packing, visits = [], []
    for prompt in workload.prompts():
        ids = unpack(prompt)
        begin = clock()
        packed = pack(ids)
        packing.append(clock() - begin)
        visits.append(_visit(cache, packed, clock))
    figures: dict[str, float] = {"requests": len(visits)}
    stages = {
        "pack": packing,
        "acquire": [visit.acquire for visit in visits],
        "commit": [visit.commit for visit in visits],
        "release": [visit.release for visit in visits],
        "request": [visit.seconds for visit in visits],  # without the conversion
    }
    for name, times in stages.items():
        figures[f"{name}_us_mean"] = statistics.mean(times) * _MICRO
        figures[f"{name}_us_median"] = statistics.median(times) * _MICRO
    return Row("A", figures | _hits(visits))


def measure_long(workload: LongPrompt, clock: Clock) -> Row:
    """B: a long prompt that is stored already, beside the comparison of its bytes alone.

    `reinsert` is a commit from the handle of a request that found all but the last block. Each
    time the prompt is a fresh copy, as it is for a request.
    """
    ids, stored = unpack(workload.prompt()), workload.prompt()
    cache = PrefixCache(pool_blocks=[workload.pool_blocks])
    insert = _visit(cache, stored, clock).commit
    looks, visits = [], []
    for _ in range(_LOOKUPS):
        looks.append(_look(cache, ids, stored, clock))
        visits.append(_visit(cache, pack(ids), clock))
    packing, match, compare, n_matched = map(statistics.median, zip(*looks, strict=True))
    acquire, reinsert, release, _, _ = map(statistics.median, zip(*visits, strict=True))
    return Row(
        "B",
        {
            "prompt_tokens": len(ids),
            "matched_tokens": n_matched,
            "pack_us": packing * _MICRO,
            "insert_us": insert * _MICRO,
            "compare_us": compare * _MICRO,
            "match_us": match * _MICRO,
            "acquire_us": acquire * _MICRO,
            "reinsert_us": reinsert * _MICRO,
            "release_us": release * _MICRO,
            "match_to_compare": match / compare,
            "acquire_to_compare": acquire / compare,
            "reinsert_to_compare": reinsert / compare,
        },
    )


def measure_chats(workload: Chats, clock: Clock) -> Row:
    """C: chats in a pool that is too small.

    Two passes: in one `acquire` makes room, as in a server; in the other `evict` is called for it,
    and timed.
    """
    cache = PrefixCache(pool_blocks=[workload.pool_blocks])
    visits = [_visit(cache, prompt, clock) for prompt in workload.prompts()]
    evictions = _evictions(workload.prompts(), workload.pool_blocks, workload.most_tokens, clock)
    seconds = sum(visit.seconds for visit in visits)
    return Row(
        "C",
        {
            "requests": len(visits),
            "request_us_mean": seconds / len(visits) * _MICRO,
            "requests_per_second": len(visits) / seconds,
        }
        | _eviction_figures(evictions)
        | _hits(visits),
    )


def measure_thin(workload: ThinLeaves, clock: Clock) -> Row:
    """C2: eviction among so many leaves, of which every request takes the place of one."""
    pool_blocks, n_leaves = workload.pool_blocks, workload.n_leaves
    cache = PrefixCache(pool_blocks=[pool_blocks])
    visits = [_visit(cache, prompt, clock) for prompt in workload.prompts()][n_leaves:]
    evictions = _evictions(workload.prompts(), pool_blocks, workload.prompt_tokens, clock)
    return Row(
        "C2",
        {
            "leaves": n_leaves,
            "requests": len(visits),
            "request_us_mean": statistics.mean(visit.seconds for visit in visits) * _MICRO,
        }
        | _eviction_figures(evictions),
    )


def measure_conversation(workload: Conversation, clock: Clock) -> Row:
    """chain: what a turn costs at the start and at the end of a long conversation.

    `compare` is the comparison of the history's bytes alone, which any exact match has to make.
    """
    cache = PrefixCache(pool_blocks=[workload.pool_blocks])
    visits, comparing = [], []
    for history, prompt in workload.turns():
        copy = bytes(bytearray(history))  # not the bytes themselves, or nothing is compared
        begin = clock()
        is_alike = prompt.startswith(copy)
        comparing.append(clock() - begin)
        assert is_alike
        visits.append(_visit(cache, prompt, clock))
    seconds = [visit.seconds for visit in visits]
    n = workload.window
    ends = {
        "first_turns_us": seconds[:n],
        "last_turns_us": seconds[-n:],
        "first_compare_us": comparing[:n],
        "last_compare_us": comparing[-n:],
    }
    figures: dict[str, float] = {
        "turns": len(visits),
        "window_turns": n,
        "longest_path_nodes": _longest_path(cache),
    }
    figures |= {name: statistics.mean(times) * _MICRO for name, times in ends.items()}
    return Row("chain", figures | _hits(visits))


def _visit(cache: PrefixCache, packed: bytes, clock: Clock) -> Visit:
    """Take one request through the index, as if its whole prompt was computed meanwhile."""
    begin = clock()
    lease = cache.acquire(_NAMESPACE, packed)
    acquired = clock()
    cache.commit(lease, packed)
    committed = clock()
    cache.release(lease)
    released = clock()
    return Visit(
        acquired - begin,
        committed - acquired,
        released - committed,
        lease.cached_tokens,
        len(packed) // TOKEN_BYTES,
    )


def _look(cache: PrefixCache, ids: Sequence[int], stored: bytes, clock: Clock) -> Look:
    """Pack a prompt, look it up, and compare it with the stored one byte by byte."""
    begin = clock()
    packed = pack(ids)
    converted = clock()
    n_matched = cache.match_length(_NAMESPACE, packed)
    matched = clock()
    is_alike = packed.startswith(stored)
    compared = clock()
    assert is_alike
    return Look(converted - begin, matched - converted, compared - matched, n_matched)


def _evictions(
    prompts: Iterable[bytes], most_blocks: int, most_tokens: int, clock: Clock
) -> list[Eviction]:
    """Serve `prompts`, evicting before each commit down to `most_blocks`; return what that cost.

    The pool has room for one request more, so that `acquire` never has to evict by itself.
    """
    spare = -(-most_tokens // BLOCK_TOKENS)
    cache = PrefixCache(pool_blocks=[most_blocks + spare])
    evictions = []
    for prompt in prompts:
        lease = cache.acquire(_NAMESPACE, prompt)
        counts = cache.counts()
        surplus = counts.cached + counts.held - most_blocks
        if surplus > 0:
            begin = clock()
            n_blocks = cache.evict(surplus)
            evictions.append(Eviction(clock() - begin, n_blocks))
        cache.commit(lease, prompt)
        cache.release(lease)
    return evictions


def _eviction_figures(evictions: Sequence[Eviction]) -> dict[str, float]:
    seconds = sum(eviction.seconds for eviction in evictions)
    n_blocks = sum(eviction.n_blocks for eviction in evictions)
    return {
        "evict_calls": len(evictions),
        "evicted_blocks": n_blocks,
        "evict_us_per_call": seconds / max(len(evictions), 1) * _MICRO,
        "evict_us_per_block": seconds / max(n_blocks, 1) * _MICRO,
    }


def _longest_path(cache: PrefixCache) -> int:
    """Return how many nodes lie on the longest path of any tree of a small cache."""
    longest = 0
    for tree in cache.snapshot(max_nodes=_MOST_NODES).trees:
        depths: list[int] = []
        for node in tree.nodes:  # parents before children; an id is a place in this list
            depths.append(1 if node.parent is None else depths[node.parent] + 1)
        longest = max([longest, *depths])
    return longest


def _hits(visits: Sequence[Visit]) -> dict[str, float]:
    hit_tokens = sum(visit.hit_tokens for visit in visits)
    prompt_tokens = sum(visit.prompt_tokens for visit in visits)
    return {
        "prompt_tokens": prompt_tokens,
        "hit_tokens": hit_tokens,
        "hit_rate": hit_tokens / prompt_tokens,
    }
