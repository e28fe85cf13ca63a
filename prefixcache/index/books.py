"""The proof that trees, leases and pools say the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prefixcache.errors import BooksError
from prefixcache.index.accounts import Account
from prefixcache.index.core import Core
from prefixcache.index.groups import GroupPools
from prefixcache.index.lease import Lease, LeaseBook
from prefixcache.index.nodes import Anchor, Mount, Node, Root
from prefixcache.index.retention import Retentions
from prefixcache.index.spans import GroupRuns, Runs, n_blocks_in
from prefixcache.index.tokens import TOKEN_BYTES
from prefixcache.index.tree import anchor_of, children_of, nodes, runs_to
from prefixcache.index.window_hold import WindowPart
from prefixcache.index.windows import Windows
from prefixcache.types import PoolCounts, Span


def check_books(core: Core) -> None:
    """Prove every invariant of the index, from the blocks up. Raises BooksError."""
    accounts, forest, leases = core.accounts, core.forest, core.leases
    anchors = set(forest)
    ends = Counter(lease.node for lease in leases)
    for anchor in anchors:
        if isinstance(anchor, Mount) and anchor.source is not None:
            ends[anchor.source] += 1
    all_nodes = [node for anchor in anchors for node in nodes(anchor)]
    for node in all_nodes:
        _check_node(node, ends[node], core.block.n_bytes)
        _check_keeps(node, core.retentions)
    lost = core.retentions.nodes() - set(all_nodes)
    _require(not lost, f"{len(lost)} nodes outside of all trees are retained")
    copies = Counter(node.copy.handle for node in all_nodes if node.copy is not None)
    handles = core.locations.handles()
    _require(copies == Counter(handles), f"copies {dict(copies)} are named, {handles} are noted")
    for anchor in anchors:
        mounted = _count_mounted(anchor, anchors)
        kept = anchor.children is not None or anchor.pins or _mounts_of(anchor) or mounted
        _require(bool(kept), f"the empty tree of {_name_of(anchor)} is kept")
        if isinstance(anchor, Mount):
            _check_mount(anchor, anchors)
    for lease in leases:
        _require(lease.anchor in anchors, f"lease {lease.id} is in no tree")
        _check_lease(lease)
    for lease in core.in_flight.leaders():
        _require(lease.is_live, f"lease {lease.id} has ended and still leads")
    for group in range(len(core.pools.pools)):
        _check_pool(core.pools, group, all_nodes, leases)
    for group in range(len(core.windows.pools)):
        _check_windows(core.windows, group, all_nodes, leases)
    for account in accounts:
        _check_account(account, all_nodes, leases)
    slack = sum(lease.n_slack for lease in leases)
    _require(slack == accounts.n_slack, f"{accounts.n_slack} blocks of slack, leases have {slack}")
    unused = sum(account.unused_reserve for account in accounts)
    counted = accounts.n_unused_reserve
    _require(unused == counted, f"{counted} reserved blocks unused, accounts have {unused}")


def _count_mounted(anchor: Anchor, anchors: set[Anchor]) -> int:
    """Return how many mounts refer to the system's tree below `anchor`, and check its own count."""
    if not isinstance(anchor, Root):
        return 0
    n = sum(isinstance(each, Mount) and each.system_root is anchor for each in anchors)
    _require(n == anchor.n_mounted, f"{_name_of(anchor)} counts {anchor.n_mounted} mounts of {n}")
    return n


def _require(holds: bool, what_differs: str) -> None:
    if not holds:
        raise BooksError(what_differs)


def _name_of(node: Node) -> str:
    return f"the node {node.end_block - node.n_blocks}-{node.end_block} of {node.account.tenant!r}"


def _mounts_of(node: Node) -> list[Mount]:
    if not isinstance(node, Root):
        return []
    return [mount for mounts in node.mounts.values() for mount in mounts.values()]


