"""Replay one trace with ours, libCacheSim and kvcache-simulator, in one sitting.

    pip install libcachesim kvcache-simulator
    python examples/replay_speed.py TRACE.jsonl --json examples/results/replay_speed.json

Each one gets the same blocks in memory and gives leading hit blocks, or hit tokens, and the
processor time that took, the least of some runs. libCacheSim is called block by block, for its own
loops know nothing of requests: it gives up blocks whether or not others depend on them. Of
kvcache-simulator the simulations in Python are called; it counts hits in the second half alone.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from prefixcache.bench.machine import machine
from prefixcache.index import LruPolicy
from prefixcache.traces import (
    Simulation,
    TraceRequest,
    flat_lru,
    miss_ratio_curve,
    optimum,
    read_trace,
    sampled_miss_ratio_curve,
    simulate,
)

RUNS = 2
CAPACITIES = (1000, 10_000)
RIVALS = ("libcachesim", "kvcache-simulator")

Hits = dict[str, int]


def timed(run: Callable[[], Hits]) -> tuple[float, Hits]:
    """Return the least processor time of some runs, and what the last one gave."""
    least, hits = float("inf"), Hits()
    for _ in range(RUNS):
        start = time.process_time()
        hits = run()
        least = min(least, time.process_time() - start)
    return round(least, 4), hits


def of(result: Simulation) -> Hits:
    return {"hit_blocks": result.hit_blocks, "hit_tokens": result.hit_tokens}


def ours(requests: Sequence[TraceRequest], capacity: int) -> dict[str, Callable[[], Hits]]:
    return {
        "prefixcache simulate lru": lambda: of(
            simulate(requests, policy=LruPolicy, capacity_blocks=capacity)
        ),
        "prefixcache optimum": lambda: of(optimum(requests, capacity_blocks=capacity)),
        "prefixcache flat_lru": lambda: of(flat_lru(requests, capacity_blocks=capacity)),
    }


def all_capacities(requests: Sequence[TraceRequest]) -> dict[str, Callable[[], Hits]]:
    def at_each(make: Callable[[Sequence[TraceRequest]], Any]) -> Hits:
        curve = make(requests)
        return {f"hit_blocks at {capacity}": curve.hit_blocks(capacity) for capacity in CAPACITIES}

    return {
        "prefixcache miss_ratio_curve": lambda: at_each(miss_ratio_curve),
        "prefixcache sampled_miss_ratio_curve": lambda: at_each(sampled_miss_ratio_curve),
    }


def lib_cache_sim(requests: Sequence[TraceRequest], capacity: int) -> dict[str, Callable[[], Hits]]:
    """Return runs of libCacheSim's LRU and Belady, one call for each block, head first."""
    module = importlib.import_module("libcachesim")
    blocks = [hash_id for request in requests for hash_id in request.hash_ids]
    next_use: list[int] = [0] * len(blocks)
    known: dict[int, int] = {}
    for index in range(len(blocks) - 1, -1, -1):
        next_use[index] = known.get(blocks[index], 2**62)
        known[blocks[index]] = index

    def run(name: str) -> Hits:
        cache = getattr(module, name)(cache_size=capacity)
        request, index, hit_blocks = module.Request(), 0, 0
        request.obj_size = 1
        for prompt in requests:
            is_leading = True
            for hash_id in prompt.hash_ids:
                request.obj_id, request.next_access_vtime = hash_id, next_use[index]
                index += 1
                is_leading &= cache.get(request)
                hit_blocks += is_leading
        return {"hit_blocks": hit_blocks}

    return {f"libcachesim {name}": partial(run, name) for name in ("LRU", "Belady")}


def kvcache_simulator(trace: Path, capacity: int) -> dict[str, Callable[[], Hits]]:
    parse = importlib.import_module("kvcache_sim.trace").parse_trace_file
    plan_of = importlib.import_module("kvcache_sim.plan").build_execution_plan
    simulate_policy = importlib.import_module("kvcache_sim.policies").simulate_policy
    data = parse(trace, block_size=512)

    def run(name: str) -> Hits:
        result = simulate_policy(plan_of(data, warmup_fraction=0.5), name, capacity)
        return {"hit_tokens_of_second_half": result.hitTokens}

    return {f"kvcache-simulator {name}": partial(run, name) for name in ("lru", "optimal")}


def rows(trace: Path) -> list[dict[str, object]]:
    requests = read_trace(trace)
    found: list[dict[str, object]] = []

    def measure(runs: dict[str, Callable[[], Hits]], capacity: int | None) -> None:
        for name, run in runs.items():
            seconds, hits = timed(run)
            found.append({"what": name, "capacity_blocks": capacity, "seconds": seconds, **hits})
            print(found[-1], file=sys.stderr)

    measure(all_capacities(requests), None)
    for capacity in CAPACITIES:
        measure(ours(requests, capacity), capacity)
        measure(kvcache_simulator(trace, capacity), capacity)
        measure(lib_cache_sim(requests, capacity), capacity)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("trace", type=Path, help="a Mooncake trace")
    parser.add_argument("--json", type=Path, required=True, help="where the result goes")
    arguments = parser.parse_args()
    result = {
        "command": " ".join(["python examples/replay_speed.py", *sys.argv[1:]]),
        "machine": machine(),
        "rivals": {name: importlib.metadata.version(name) for name in RIVALS},
        "seconds": f"processor time, the least of {RUNS} runs",
        "results": rows(arguments.trace),
    }
    arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
