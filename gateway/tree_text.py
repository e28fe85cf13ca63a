"""Trees of cached prefixes as text: an icicle that hangs to the right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gateway.tables import as_columns, count_text
from prefixcache.control import Inspection, NodeShown, TreeShown

_BAR_CELLS = 40
_HEADINGS = ("part", "", "tokens", "up to", "hits", "idle", "")
_MINUTE, _HOUR = 60, 3600


def as_text(found: Inspection) -> str:
    """Return an inspection for a terminal: the pool, and each tree with its nodes."""
    pool, size = found.pool, found.block_size_tokens
    counts = (pool.free, pool.cached, pool.held)
    free, cached, held = (count_text(n_blocks * size) for n_blocks in counts)
    lines = [f"pool, tokens: {free} free, {cached} cached, {held} in use"]
    lines += [part for tree in found.trees for part in ("", _heading(tree), _nodes(tree))]
    if not found.is_complete:
        lines += ["", "There is more: ask for more nodes (--max-nodes), or for one tenant."]
    return "\n".join(lines)


def _heading(tree: TreeShown) -> str:
    marks = [
        *([] if tree.adapter is None else [f"adapter {tree.adapter}"]),
        *(["with a salt"] if tree.has_salt else []),
        *([] if tree.published is None else [f"after the prompt {tree.published}"]),
        *([] if tree.is_current else ["invalidated"]),
    ]
    n_tokens = sum(node.n_tokens for node in tree.nodes)
    return f"{tree.tenant}: {count_text(n_tokens)} tokens" + "".join(f", {each}" for each in marks)


def _nodes(tree: TreeShown) -> str:
    nodes = list(_in_depth(tree.nodes))
    if not nodes:
        return "  nothing"
    end = max(node.start_token + node.n_tokens for _, node in nodes)
    return as_columns([_HEADINGS, *(_line(depth, node, end) for depth, node in nodes)], n_left=2)


def _in_depth(nodes: Sequence[NodeShown]) -> Iterator[tuple[int, NodeShown]]:
    """Yield nodes that hold tokens, each right after its parent, with how deep they are."""
    children: dict[int | None, list[NodeShown]] = {}
    known = {node.id for node in nodes}
    for node in nodes:
        parent = node.parent if node.parent in known else None
        children.setdefault(parent, []).append(node)
    waiting = [(0, node) for node in reversed(children.get(None, []))]
    while waiting:
        depth, node = waiting.pop()
        if node.n_tokens:
            yield depth, node
        below = depth + (node.n_tokens > 0)
        waiting += [(below, child) for child in reversed(children.get(node.id, []))]


def _line(depth: int, node: NodeShown, end: int) -> tuple[str, ...]:
    start = _BAR_CELLS * node.start_token // end
    stop = max(_BAR_CELLS * (node.start_token + node.n_tokens) // end, start + 1)
    bar = " " * start + "#" * (stop - start)
    marks = [f"{node.pins} running"] * bool(node.pins) + ["kept"] * node.is_retained
    return (
        "  " * min(depth, 8) + "+",
        bar.ljust(_BAR_CELLS),
        count_text(node.n_tokens),
        count_text(node.start_token + node.n_tokens),
        count_text(node.hits),
        _idle(node.idle_seconds),
        ", ".join(marks),
    )


def _idle(seconds: float | None) -> str:
    if seconds is None:
        return "in use"
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.0f} min" if seconds < _HOUR else f"{seconds / _HOUR:.1f} h"
