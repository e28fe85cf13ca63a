"""Making the tiers that a configuration asks for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from prefixcache.config import EngineConfig
from prefixcache.engine.budget import StepBudget
from prefixcache.engine.index_groups import IndexGroups
from prefixcache.engine.resources import host_available_bytes
from prefixcache.engine.sequence import reads_cache
from prefixcache.engine.served import Served
from prefixcache.engine.tiers.ahead import ReadAhead
from prefixcache.engine.tiers.filling import Filling
from prefixcache.engine.tiers.keeping import Keeping
from prefixcache.engine.tiers.lane import TierLane
from prefixcache.engine.tiers.late import LateTier
from prefixcache.engine.tiers.naming import Naming
from prefixcache.engine.tiers.speeds import TransferSpeed, Worth
from prefixcache.engine.tiers.tiers import Tiers
from prefixcache.errors import ConfigError
from prefixcache.index import PrefixCache
from prefixcache.kv import KVStore
from prefixcache.kv.host import HostArena, HostTier
from prefixcache.tiers import BlockTier
from prefixcache.tiers.disk import DiskTier
from prefixcache.tiers.remote import RemoteTier

_READ_SHARE = 4  # what is read ahead takes at most this part of the KV memory


def open_host(config: EngineConfig, store: KVStore, groups: IndexGroups) -> HostTier | None:
    """Take the memory of the host tier; None: there is to be none.

    Raises:
        ConfigError: it cannot be had, or holds no block.
    """
    n_bytes = config.host_memory_bytes
    if not (n_bytes and config.prefix_cache):
        return None
    available = host_available_bytes()
    if n_bytes > available:
        reason = f"only {available} bytes are available; lower it"
        raise ConfigError("host_memory_bytes", n_bytes, reason)
    arena = HostArena(store, n_bytes)
    return HostTier(arena, groups.runs_of, whole_group=max(groups.whole - groups.n_added, 0))


def open_lasting(config: EngineConfig) -> dict[str, BlockTier]:
    """Open the tiers that outlive the process, the nearest first.

    Raises:
        ConfigError: a setting of theirs cannot work. What is but out of reach is tried again.
    """
    found: dict[str, BlockTier] = {}
    if config.disk is not None and config.prefix_cache:
        folder = Path(config.disk).expanduser()
        found["disk"] = LateTier(partial(DiskTier, folder, max_bytes=config.disk_bytes))
    if config.remote is not None and config.prefix_cache:
        make = partial(
            RemoteTier,
            config.remote,
            ttl_seconds=config.remote_ttl_seconds,
            max_value_bytes=config.remote_value_bytes,
        )
        try:
            found["remote"] = LateTier(make)
        except ConfigError:
            for tier in found.values():
                tier.close()  # or its folder stays taken by nobody
            raise
    return found


def open_tiers(
    config: EngineConfig,
    cache: PrefixCache,
    store: KVStore,
    groups: IndexGroups,
    served: Served,
    budget: StepBudget,
    host: HostTier | None,
    lasting: Mapping[str, BlockTier],
    clock: Callable[[], float],
) -> Tiers:
    """Put the tiers of an engine together.

    Args:
        host: what `cache` was made with.
        lasting: those that outlive the process, by name, the nearest first.
        clock: seconds, never falling.
    """
    n_groups = range(len(store.layout.groups))
    part_bytes = [
        (store.block_bytes(group), groups.windows[group + groups.n_added] is not None)
        for group in n_groups
    ]
    block_bytes = sum(n_bytes for n_bytes, _ in part_bytes)
    size = cache.block_size_tokens
    worth = Worth(config.tier_loading, budget, bytes_per_token=-(-block_bytes // size))
    news = threading.Event()
    lanes = [
        TierLane(name, tier, part_bytes, told=news.set)
        for name, tier in (lasting.items() if config.prefix_cache else ())
    ]
    speed = TransferSpeed(clock)

    return Tiers(
        cache,
        store,
        Filling(cache, store, groups, clock, speed),
        worth,
        host=host,
        host_speed=speed,
        lanes=lanes,
        naming=Naming(served, block_tokens=size),
        keeping=Keeping(store, groups, lanes),
        ahead=ReadAhead(
            lanes,
            worth,
            clock,
            block_tokens=size,
            block_bytes=block_bytes,
            most_bytes=store.memory_bytes // _READ_SHARE,
            meets=all(group.window is None for group in store.layout.groups),
            news=news,
        ),
        news=news,
        reads=partial(reads_cache, config),
        whole_group=groups.whole,
        is_token_exact=config.token_exact_reuse,
    )