def _check_node(node: Node, n_ends: int, block_bytes: int) -> None:
    name = _name_of(node)
    children = children_of(node)
    _require(node.children is None or bool(children), f"{name} has an empty map of children")
    if node.children is not None:
        known = [node.children.get(child.edge[:block_bytes]) for child in children]
        _require(known == list(children), f"{name} finds not all children by their first block")
        _require(node.children.n == len(children), f"{name} counts {node.children.n} children")
    for child in children:
        _require(child.parent is node, f"{name} is not its child's parent")
        start = child.end_block - child.n_blocks
        _require(start == node.end_block, f"{name} has a child that starts at block {start}")
        _require(child.account is node.account, f"{name} has another tenant's child")
        is_below_what_is_gone = bool(child.runs[0]) and not node.runs[0] and node.n_blocks > 0
        _require(not is_below_what_is_gone, f"{name} is not on the device, its child is")
    pins = n_ends
    if not isinstance(node, Root):
        pins += sum(child.pins > 0 for child in children)
    _require(node.pins == pins, f"{name} has {node.pins} pins, {pins} are due")
    n_resident = sum(bool(child.runs[0]) for child in children)
    _require(node.n_resident == n_resident, f"{name} counts {node.n_resident} children on device")
    due = bool(node.n_blocks and node.runs[0] and not node.pins and not node.keeps)
    listed = node.newer is not None
    _require(listed == due, f"{name} listed: {listed}, due: {due}")
    if listed:
        late = sum(child.last_used > node.last_used for child in children)
        _require(not late, f"{name} was used before {late} of its children")
    is_somewhere = bool(node.runs[0]) or node.copy is not None or isinstance(node, Anchor)
    _require(is_somewhere, f"{name} is neither on the device nor away")
    _require(bool(node.runs[0]) or not node.pins or isinstance(node, Anchor), f"{name} is used")
    _check_edge(node, block_bytes)


