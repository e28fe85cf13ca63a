"""How much memory the index takes, token ids included."""

from __future__ import annotations

import gc
import subprocess
import sys
from dataclasses import asdict

import msgspec
import psutil

from prefixcache.bench.index_rows import Row
from prefixcache.bench.index_workloads import ManyBlocks
from prefixcache.index import Namespace, PrefixCache


def measure_memory(workload: ManyBlocks) -> Row:
    """D: resident memory a block, in a process of its own that has done nothing before."""
    done = subprocess.run(  # noqa: S603 (this very module)
        [sys.executable, "-m", __name__],
        input=msgspec.json.encode(asdict(workload)),
        stdout=subprocess.PIPE,
        check=True,
    )
    return Row("D", msgspec.json.decode(done.stdout, type=dict[str, int | float]))


def figures_of(workload: ManyBlocks) -> dict[str, float]:
    """Fill an index in this process, and return what that did to its resident memory."""
    namespace, process = Namespace(), psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    cache = PrefixCache(pool_blocks=[workload.pool_blocks])
    n_requests = 0
    for prompt in workload.prompts():
        lease = cache.acquire(namespace, prompt)
        cache.commit(lease, prompt)
        cache.release(lease)
        n_requests += 1
    del prompt, lease
    gc.collect()
    resident_bytes = process.memory_info().rss - before
    n_blocks = cache.counts().cached
    return {
        "requests": n_requests,
        "blocks": n_blocks,
        "resident_bytes": resident_bytes,
        "bytes_per_block": round(resident_bytes / n_blocks, 1),
    }


if __name__ == "__main__":
    found = figures_of(ManyBlocks(**msgspec.json.decode(sys.stdin.buffer.read())))
    sys.stdout.buffer.write(msgspec.json.encode(found))
