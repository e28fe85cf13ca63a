"""What fragmentation of the KV pool costs attention, and what compaction would cost.

Run it as `python examples/fragmentation.py [RESULT.json]`; it takes some minutes.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from prefixcache.bench.attention import SHAPE
from prefixcache.bench.machine import machine
from prefixcache.config import EngineConfig
from prefixcache.engine.attention_only import BLOCK_TOKENS, AttentionOnly
from prefixcache.engine.plan import Chunk
from prefixcache.index import Lease, Namespace, PrefixCache, pack
from prefixcache.types import BlockId, Span

POOL_BLOCKS = 1536
CACHED_TOKENS = 4096
RUN_BLOCKS = (1, 2, 4, 8, 16, 32, 256)
CHUNK_TOKENS = 128
REPEATS = 5
ROUNDS = 6000  # tokens of each stream
STREAMS = 8
SESSIONS = 40
LONG_TOKENS = 1024  # tables of shorter requests are not looked at
MEASURED_TABLES = 6
COPIED_TOKENS = 256  # runs of no more are copied before they are read

Table = tuple[Span, ...]


@dataclass
class Session:
    """A conversation that goes on."""

    tokens: list[int] = field(default_factory=list)


@dataclass
class Stream:
    """One running request."""

    session: Session
    lease: Lease
    n_left: int  # tokens of its answer


class Churn:
    """Conversations over a pool that holds a part of them, with no model.

    Each turn adds a message and an answer; `STREAMS` answers grow side by side, token by token.
    """

    def __init__(self, seed: int, growth_blocks: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.cache = PrefixCache(pool_blocks=(POOL_BLOCKS,), growth_blocks=growth_blocks)
        self._idle = [Session() for _ in range(SESSIONS)]
        self._streams = [self._begin() for _ in range(STREAMS)]
        self.tables: list[Table] = []
        self.free: list[tuple[int, int]] = []  # free blocks and the longest run, now and then

    def run(self, n_rounds: int) -> None:
        """Feed so many tokens to each stream, and note the tables of those that end."""
        for number in range(n_rounds):
            self._streams = [self._stepped(stream) for stream in self._streams]
            if number % 100 == 0:
                self.free.append((self.cache.counts().free, self.cache.longest_free_run()))

    def _begin(self) -> Stream:
        session = self._idle.pop(int(self._rng.integers(len(self._idle))))
        if len(session.tokens) > 1500:
            session.tokens.clear()
        session.tokens += self._ids(int(self._rng.integers(30, 600)))
        lease = self.cache.acquire(Namespace("model"), pack(session.tokens), room_tokens=1)
        self.cache.commit(lease, pack(session.tokens))
        return Stream(session, lease, int(self._rng.integers(30, 400)))

    def _stepped(self, stream: Stream) -> Stream:
        tokens = stream.session.tokens
        tokens += self._ids(1)
        self.cache.extend(stream.lease, len(tokens), most_tokens=len(tokens) + stream.n_left)
        if len(tokens) % BLOCK_TOKENS == 0:
            self.cache.commit(stream.lease, pack(tokens))
        stream.n_left -= 1
        if stream.n_left:
            return stream
        if len(tokens) >= LONG_TOKENS:
            self.tables.append(tuple(stream.lease.spans(0)))
        self.cache.release(stream.lease)
        self._idle.append(stream.session)
        return self._begin()

    def _ids(self, n_tokens: int) -> list[int]:
        found: list[int] = self._rng.integers(1, 30_000, n_tokens).tolist()
        return found


def in_runs(n_blocks: int, run_blocks: int, rng: np.random.Generator) -> Table:
    """Return a table of runs that are apart from each other, anywhere in the pool."""
    places = list(range(0, POOL_BLOCKS - run_blocks, run_blocks + 1))
    rng.shuffle(places)
    return tuple(Span(BlockId(first), run_blocks) for first in places[: n_blocks // run_blocks])


def milliseconds(attention: AttentionOnly, tables: Sequence[Table], n_new: int) -> float:
    """Return the median over tables of a chunk of `n_new` tokens at the table's end, in CPU ms."""
    found = []
    for table in tables:
        n_tokens = sum(span.n_blocks for span in table) * BLOCK_TOKENS
        chunk = Chunk(range(n_new), n_tokens - n_new, (table,), n_logits=1)
        found.append(attention.seconds([[chunk]], time.process_time, by_layer=True))
    return statistics.median(found) * 1e3


