"""Seeded workloads for the index: prompts as packed token ids, made as they are asked for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from prefixcache.index import TOKEN_BYTES

BLOCK_TOKENS = 16
_ID_MASK = b"\xff\xff\x01\x00"  # ids below 2**17: the size of a large vocabulary


def random_tokens(rng: random.Random, n_tokens: int) -> bytes:
    """Return packed ids, each any of 2**17 with the same chance. Cost: some 10 ns a token."""
    mask = int.from_bytes(_ID_MASK * n_tokens, "little")
    ids = rng.getrandbits(n_tokens * TOKEN_BYTES * 8) & mask
    return ids.to_bytes(n_tokens * TOKEN_BYTES, "little")


@dataclass(frozen=True, slots=True)
class SharedPrompts:
    """Requests that start with one of a few system prompts and end in tokens of their own."""

    n_requests: int = 1000
    n_systems: int = 8
    system_tokens: int = 4096
    new_tokens: int = 256
    pool_blocks: int = 400_000  # nothing is evicted
    seed: int = 1

    def prompts(self) -> Iterator[bytes]:
        """Yield each request's prompt."""
        rng = _rng(self.seed)
        systems = [random_tokens(rng, self.system_tokens) for _ in range(self.n_systems)]
        for _ in range(self.n_requests):
            yield rng.choice(systems) + random_tokens(rng, self.new_tokens)


@dataclass(frozen=True, slots=True)
class LongPrompt:
    """One prompt as long as a book."""

    n_tokens: int = 128_000
    pool_blocks: int = 40_000
    seed: int = 2

    def prompt(self) -> bytes:
        """Return it."""
        return random_tokens(_rng(self.seed), self.n_tokens)


@dataclass(frozen=True, slots=True)
class Chats:
    """Conversations whose every request is the whole history and a new turn.

    Few conversations have most of the turns: the chance of the n-th one falls with n ** -0.6. One
    that would get too long starts again.
    """

    n_requests: int = 4000
    n_conversations: int = 600
    n_systems: int = 16
    system_tokens: int = 1024
    least_turn_tokens: int = 256
    most_turn_tokens: int = 1023
    most_tokens: int = 16_384
    pool_blocks: int = 100_000  # less than all of it takes
    seed: int = 3

    def prompts(self) -> Iterator[bytes]:
        """Yield each request's prompt, the answer included: all that will be stored."""
        rng = _rng(self.seed)
        systems = [random_tokens(rng, self.system_tokens) for _ in range(self.n_systems)]
        histories = [rng.choice(systems) for _ in range(self.n_conversations)]
        ranks = range(1, self.n_conversations + 1)
        chances = list(accumulate(rank**-0.6 for rank in ranks))
        picks = rng.choices(range(self.n_conversations), cum_weights=chances, k=self.n_requests)
        for picked in picks:
            n_new = rng.randint(self.least_turn_tokens, self.most_turn_tokens)
            if len(histories[picked]) // TOKEN_BYTES + n_new > self.most_tokens:
                histories[picked] = rng.choice(systems)
            histories[picked] += random_tokens(rng, n_new)
            yield histories[picked]


@dataclass(frozen=True, slots=True)
class ThinLeaves:
    """Short prompts that share nothing. The first ones fill the pool; each further one evicts."""

    n_leaves: int = 25_000
    n_timed: int = 20_000  # enough that costs put off would show
    prompt_tokens: int = 64
    seed: int = 5

    @property
    def pool_blocks(self) -> int:
        """What the leaves fill."""
        return self.n_leaves * self.prompt_tokens // BLOCK_TOKENS

    def prompts(self) -> Iterator[bytes]:
        """Yield those that fill the pool, then those that are timed."""
        rng = _rng(self.seed)
        for _ in range(self.n_leaves + self.n_timed):
            yield random_tokens(rng, self.prompt_tokens)


@dataclass(frozen=True, slots=True)
class ManyBlocks:
    """Requests after shared system prompts, until so many different blocks are stored."""

    n_blocks: int = 1_000_000
    n_systems: int = 64
    system_tokens: int = 4096
    new_tokens: int = 1024
    seed: int = 4

    @property
    def pool_blocks(self) -> int:
        """Room for all of it: the last request may go beyond `n_blocks`."""
        return self.n_blocks + (self.system_tokens + self.new_tokens) // BLOCK_TOKENS

    def prompts(self) -> Iterator[bytes]:
        """Yield each request's prompt."""
        rng = _rng(self.seed)
        systems = [random_tokens(rng, self.system_tokens) for _ in range(self.n_systems)]
        seen: set[int] = set()
        n_stored = 0
        while n_stored < self.n_blocks:
            picked = rng.randrange(self.n_systems)
            n_new = self.new_tokens + (0 if picked in seen else self.system_tokens)
            seen.add(picked)
            n_stored += n_new // BLOCK_TOKENS
            yield systems[picked] + random_tokens(rng, self.new_tokens)


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation of many turns, each the whole history and as many new tokens."""

    n_turns: int = 2000
    turn_tokens: int = 64
    window: int = 100  # turns at either end that are compared
    seed: int = 6

    @property
    def pool_blocks(self) -> int:
        """Room for all of it."""
        return self.n_turns * self.turn_tokens // BLOCK_TOKENS + 1

    def turns(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield each turn's history and its prompt, which starts with that history."""
        rng = _rng(self.seed)
        history = b""
        for _ in range(self.n_turns):
            prompt = history + random_tokens(rng, self.turn_tokens)
            yield history, prompt
            history = prompt


def _rng(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 (prompts, not secrets)
