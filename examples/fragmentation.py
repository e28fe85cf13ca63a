"""What fragmentation of the KV pool costs attention, and what compaction costs and brings.

Run it as `python examples/fragmentation.py [RESULT.json]`; it takes some minutes.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prefixcache.bench.attention import SHAPE
from prefixcache.bench.machine import machine
from prefixcache.config import EngineConfig
from prefixcache.engine.attention_only import BLOCK_TOKENS, AttentionOnly
from prefixcache.engine.idle import CALL_TOKENS, EXCHANGES_A_BLOCK
from prefixcache.engine.parts import COPIED_TOKENS
from prefixcache.engine.plan import Chunk
from prefixcache.index import BlockExchange, Lease, Namespace, PrefixCache, Reading, pack
from prefixcache.index.nodes import Node
from prefixcache.index.tree import children_of, nodes, runs_to
from prefixcache.types import BlockId, Span

POOL_BLOCKS = 1536
CACHED_TOKENS = 4096
RUN_BLOCKS = (1, 2, 4, 8, 16, 32, 256)
CHUNK_TOKENS = 128
REPEATS = 5
ROUNDS = 6000  # tokens of each answer's place
LONG_TOKENS = 1024  # tables of shorter requests are not looked at
MEASURED_TABLES = 8
REST_ROUNDS = 400  # between two moments in which nothing runs
READING = Reading(
    short_blocks=COPIED_TOKENS // BLOCK_TOKENS,
    call_blocks=CALL_TOKENS // BLOCK_TOKENS,
    most_exchanges=EXCHANGES_A_BLOCK,
    least_hits=0,
)

Table = tuple[Span, ...]


@dataclass(frozen=True)
class Load:
    """Who uses the pool."""

    name: str
    n_streams: int  # answers side by side
    n_sessions: int
    most_tokens: int  # of a conversation when a turn begins; then it begins anew
    message_tokens: tuple[int, int]


LOADS = (
    Load("chats", 8, 40, 1500, (30, 600)),
    Load("long chats", 3, 12, 4500, (500, 1500)),
)


@dataclass
class Session:
    """A conversation that goes on."""

    tokens: list[int] = field(default_factory=list)


@dataclass
class Stream:
    """One running request."""

    session: Session
    lease: Lease
    n_answer: int  # tokens
    n_left: int  # of these


class Churn:
    """Conversations over a pool that holds a part of them, with no model.

    Each turn adds a message and an answer; answers grow side by side, token by token.
    Now and then nothing runs; with `compacts` the pool is compacted then.
    """

    def __init__(self, seed: int, growth_blocks: int, load: Load, *, compacts: bool) -> None:
        self._load = load
        self._compacts = compacts
        self.orders: list[BlockExchange] = []
        self._rng = np.random.default_rng(seed)
        self.cache = PrefixCache(pool_blocks=(POOL_BLOCKS,), growth_blocks=growth_blocks)
        self._idle = [Session() for _ in range(load.n_sessions)]
        self._streams = [self._begin() for _ in range(load.n_streams)]
        self.tables: list[tuple[Table, int]] = []  # each with the tokens of the answer
        self.free: list[tuple[int, int]] = []  # free blocks and the longest run, now and then

    def run(self, n_rounds: int) -> None:
        """Feed so many tokens to each stream, and note the tables of those that end."""
        for number in range(n_rounds):
            self._streams = [self._stepped(stream) for stream in self._streams]
            if number % 100 == 0:
                self.free.append((self.cache.counts().free, self.cache.longest_free_run()))
            if number % REST_ROUNDS == REST_ROUNDS - 1:
                self._rest()

    def stop(self) -> None:
        """End all answers."""
        for stream in self._streams:
            self._end(stream)
        self._streams = []

    def compact(self, exchange: Callable[[BlockExchange], None]) -> list[float]:
        """Bring together what is cached, to the end; return what each piece took, in CPU ms."""
        rounds = self.cache.compaction.rounds(exchange, group=0, reading=READING)
        begins = [time.process_time(), *(time.process_time() for _ in rounds)]
        return [(end - begin) * 1e3 for begin, end in pairwise(begins)]

    def long_paths(self) -> list[Table]:
        """Return where the long prefixes lie."""
        return [
            runs_to(leaf)[0]
            for anchor in self.cache._core.forest
            for leaf in nodes(anchor)
            if _ends_long_path(leaf)
        ]

    def _rest(self) -> None:
        self.stop()
        if self._compacts:
            self.compact(self.orders.append)
        self._streams = [self._begin() for _ in range(self._load.n_streams)]

    def _begin(self) -> Stream:
        session = self._idle.pop(int(self._rng.integers(len(self._idle))))
        if len(session.tokens) > self._load.most_tokens:
            session.tokens.clear()
        session.tokens += self._ids(int(self._rng.integers(*self._load.message_tokens)))
        lease = self.cache.acquire(Namespace("model"), pack(session.tokens), room_tokens=1)
        self.cache.commit(lease, pack(session.tokens))
        n_answer = int(self._rng.integers(30, 400))
        return Stream(session, lease, n_answer, n_answer)

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
            self.tables.append((tuple(stream.lease.spans(0)), stream.n_answer))
        self._end(stream)
        return self._begin()

    def _end(self, stream: Stream) -> None:
        self.cache.release(stream.lease)
        self._idle.append(stream.session)

    def _ids(self, n_tokens: int) -> list[int]:
        found: list[int] = self._rng.integers(1, 30_000, n_tokens).tolist()
        return found


def _ends_long_path(node: Node) -> bool:
    """Return whether a path of many tokens on the device ends at a node."""
    is_leaf = not any(child.runs[0] for child in children_of(node))
    return bool(node.runs[0]) and is_leaf and node.end_block * BLOCK_TOKENS >= LONG_TOKENS


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


def of_tables(tables: Sequence[Table]) -> dict[str, Any]:
    """Return how tables lie in the pool."""
    spans = [span.n_blocks for table in tables for span in table]
    short = sum(n for n in spans if n * BLOCK_TOKENS <= COPIED_TOKENS)
    return {
        "tables": len(tables),
        "runs_a_table": round(len(spans) / len(tables), 1),
        "blocks_a_table": round(sum(spans) / len(tables)),
        "blocks_a_run": round(sum(spans) / len(spans), 1),
        "share_in_short_runs": round(short / sum(spans), 3),
    }


def moving_ms(attention: AttentionOnly, n_blocks: int, *, swaps: bool) -> float:
    """Return the CPU ms a block that moving four neighbours at a time takes, as it is done."""
    times = []
    for _ in range(REPEATS):
        begin = time.process_time()
        for first in range(0, n_blocks, 4):
            target = BlockId((first * 7 + 512) % (POOL_BLOCKS - 8))
            attention._store.move_blocks(0, Span(BlockId(first), 4), target, swaps=swaps)
        times.append((time.process_time() - begin) / n_blocks)
    return statistics.median(times) * 1e3


def of_workload(
    attention: AttentionOnly, growth_blocks: int, load: Load, n_rounds: int
) -> dict[str, Any]:
    """Return which runs a busy pool gives the same requests without and with compaction.

    Their decode steps are measured as the blocks lie without it, with it and in one run.
    """
    churns = [Churn(7, growth_blocks, load, compacts=compacts) for compacts in (False, True)]
    for churn in churns:
        churn.run(n_rounds)
    without, with_it = (churn.tables[len(churn.tables) // 3 :] for churn in churns)
    order = np.random.default_rng(1).permutation(len(without))[:MEASURED_TABLES]
    ways = [
        [table for table, _ in without],
        [table for table, _ in with_it],
        [straightened(table) for table, _ in without],
    ]
    times = [
        [milliseconds(attention, [way[index] for index in order], 1) for way in ways]
        for _ in range(REPEATS)
    ]
    free = churns[0].free[len(churns[0].free) // 3 :]
    orders = churns[1].orders
    return {
        "load": load.name,
        "growth_blocks": growth_blocks,
        "mean_free_blocks": round(statistics.mean(n for n, _ in free), 1),
        "mean_longest_free_run": round(statistics.mean(n for _, n in free), 1),
        "without": of_tables(ways[0]),
        "with": of_tables(ways[1]),
        "exchanged_blocks": sum(each.n_blocks for each in orders if not each.is_copy),
        "copied_blocks": sum(each.n_blocks for each in orders if each.is_copy),
        "decode_steps": sum(n_answer for _, n_answer in without),
        "decode_ms": {
            name: round(statistics.median(each), 2)
            for name, each in zip(
                ("without", "with", "one_run"), zip(*times, strict=True), strict=True
            )
        },
        "ratio_of_with_to_without": round(statistics.median(b / a for a, b, _ in times), 3),
        "ratio_of_without_to_one_run": round(statistics.median(a / c for a, _, c in times), 3),
    }


def of_one_pool(
    attention: AttentionOnly, growth_blocks: int, load: Load, n_rounds: int
) -> dict[str, Any]:
    """Return how a full pool's prefixes lie and read before and after compaction, and its cost."""
    churn = Churn(7, growth_blocks, load, compacts=False)
    churn.run(n_rounds)
    churn.stop()
    found: dict[str, Any] = {"load": load.name, "free_blocks": churn.cache.counts().free}

    def move(order: BlockExchange) -> None:
        source = Span(order.source, order.n_blocks)
        attention._store.move_blocks(0, source, order.target, swaps=not order.is_copy)

    for moment in ("before", "after"):
        if moment == "after":
            pieces = churn.compact(move)
            found["compaction_ms"] = round(sum(pieces), 1)
            found["longest_piece_ms"] = round(max(pieces), 2)
            found["moved_blocks"] = churn.cache.compaction.moved_blocks
            churn.cache.check()
        tables = churn.long_paths()
        found[moment] = {
            **of_tables(tables),
            "decode": interleaved(attention, tables[:MEASURED_TABLES], 1),
            "chunk": interleaved(attention, tables[:MEASURED_TABLES], CHUNK_TOKENS),
        }
    return found


def main(n_rounds: int = ROUNDS) -> None:
    """Measure, print and write the result."""
    torch.set_num_threads(1)
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
    result = {
        "machine": machine(),
        "note": "others used the machine as well; processor time of one thread",
        "runs": rows,
        "one_pool": [of_one_pool(attention, default, load, n_rounds) for load in LOADS],
        "workloads": [of_workload(attention, default, load, n_rounds) for load in LOADS],
        "moving_ms_a_block": {
            "exchange": round(moving_ms(attention, 256, swaps=True), 3),
            "copy": round(moving_ms(attention, 256, swaps=False), 3),
        },
    }
    print(json.dumps({key: result[key] for key in list(result)[3:]}, indent=1))
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