def straightened(table: Table) -> Table:
    """Return a table of as many blocks in one run."""
    return (Span(BlockId(0), sum(span.n_blocks for span in table)),)


def interleaved(attention: AttentionOnly, tables: Sequence[Table], n_new: int) -> dict[str, float]:
    """Return what tables cost as they are and in one run each, in turns."""
    as_is, straight = [], []
    for _ in range(REPEATS):
        as_is.append(milliseconds(attention, tables, n_new))
        straight.append(milliseconds(attention, [straightened(t) for t in tables], n_new))
    return {
        "as_is_ms": round(statistics.median(as_is), 2),
        "one_run_ms": round(statistics.median(straight), 2),
        "ratio": round(statistics.median(a / b for a, b in zip(as_is, straight, strict=True)), 3),
    }


def moving_ms(attention: AttentionOnly, n_blocks: int) -> float:
    """Return what it costs to copy so many blocks within the store, in one copy."""
    store = attention._store
    times = []
    for _ in range(REPEATS):
        begin = time.process_time()
        store.copy_in(
            0, Span(BlockId(0), n_blocks), store.copy_out(0, Span(BlockId(512), n_blocks))
        )
        times.append(time.process_time() - begin)
    return statistics.median(times) * 1e3


def of_workload(attention: AttentionOnly, growth_blocks: int, n_rounds: int) -> dict[str, Any]:
    """Return which runs a busy pool gives requests, and what these cost them."""
    churn = Churn(7, growth_blocks)
    churn.run(n_rounds)
    late = churn.tables[len(churn.tables) // 3 :]  # the pool was full by then
    spans = [span.n_blocks for table in late for span in table]
    short = sum(n for n in spans if n * BLOCK_TOKENS <= COPIED_TOKENS)
    free = churn.free[len(churn.free) // 3 :]
    np.random.default_rng(1).shuffle(late)
    some = late[:MEASURED_TABLES]
    return {
        "growth_blocks": growth_blocks,
        "tables": len(late),
        "evicted_blocks": churn.cache.stats().evicted_blocks,
        "runs_a_table": round(len(spans) / len(late), 1),
        "blocks_a_run": round(sum(spans) / len(spans), 1),
        "share_in_short_runs": round(short / sum(spans), 3),
        "mean_free_blocks": round(statistics.mean(n for n, _ in free), 1),
        "mean_longest_free_run": round(statistics.mean(n for _, n in free), 1),
        "blocks_a_table": round(sum(spans) / len(late)),
        "decode": interleaved(attention, some, 1),
        "chunk": interleaved(attention, some, CHUNK_TOKENS),
    }


def main(n_rounds: int = ROUNDS) -> None:
    """Measure, print and write the result."""
    attention = AttentionOnly(SHAPE, POOL_BLOCKS * BLOCK_TOKENS)
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for run_blocks in RUN_BLOCKS:
        tables = [in_runs(CACHED_TOKENS // BLOCK_TOKENS, run_blocks, rng)]
        for n_new in (1, CHUNK_TOKENS):
            row = {"run_blocks": run_blocks, "new_tokens": n_new}
            rows.append(row | interleaved(attention, tables, n_new))
            print(rows[-1], flush=True)
    default = EngineConfig().growth_blocks
    workloads = [of_workload(attention, default, n_rounds)]
    moving = {"blocks": 64, "ms": round(moving_ms(attention, 64), 2)}
    result = {"machine": machine(), "runs": rows, "workloads": workloads, "moving": moving}
    print(json.dumps(workloads, indent=1), moving)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
