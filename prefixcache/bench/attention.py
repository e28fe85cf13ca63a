"""What attention costs, with no model around it: shared prefixes, and chunks of a prompt."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prefixcache.engine.attention_only import BLOCK_TOKENS, AttentionOnly, AttentionShape
from prefixcache.engine.plan import Chunk
from prefixcache.types import BlockId, Span

SHAPE = AttentionShape(n_layers=30, heads=9, kv_heads=3, head_dim=64)  # of SmolLM2-135M
TAIL_TOKENS = (16, 32, 48, 64, 80, 96, 112, 128)  # of the streams, over and over


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """A decode step of streams that share a prefix and have tails of their own.

    Milliseconds of CPU time on one thread, all layers, planning included.
    """

    streams: int
    prefix_tokens: int
    shared_ms: float  # one step, the prefix read once for all
    apart_ms: float  # one step, each stream attending alone, layer by layer
    alone_ms: float  # a step of its own for each stream
    shared_to_apart: float
    shared_to_alone: float


@dataclass(frozen=True, slots=True)
class PromptRow:
    """A chunk of one prompt after cached tokens; the unit is DecodeRow's."""

    new_tokens: int
    cached_tokens: int
    chunk_ms: float


@dataclass(frozen=True, slots=True)
class AttentionBench:
    """What is measured: decode steps for each prefix, then chunks for each cached length."""

    prefix_tokens: Sequence[int]  # whole blocks
    streams: Sequence[int]
    new_tokens: Sequence[int]
    cached_tokens: Sequence[int]  # whole blocks
    repeats: int
    shape: AttentionShape = SHAPE

    def measure(self, clock: Callable[[], float]) -> Iterator[DecodeRow | PromptRow]:
        """Yield the rows one by one. Each figure is the median of the repeats, taken in turns."""
        room = max(self.prefix_tokens) + max(self.streams) * max(TAIL_TOKENS)
        room = max(room, max(self.cached_tokens) + max(self.new_tokens))
        attention = AttentionOnly(self.shape, room)
        for prefix in self.prefix_tokens:
            for streams in self.streams:
                yield self._decode(attention, streams, prefix, clock)
        for cached in self.cached_tokens:
            for new in self.new_tokens:
                yield self._prompt(attention, new, cached, clock)

    def _decode(
        self, attention: AttentionOnly, streams: int, prefix: int, clock: Callable[[], float]
    ) -> DecodeRow:
        chunks = decode_chunks(streams, prefix)
        each = [[chunk] for chunk in chunks]
        times = [
            (
                attention.seconds([chunks], clock, by_layer=True),
                attention.seconds(each, clock, by_layer=True),
                attention.seconds(each, clock, by_layer=False),
            )
            for _ in range(self.repeats + 1)
        ][1:]  # the first one warms up
        shared, apart, alone = (statistics.median(column) for column in zip(*times, strict=True))
        return DecodeRow(
            streams,
            prefix,
            shared_ms=round(shared * 1e3, 2),
            apart_ms=round(apart * 1e3, 2),
            alone_ms=round(alone * 1e3, 2),
            shared_to_apart=round(statistics.median(row[0] / row[1] for row in times), 2),
            shared_to_alone=round(statistics.median(row[0] / row[2] for row in times), 2),
        )

    def _prompt(
        self, attention: AttentionOnly, new: int, cached: int, clock: Callable[[], float]
    ) -> PromptRow:
        table = [Span(BlockId(0), -(-(cached + new) // BLOCK_TOKENS))]
        chunk = Chunk(range(new), cached, (table,), n_logits=1)
        times = [
            attention.seconds([[chunk]], clock, by_layer=True) for _ in range(self.repeats + 1)
        ]
        return PromptRow(new, cached, round(statistics.median(times[1:]) * 1e3, 2))


def decode_chunks(streams: int, prefix_tokens: int) -> list[Chunk]:
    """Return the last token of each stream: the prefix lies first, the tails one after another."""
    chunks = []
    free = prefix_tokens // BLOCK_TOKENS
    for stream in range(streams):
        tail = TAIL_TOKENS[stream % len(TAIL_TOKENS)]
        spans = [
            Span(BlockId(0), prefix_tokens // BLOCK_TOKENS),
            Span(BlockId(free), tail // BLOCK_TOKENS),
        ]
        free += max(TAIL_TOKENS) // BLOCK_TOKENS  # room to grow: tails are no neighbours
        chunks.append(Chunk([0], prefix_tokens + tail - 1, (spans,), n_logits=1))
    return chunks


def as_text(row: DecodeRow | PromptRow) -> str:
    """Return a row as a line for a terminal."""
    if isinstance(row, DecodeRow):
        return (
            f"{row.streams:3} streams over {row.prefix_tokens:6,}: shared {row.shared_ms:8,.2f} ms,"
            f" apart {row.apart_ms:8,.2f} ({row.shared_to_apart:.2f}),"
            f" alone {row.alone_ms:8,.2f} ({row.shared_to_alone:.2f})"
        )
    return f"{row.new_tokens:5,} tokens after {row.cached_tokens:6,}: {row.chunk_ms:10,.2f} ms"
