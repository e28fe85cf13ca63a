"""Eviction policies side by side on request traces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from prefixcache.index.policies import PolicyOptions, make_policy
from prefixcache.traces import Simulation, TraceRequest, simulate
from prefixcache.traces.table import aligned


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One policy at one capacity on one trace."""

    trace: str
    policy: str
    capacity_blocks: int | None  # None: unlimited
    block_tokens: int
    result: Simulation


def compare(
    traces: Mapping[str, Sequence[TraceRequest]],
    *,
    policies: Sequence[str],
    capacities: Sequence[int | None],
    options: PolicyOptions | None = None,
) -> Iterator[PolicyRow]:
    """Yield a row for each trace, capacity and policy, as soon as it is measured.

    Args:
        traces: by name; each has at least one request.
        policies: names that `make_policy` knows.

    Raises:
        ConfigError: there is no such policy, or a capacity or option is out of range.
    """
    for name, requests in traces.items():
        for capacity in capacities:
            for policy in policies:
                factory = partial(make_policy, policy, options)
                result = simulate(requests, policy=factory, capacity_blocks=capacity)
                yield PolicyRow(name, policy, capacity, requests[0].block_tokens, result)


def as_table(rows: Sequence[PolicyRow]) -> str:
    """Return the rows as text for a terminal.

    `hit` is the share of all blocks that was cached, `attention` that of the attention pairs.
    """
    lines = [("trace", "capacity", "policy", "hit blocks", "hit", "attention")]
    for row in rows:
        result = row.result
        capacity = "unlimited" if row.capacity_blocks is None else f"{row.capacity_blocks:,}"
        hit = f"{result.hit_blocks / max(result.blocks, 1):.4f}"
        attention = f"{result.hit_attention_pairs / max(result.attention_pairs, 1):.4f}"
        lines.append((row.trace, capacity, row.policy, f"{result.hit_blocks:,}", hit, attention))
    return aligned(lines, left=(0, 2))


def as_data(rows: Sequence[PolicyRow]) -> list[dict[str, object]]:
    """Return the rows ready for JSON, the sums of each beside its name."""
    return [
        {
            "trace": row.trace,
            "policy": row.policy,
            "capacity_blocks": row.capacity_blocks,
            "block_tokens": row.block_tokens,
            **asdict(row.result),
        }
        for row in rows
    ]
