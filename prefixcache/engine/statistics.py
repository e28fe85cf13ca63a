"""An engine in numbers."""

from __future__ import annotations

from prefixcache.engine.counters import Counters
from prefixcache.engine.scheduler import Scheduler
from prefixcache.engine.tiers import Tiers, tier_stats
from prefixcache.index import PrefixCache
from prefixcache.types import EngineStats


def engine_stats(
    cache: PrefixCache, whole_group: int, scheduler: Scheduler, counters: Counters, tiers: Tiers
) -> EngineStats:
    """Return counters since the start and gauges of now.

    `whole_group`: the layer group whose pool is shown.
    """
    return EngineStats(
        pool=cache.counts(whole_group),
        running=len(scheduler.running),
        waiting=len(scheduler.waiting),
        waiting_tokens=scheduler.waiting.n_tokens,
        steps_total=counters.steps,
        prompt_tokens_total=counters.prompt_tokens,
        cached_tokens_total=counters.cached_tokens,
        computed_tokens_total=counters.computed_tokens,
        output_tokens_total=counters.output_tokens,
        evicted_blocks_total=cache.evicted_blocks,
        preemptions_total=scheduler.preemptions_total,
        moved_blocks_total=cache.compaction.moved_blocks,
        drafted_tokens_total=counters.drafted_tokens,
        accepted_tokens_total=counters.accepted_tokens,
        longest_free_run=cache.longest_free_run(whole_group),
        tiers=tier_stats(tiers),
        misses=dict(counters.misses),
    )
