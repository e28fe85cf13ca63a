"""Caches of prefixes written to be obviously right, and the small traces to try them on."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from hypothesis import strategies as st

from prefixcache.traces import TraceRequest

Ids = tuple[int, ...]

BLOCK_TOKENS = 4

prompts = st.lists(  # few different blocks, so that prompts begin alike; some of them say 0 twice
    st.lists(st.integers(0, 2), max_size=6).map(tuple), max_size=12
)


def trace(*rows: Ids) -> list[TraceRequest]:
    """One request a second, of whole blocks of four tokens."""
    return [
        TraceRequest(float(second), BLOCK_TOKENS * len(ids), 1, ids, BLOCK_TOKENS)
        for second, ids in enumerate(rows)
    ]


def prefixes(ids: Ids, capacity_blocks: int | None = None) -> list[Ids]:
    """Return what the blocks of a prompt stand for, those beyond the capacity left out."""
    return [ids[:n] for n in range(1, len(ids[:capacity_blocks]) + 1)]


def n_leading(path: Sequence[Ids], resident: Iterable[Ids]) -> int:
    """Return how many leading blocks of a prompt are resident."""
    known = set(resident)
    return len(list(itertools.takewhile(known.__contains__, path)))


class PlainLru:
    """Least recently used, leaves only: a list of prefixes, and another of what runs.

    A running request holds its prompt and one block for its answer, for which the cache has one
    block beyond its capacity.
    """

    def __init__(self, capacity_blocks: int) -> None:
        self.capacity_blocks = capacity_blocks
        self.idle: list[Ids] = []  # the longest unused first
        self.running: list[tuple[float, int, list[Ids]]] = []  # end, start, prompt
        self.n_started = itertools.count()
        self.now = 0.0

    @property
    def held(self) -> set[Ids]:
        return {prefix for _, _, path in self.running for prefix in path}

    def run(self, request: TraceRequest, seconds: float = 0.0) -> int:
        """Start a request when it can, and return its leading blocks that were there."""
        self.running.sort()
        while self.running and self.running[0][0] <= request.timestamp_seconds:
            self.end_first()
        self.now = max(self.now, request.timestamp_seconds)
        path = prefixes(request.hash_ids, self.capacity_blocks)
        while not self.has_room(path):
            self.end_first()
        hits = n_leading(path, [*self.idle, *self.held])
        self.idle = [prefix for prefix in self.idle if prefix not in path]
        self.running.append((self.now + seconds, next(self.n_started), path))
        while len(self.idle) + len(self.held) + len(self.running) > self.capacity_blocks + 1:
            self.idle.remove(next(prefix for prefix in self.idle if self.is_leaf(prefix)))
        if not seconds:
            self.running.insert(0, self.running.pop())
            self.end_first()
        self.running.sort()
        return hits

    def has_room(self, path: Sequence[Ids]) -> bool:
        needed = len(self.held | set(path)) + len(self.running) + 1
        return needed <= self.capacity_blocks + 1

    def is_leaf(self, prefix: Ids) -> bool:
        others = [*self.idle, *self.held]
        return not any(len(o) > len(prefix) and o[: len(prefix)] == prefix for o in others)

    def end_first(self) -> None:
        """End a running request; what nobody else uses is idle from now on, its tail first."""
        end, _, path = self.running.pop(0)
        self.now = max(self.now, end)
        self.idle += [prefix for prefix in reversed(path) if prefix not in self.held]


def plain_lru(requests: Iterable[TraceRequest], capacity_blocks: int) -> Iterator[int]:
    """Yield the hits of requests that run one after another."""
    cache = PlainLru(capacity_blocks)
    for request in requests:
        yield cache.run(request)


def best(rows: Sequence[Ids], capacity_blocks: int, *, running_takes_room: bool) -> int:
    """Return the most hit blocks, by trying every choice of what to keep after each request."""
    states: dict[frozenset[Ids], int] = {frozenset(): 0}  # what is kept: the most hits so far
    for ids in rows:
        path = prefixes(ids, capacity_blocks)
        following: dict[frozenset[Ids], int] = {}
        for kept, hits in states.items():
            now = hits + n_leading(path, kept)
            others = kept - set(path)
            n_beside = capacity_blocks - len(path) if running_takes_room else len(others)
            for n_others in range(min(n_beside, len(others)) + 1):
                for rest in itertools.combinations(sorted(others), n_others):
                    for choice in _choices([*rest, *path], capacity_blocks):
                        following[choice] = max(following.get(choice, 0), now)
        states = following
    return max(states.values())


def _choices(blocks: Sequence[Ids], most: int) -> Iterator[frozenset[Ids]]:
    for n_blocks in range(min(most, len(blocks)) + 1):
        yield from map(frozenset, itertools.combinations(blocks, n_blocks))
