"""What explains a trace, as data for JSON and as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from prefixcache.traces.table import aligned
from prefixcache.traces.why import Why

_MAX_TENANTS = 20  # shown


def why_data(why: Why) -> dict[str, object]:
    """Return what was found, ready for JSON."""
    return {
        "hit_blocks": why.hit_blocks,
        "own_conversation_hit_blocks": why.own_hit_blocks,
        "shared_prefixes": [
            {
                "tokens": prefix.tokens,
                "requests": prefix.requests,
                "tenants": prefix.tenants,
                "saved_tokens": prefix.saved_tokens,
                "last_hash_id": prefix.hash_ids[-1],
            }
            for prefix in why.shared
        ],
        "reuse_distance": [
            {"capacity_blocks": capacity, "hit_blocks": hits} for capacity, hits in why.distances
        ],
        "reuse_pause": [{"seconds": seconds, "hit_blocks": hits} for seconds, hits in why.pauses],
        "turns_keep": dict(why.kept),
        "tenants": [
            {"tenant": tenant, "blocks": blocks, "hit_blocks": hits}
            for tenant, blocks, hits in why.tenants
        ],
    }


def why_text(trace: str, why: Why) -> str:
    """Return a few small tables."""
    head = (
        f"Why {trace} hits {why.hit_blocks:,} blocks if nothing is ever given up and all is shared"
    )
    return "\n".join([head, *map(_indented, why_tables(why))])


def why_tables(why: Why) -> Iterator[list[tuple[str, ...]]]:
    """Yield tables as lines of cells, the first line of each its heads."""
    if why.own_hit_blocks is not None:
        across = why.hit_blocks - why.own_hit_blocks
        yield [
            ("hit blocks by where they were", "blocks", "share"),
            ("in the conversation's prompt before", *_part(why.own_hit_blocks, why.hit_blocks)),
            ("elsewhere", *_part(across, why.hit_blocks)),
        ]
        n_turns = sum(turns for _, turns in why.kept)
        yield [
            ("a turn keeps of the prompt before", "turns", "share"),
            *[(part, *_part(turns, n_turns)) for part, turns in why.kept],
        ]
    yield [
        ("prefix that saves most", "requests", "tenants", "saved tokens"),
        *[
            (f"{p.tokens:,} tokens", f"{p.requests:,}", f"{p.tenants:,}", f"{p.saved_tokens:,}")
            for p in why.shared
        ],
    ]
    yield [
        ("hits that need at most", "blocks", "share"),
        *[(f"{n:,} blocks", *_part(hits, why.hit_blocks)) for n, hits in why.distances],
    ]
    yield [
        ("hits used last at most", "blocks", "share"),
        *[(f"{n:,} s before", *_part(hits, why.hit_blocks)) for n, hits in why.pauses],
    ]
    if why.tenants:
        yield [
            ("tenant", "blocks", "hit blocks", "share"),
            *[
                (tenant, f"{blocks:,}", *_part(hits, blocks))
                for tenant, blocks, hits in why.tenants[:_MAX_TENANTS]
            ],
        ]


def _part(part: int, whole: int) -> tuple[str, str]:
    return f"{part:,}", f"{part / whole:.4f}" if whole else "-"


def _indented(lines: list[tuple[str, ...]]) -> str:
    return "\n" + "\n".join(f"  {line}" for line in aligned(lines).splitlines())