def _check_edge(node: Node, block_bytes: int) -> None:
    name = _name_of(node)
    n_blocks = -(-len(node.edge) // block_bytes)
    _require(n_blocks == node.n_blocks, f"{name} has an edge of {len(node.edge)} bytes")
    _require(bool(n_blocks) != isinstance(node, Anchor), f"{name} has no tokens")
    is_tail = len(node.edge) % block_bytes > 0
    _require(not is_tail or node.children is None, f"{name} goes on after half a block")
    _require(len(node.edge) % TOKEN_BYTES == 0, f"{name} ends in half a token")
    if node.runs[0]:
        _check_runs(node.runs, n_blocks, name)


def _check_keeps(node: Node, retentions: Retentions) -> None:
    below = [*children_of(node), *_mounts_of(node)]
    keeps = retentions.is_kept(node) + sum(child.keeps > 0 for child in below)
    _require(node.keeps == keeps, f"{_name_of(node)} is kept {node.keeps} times, {keeps} are due")


def _check_mount(mount: Mount, anchors: set[Anchor]) -> None:
    name = f"the mount of {mount.published.name!r} for {mount.account.tenant!r}"
    root = mount.parent
    _require(root in anchors, f"{name} is below no root")
    assert isinstance(root, Root)
    key = mount.published, mount.system_root
    known = root.mounts.get(key, {}).get(mount.end_block)
    _require(known is mount, f"{name} is not known to its root")
    _require(
        (mount.source is not None) == (mount.pins > 0), f"{name} and its source differ in pins"
    )
    if mount.source is not None:
        same = mount.source.end_block == mount.end_block
        _require(same, f"{name} ends at block {mount.end_block}, its source elsewhere")


def _check_lease(lease: Lease) -> None:
    name = f"lease {lease.id}"
    ordered = 0 <= lease.n_stored <= lease.n_needed <= lease.n_blocks
    _require(ordered, f"{name}: {lease.n_stored} stored, {lease.n_needed}, {lease.n_blocks}")
    _check_runs(lease.own, lease.n_blocks - lease.n_stored, name)
    _check_runs(runs_to(lease.node), lease.n_stored, f"the path of {name}")
    _require(anchor_of(lease.node) is lease.anchor, f"{name} is anchored elsewhere than its path")


def _check_windows(
    windows: Windows, group: int, all_nodes: Iterable[Node], leases: LeaseBook
) -> None:
    pool = windows.pools[group]
    pool.check()
    owned = bytearray(pool.n_blocks)
    _mark(owned, pool.free_spans())
    cached = held = n_loose = 0
    for node in all_nodes:
        n_blocks = _mark(owned, node.windows[group]) if node.windows else 0
        start = node.end_block - node.n_blocks
        is_cut = not start < windows.lead_blocks[group] < node.end_block
        _require(is_cut, f"{_name_of(node)} goes on after the lead of window group {group}")
        _require(n_blocks <= node.n_blocks, f"{_name_of(node)} has {n_blocks} window blocks")
        is_seen = bool(node.window_users and node.window_users[group])
        _require(not is_seen or node.pins > 0, f"{_name_of(node)} is seen, not pinned")
        held += n_blocks if is_seen else 0
        cached += 0 if is_seen else n_blocks
        due = n_blocks > 0 and not is_seen
        n_loose += due
        _require(windows.is_loose(node, group) == due, f"{_name_of(node)} may give: not {due}")
    _require(windows.n_loose(group) == n_loose, f"{windows.n_loose(group)} may give, not {n_loose}")
    for lease in leases:
        assert lease.window_hold is not None
        part = lease.window_hold.parts[group]
        held += _mark(owned, part.lead.runs) + _mark(owned, part.rest.runs)
        n_lead = windows.lead_blocks[group]
        _check_part(part, lease, min(lease.n_stored, n_lead))
        lead = windows.lead_to(lease.window_hold, lease.node, group)
        _require(
            n_blocks_in(lead) == min(part.lead.end, n_lead), f"lease {lease.id} lacks of its lead"
        )
    found = PoolCounts(free=pool.n_free, cached=cached, held=held)
    _check_counts(f"window group {group}", owned, windows.counts(group), found)


def _check_part(part: WindowPart, lease: Lease, lead_stored: int) -> None:
    name = f"lease {lease.id}"
    _require(part.rest.start >= lease.n_stored, f"{name} owns window blocks of the tree")
    _require(part.lead.start == lead_stored, f"{name} has its lead from {part.lead.start} on")
    is_ordered = part.lead.end <= part.lead_end <= part.rest.start
    _require(is_ordered, f"{name} takes its lead for what comes after it")


def _check_account(account: Account, all_nodes: Iterable[Node], leases: LeaseBook) -> None:
    cached = held = kept = 0
    for node in all_nodes:
        if node.account is account and node.runs[0]:
            held += node.n_blocks if node.pins else 0
            cached += 0 if node.pins else node.n_blocks
            kept += node.n_blocks if node.keeps else 0
    slack = sum(lease.n_slack for lease in leases if lease.account is account)
    held += sum(lease.n_blocks - lease.n_stored for lease in leases if lease.account is account)
    counted = (account.n_cached, account.n_held, account.n_kept, account.n_slack)
    found = (cached, held, kept, slack)
    _require(counted == found, f"{account.tenant!r} counts {counted}, its nodes have {found}")


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
        held += _mark(owned, lease.own[group])
    found = PoolCounts(free=pool.n_free, cached=cached, held=held)
    _check_counts(f"group {group}", owned, pools.counts(group), found)


def _check_counts(name: str, owned: bytearray, counts: PoolCounts, found: PoolCounts) -> None:
    """Check that each block has an owner, and that the counts are those of the owners."""
    lost = owned.count(0)
    _require(not lost, f"{lost} blocks of {name} belong to nobody")
    _require(counts == found, f"{name} counts {counts}, owners have {found}")


def _mark(owned: bytearray, runs: Runs | list[Span]) -> int:
    for first, n_blocks in runs:
        twice = owned.find(1, first, first + n_blocks)
        _require(twice < 0, f"block {twice} has two owners")
        owned[first : first + n_blocks] = b"\x01" * n_blocks
    return n_blocks_in(tuple(runs))
