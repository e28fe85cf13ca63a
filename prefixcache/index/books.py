"""The proof that trees, leases and pools say the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prefixcache.errors import BooksError
from prefixcache.index.forest import Forest
from prefixcache.index.groups import GroupPools
from prefixcache.index.keeper import Keeper
from prefixcache.index.lease import Lease, LeaseBook
from prefixcache.index.spans import GroupRuns, Runs, cut_groups, n_blocks_in
from prefixcache.index.tree import Node, Root, first_block, nodes, path_runs
from prefixcache.types import PoolCounts, Span


def check_books(
    pools: GroupPools, forest: Forest, keeper: Keeper, leases: LeaseBook, block_bytes: int
) -> None:
    """Prove every invariant of the index, from the blocks up. Raises BooksError."""
    ends = Counter(lease.node for lease in leases)
    all_nodes = [node for root in forest for node in nodes(root)]
    for node in all_nodes:
        _check_node(node, ends[node], keeper, block_bytes)
    listed = sum(keeper.is_listed(node) for node in all_nodes)
    _require(listed == keeper.n_listed, f"{keeper.n_listed} nodes listed, {listed} in trees")
    roots = set(forest)
    for root in roots:
        kept = root.children is not None or root.pins
        _require(bool(kept), f"the empty tree of {root.namespace} is kept")
    for lease in leases:
        _require(lease.root in roots, f"lease {lease.id} is in no tree")
        _check_lease(lease)
    slack = sum(lease.n_slack for lease in leases)
    _require(slack == leases.n_slack, f"{leases.n_slack} blocks of slack, leases have {slack}")
    for group in range(len(pools.pools)):
        _check_pool(pools, group, all_nodes, leases)


def _require(holds: bool, what_differs: str) -> None:
    if not holds:
        raise BooksError(what_differs)


def _check_node(node: Node, n_ends: int, keeper: Keeper, block_bytes: int) -> None:
    name = f"node {node.id}"
    children = () if node.children is None else tuple(node.children.values())
    _require(node.children is None or bool(children), f"{name} has an empty map of children")
    if node.children is not None:
        keys = list(node.children.keys_in_order())
        by_edge = sorted(first_block(child, block_bytes) for child in children)
        _require(keys == by_edge, f"{name} knows its children by other blocks than their first")
        _require(
            all(child.parent is node for child in children), f"{name} is not its child's parent"
        )
    pins = n_ends + sum(child.pins > 0 for child in children)
    _require(node.pins == pins, f"{name} has {node.pins} pins, {pins} are due")
    is_root = isinstance(node, Root)
    due = not (is_root or node.pins or children)
    _require(keeper.is_listed(node) == due, f"{name} listed: {keeper.is_listed(node)}, due: {due}")
    if not node.pins:
        late = [child.id for child in children if child.last_used > node.last_used]
        _require(not late, f"{name} was used before its children {late}")
    n_blocks, rest = divmod(len(node.edge), block_bytes)
    _require(
        not rest and bool(n_blocks) != is_root, f"{name} has an edge of {len(node.edge)} bytes"
    )
    _check_runs(node.runs, n_blocks, name)


def _check_lease(lease: Lease) -> None:
    name = f"lease {lease.id}"
    ordered = 0 <= lease.n_stored <= lease.n_needed <= lease.n_blocks
    _require(ordered, f"{name}: {lease.n_stored} stored, {lease.n_needed}, {lease.n_blocks}")
    _check_runs(lease.runs, lease.n_blocks, name)
    stored, _ = cut_groups(lease.runs, lease.n_stored)
    _require(stored == path_runs(lease.node, lease.root), f"{name} differs from its path")


def _check_runs(groups: GroupRuns, n_blocks: int, name: str) -> None:
    for group, runs in enumerate(groups):
        found = n_blocks_in(runs)
        _require(found == n_blocks, f"{name} has {found} blocks in group {group}, not {n_blocks}")


def _check_pool(
    pools: GroupPools, group: int, all_nodes: Iterable[Node], leases: LeaseBook
) -> None:
    pool = pools.pools[group]
    pool.check()
    owned = bytearray(pool.n_blocks)
    _mark(owned, pool.free_spans())
    cached = held = 0
    for node in all_nodes:
        n_blocks = _mark(owned, node.runs[group])
        if node.pins:
            held += n_blocks
        else:
            cached += n_blocks
    for lease in leases:
        held += _mark(owned, lease.own_runs()[group])
    lost = owned.count(0)
    _require(not lost, f"{lost} blocks of group {group} belong to nobody")
    found = PoolCounts(free=pool.n_free, cached=cached, held=held)
    _require(pool.counts == found, f"group {group} counts {pool.counts}, owners have {found}")


def _mark(owned: bytearray, runs: Runs | list[Span]) -> int:
    for first, n_blocks in runs:
        twice = owned.find(1, first, first + n_blocks)
        _require(twice < 0, f"block {twice} has two owners")
        owned[first : first + n_blocks] = b"\x01" * n_blocks
    return n_blocks_in(tuple(runs))
