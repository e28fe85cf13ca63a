"""What a server would have cached of prompts whose tokens are known: one after another."""

from __future__ import annotations

from collections.abc import Callable

from prefixcache.errors import ConfigError, PoolExhaustedError, RequestTooLargeError
from prefixcache.index import TOKEN_BYTES, Lease, Namespace, PrefixCache, pack
from prefixcache.index.policies import EvictionPolicy, LruPolicy
from prefixcache.traces.simulate import TraceClock

_NAMESPACE = Namespace()
_UNLIMITED_BLOCKS = 2**31
_FIRST_ANSWER_ID = 2**31  # token ids of answers, which no prompt has
_LAST_ID = 2**32 - 1


class TokenCache:
    """The index as a server has it, fed with the tokens of prompts; a request ends with its call.

    Answers take room as they do in a server, but what they say is unknown, so no prompt matches
    them: where a later prompt goes on with what was answered, a server finds more.

    Args:
        block_tokens: tokens of a server's block.
        capacity_blocks: the server's pool; None: nothing is ever given up for room.
        token_exact: whether the part of a block that a prompt shares counts, or whole ones alone.
        policy: makes what chooses who is given up.

    Raises:
        ConfigError: a number is below 1.
    """

    def __init__(
        self,
        *,
        block_tokens: int,
        capacity_blocks: int | None = None,
        token_exact: bool = True,
        policy: Callable[[], EvictionPolicy] = LruPolicy,
    ) -> None:
        if capacity_blocks is not None and capacity_blocks < 1:
            raise ConfigError("capacity_blocks", capacity_blocks, "must be at least 1")
        self._clock = TraceClock()
        self._cache = PrefixCache(
            pool_blocks=[_UNLIMITED_BLOCKS if capacity_blocks is None else capacity_blocks],
            block_size_tokens=block_tokens,
            token_exact_reuse=token_exact,
            policy=policy,
            clock=self._clock,
        )
        self._next_id = _FIRST_ANSWER_ID

    def serve(self, prompt: bytes, *, output_tokens: int, now_seconds: float = 0.0) -> int:
        """Run a request; return its cached tokens, 0 where the cache is too small for it.

        Args:
            prompt: its token ids, packed, each below 2**31.
            output_tokens: of its answer; the last one of them is never stored.
            now_seconds: when it comes; for policies with a time limit.
        """
        self._clock.advance(now_seconds)
        self._cache.expire()
        n_stored = max(output_tokens - 1, 0)
        try:
            lease = self._cache.acquire(_NAMESPACE, prompt, room_tokens=int(n_stored > 0))
        except RequestTooLargeError:
            return 0
        try:
            self._cache.commit(lease, prompt)
            self._answer(lease, prompt, n_stored)
        finally:
            self._cache.release(lease)
        return lease.cached_tokens

    def _answer(self, lease: Lease, prompt: bytes, n_stored: int) -> None:
        """Store an answer after its prompt, where there is room for all of it."""
        if not n_stored:
            return
        n_tokens = len(prompt) // TOKEN_BYTES + n_stored
        try:
            self._cache.extend(lease, n_tokens, most_tokens=n_tokens)
        except (RequestTooLargeError, PoolExhaustedError):
            return
        if self._next_id + n_stored > _LAST_ID:
            self._next_id = _FIRST_ANSWER_ID
        ids = range(self._next_id, self._next_id + n_stored)
        self._next_id += n_stored
        self._cache.commit(lease, prompt + pack(ids))
