"""The real index with tenants, published prompts and lower tiers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from prefixcache.errors import ConfigError
from prefixcache.index import TOKEN_BYTES, Namespace, PrefixCache, Quota
from prefixcache.index.policies import EvictionPolicy
from prefixcache.traces.blocks import BLOCK_TOKENS, packed_prompt
from prefixcache.traces.records import TraceRequest
from prefixcache.traces.simulate import TraceClock
from prefixcache.traces.whatif.lower_tiers import LowerTiers

_NOBODY = Namespace()  # whose requests have no tenant
_UNLIMITED_BLOCKS = 2**48


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """What a cache is to have beside a policy and a capacity."""

    is_isolated: bool = False  # a tenant matches its own and what is published
    published: Sequence[tuple[int, ...]] = ()  # hash ids of prompts that all may share
    tier_blocks: Mapping[str, int | None] = field(default_factory=dict)  # below the device, by name


class TraceCache:
    """One cache. With isolated tenants, those who have most give up first, as in a server.

    Published prompts are read in before the first request, and retained.

    Raises:
        ConfigError: a capacity is below 1, or the published prompts have no room.
    """

    def __init__(
        self,
        policy: Callable[[], EvictionPolicy],
        capacity_blocks: int | None,
        options: CacheOptions,
    ) -> None:
        if capacity_blocks is not None and capacity_blocks < 1:
            raise ConfigError("capacity_blocks", capacity_blocks, "must be at least 1")
        self._capacity = _UNLIMITED_BLOCKS if capacity_blocks is None else capacity_blocks
        self._options = options
        self._tiers = LowerTiers(options.tier_blocks) if options.tier_blocks else None
        self._clock = TraceClock()
        n_published = sum(map(len, options.published))
        if n_published >= self._capacity:
            reason = f"the published prompts have {n_published} blocks and need room to spare"
            raise ConfigError("capacity_blocks", capacity_blocks, reason)
        self._cache = PrefixCache(
            pool_blocks=[self._capacity + 1],  # one for the token after a prompt's last block
            block_size_tokens=BLOCK_TOKENS,
            growth_blocks=0,
            token_exact_reuse=False,
            policy=policy,
            published_quota=Quota(max_blocks=n_published + 1),
            lower_tier=self._tiers,
            clock=self._clock,
        )
        for number, ids in enumerate(options.published):
            self._publish(str(number), ids)

    def serve(self, request: TraceRequest) -> int:
        """Run a request; return how many leading blocks it found, on the device or below."""
        self._clock.advance(request.timestamp_seconds)
        self._cache.expire()
        prompt = packed_prompt(request.hash_ids[: self._capacity])
        lease = self._cache.acquire(self._namespace(request), prompt)
        hit_blocks = lease.cached_tokens // BLOCK_TOKENS
        if self._tiers is not None:
            self._tiers.trim(self._cache)
            hit_blocks += self._tiers.n_found(self._cache, lease, prompt)
            self._tiers.trim(self._cache)
        self._cache.commit(lease, prompt[:-TOKEN_BYTES])
        self._cache.release(lease)
        return hit_blocks

    def n_cached(self, request: TraceRequest) -> int:
        """Return how many leading blocks are on the device now. Changes nothing."""
        prompt = packed_prompt(request.hash_ids[: self._capacity])
        return self._cache.match_length(self._namespace(request), prompt) // BLOCK_TOKENS

    def extras(self) -> dict[str, object]:
        """Return what was counted beside hits."""
        extras: dict[str, object] = {}
        if self._options.published:
            extras["published_blocks"] = sum(map(len, self._options.published))
        return extras if self._tiers is None else extras | self._tiers.extras()

    def _namespace(self, request: TraceRequest) -> Namespace:
        if not self._options.is_isolated or request.tenant is None:
            return _NOBODY
        return Namespace(tenant=request.tenant)

    def _publish(self, name: str, ids: tuple[int, ...]) -> None:
        tokens = packed_prompt(ids)[:-TOKEN_BYTES]
        lease = self._cache.prompts.acquire(self._cache.prompts.publish(name, tokens))
        self._cache.commit(lease, tokens)
        self._cache.release(lease)
