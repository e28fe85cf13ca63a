"""Layer groups with a sliding window: what they still have of each path, and what must stay."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

from prefixcache.errors import ConfigError, PoolExhaustedError
from prefixcache.index.blocks import BlockPool
from prefixcache.index.nodes import Mount, Node
from prefixcache.index.spans import Runs, cut, join, n_blocks_in
from prefixcache.index.window_hold import Users, WindowHold, WindowPart
from prefixcache.types import PoolCounts

Step = tuple[Node, int]  # a node of a path, and the block that a match follows it up to


class Windows:
    """The pools of the window groups, and who holds what of them.

    A token sees the `window` tokens up to itself, and the group's lead: the first tokens of its
    prompt, if the group has any. What lies between may go, and goes when room is needed: the node
    stays, with a hole. A node has the blocks of its last positions in each group, as many as are
    left, and lies before the end of a lead or behind it. The blocks are held while some lease's
    next token can see them, and cached otherwise; of the cached ones, those of the node that was
    let go first are the first to be given up, and those of retained nodes the last.
    """

    def __init__(
        self,
        pool_blocks: Sequence[int],
        windows: Sequence[int],
        leads: Sequence[int],
        block_tokens: int,
    ) -> None:
        """Begin with empty pools. `leads`: the tokens of each group's lead; 0: it has none."""
        for window in windows:
            if window < 1:
                raise ConfigError("windows", window, "a window has at least one token")
        self.windows = tuple(windows)
        self.lead_blocks = tuple([-(-lead // block_tokens) for lead in leads])
        self._lead_ends = tuple(sorted(set(self.lead_blocks) - {0}))
        self.pools = tuple(BlockPool(n_blocks) for n_blocks in pool_blocks)
        self.n_cached = [0] * len(self.pools)
        self.n_held = [0] * len(self.pools)
        self.none: tuple[tuple[()], ...] = ((),) * len(self.pools)
        self._block_tokens = block_tokens
        self._loose: tuple[OrderedDict[Node, None], ...] = tuple(
            OrderedDict() for _ in self.pools
        )  # by group: nodes with cached blocks, oldest first

    def counts(self, group: int) -> PoolCounts:
        """Return one window group's blocks by state."""
        free = self.pools[group].n_free
        return PoolCounts(free=free, cached=self.n_cached[group], held=self.n_held[group])

    def first_visible(self, group: int, position: int) -> int:
        """Return the first block that the token at `position` sees in a group."""
        return max(position - self.windows[group] + 1, 0) // self._block_tokens

    def cuts(self, start: int, end: int) -> Iterator[int]:
        """Yield where nodes of blocks `start` to `end` - 1 are to end: at leads' ends, and there.

        A node across the end of a lead would have a hole in its middle.
        """
        yield from (cut_at for cut_at in self._lead_ends if start < cut_at < end)
        yield end

    def visible_end(self, path: Sequence[Step], n_blocks: int) -> int:
        """Return the longest prefix, in blocks, of a match whose visible blocks are all there.

        Args:
            path: the match's nodes, the last first, each with the block that it counts up to.
        """
        there = [self._intervals(path, group) for group in range(len(self.pools))]
        end, last = n_blocks, -1
        while end != last:
            last = end
            for group, intervals in enumerate(there):
                end = self._last_allowed(group, intervals, end)
        return end

    def enter(self, node: Node, n_stored: int) -> WindowHold:
        """Hold the blocks that the token after `n_stored` blocks sees, on the path to `node`."""
        hold = WindowHold(self.lead_blocks, n_stored)
        for group, part in enumerate(hold.parts):
            part.first_seen = self.first_visible(group, n_stored * self._block_tokens)
            for above in _path_up(node):
                if _is_seen(part, above):
                    self._use(group, part, above)
                elif not part.lead_end:
                    break
        return hold

    def slide(
        self, hold: WindowHold, node: Node, first: int, last: int, reclaim: Callable[[], object]
    ) -> None:
        """Have room for tokens `first` to `last` - 1, and let go of what none of them sees.

        `reclaim` frees what was invalidated; it is called before anything else is given up.

        Raises:
            PoolExhaustedError: some group has less room. Nothing more is held than before.
        """
        for group, part in enumerate(hold.parts):
            first_block = self.first_visible(group, first)
            self._free_held(group, part.rest.take_until(min(first_block, part.rest.end)))
            self._look_from(group, part, node, first_block)
        end = -(-last // self._block_tokens)
        for group, part in enumerate(hold.parts):
            self._require(group, sum(part.missing(end)))
        for group, part in enumerate(hold.parts):
            missing = part.missing(end)
            n_missing = sum(missing)
            if n_missing > self.pools[group].n_free:
                reclaim()
            self._shed(group, n_missing - self.pools[group].n_free)
            for extent, n_blocks in zip((part.lead, part.rest), missing, strict=True):
                if n_blocks:
                    extent.add(self.pools[group].allocate(n_blocks, extent.runs))
            self.n_held[group] += n_missing

    def skip(
        self, hold: WindowHold, node: Node, position: int, reclaim: Callable[[], object]
    ) -> None:
        """Go on at `position`, with room for what its token sees; what lies before is not written.

        Raises:
            PoolExhaustedError: some group has less room. Nothing has changed.
        """
        end = position // self._block_tokens + 1
        for group, part in enumerate(hold.parts):
            n_lead, n_rest = part.missing(end)
            n_rest = min(n_rest, end - max(self.first_visible(group, position), part.lead_end))
            self._require(group, n_lead + max(n_rest, 0))
        for group, part in enumerate(hold.parts):
            self._free_held(group, part.rest.take_until(self.first_visible(group, position)))
        self.slide(hold, node, position, position + 1, reclaim)

    def store(self, hold: WindowHold, node: Node, n_full: int) -> None:
        """Give a new node that ends at block `n_full` what the lease has of its positions."""
        given = []
        for part in hold.parts:
            given.append(part.take_until(n_full))
            part.first_seen = min(part.first_seen, node.end_block - node.n_blocks)
        node.windows = tuple(given)
        node.window_users = tuple([(part,) for part in hold.parts])

    def adopt(self, hold: WindowHold, node: Node, above: Node) -> None:
        """Go on at `node`, which others stored below `above`: fill its holes, free doubles."""
        path: list[Node] = []
        step: Node | None = node
        while step is not None and step is not above:
            path.append(step)
            step = step.parent
        for part_node in reversed(path):
            self._adopt_one(hold, part_node)

    def leave(self, hold: WindowHold, node: Node) -> None:
        """Let go of everything that a lease at `node` holds."""
        for group, part in enumerate(hold.parts):
            for extent in (part.lead, part.rest):
                self._free_held(group, extent.take_until(extent.end))
            self._look_from(group, part, node, node.end_block + 1)
            if part.lead_end:
                self._leave_lead(group, part, node)

    def split(self, upper: Node, node: Node) -> None:
        """Share out the window blocks of `node`, of which `upper` has become the first part."""
        parts = [_cut_last(runs, node.n_blocks) for runs in node.windows]
        upper.windows = tuple(head for head, _ in parts)
        node.windows = tuple(tail for _, tail in parts)
        upper.window_users = tuple(
            [
                tuple([part for part in users if _is_seen(part, upper)])
                for users in node.window_users
            ]
        )
        for group, users in enumerate(node.window_users):
            if users and not upper.window_users[group]:
                self._hold(group, -n_blocks_in(upper.windows[group]))
            self._file(group, upper)
            self._file(group, node)

    def give_up(self, node: Node, n_blocks: int) -> None:
        """Free the window blocks of the last `n_blocks` positions of a node that nobody uses."""
        kept = []
        for group, runs in enumerate(node.windows):
            head, tail = _cut_last(runs, n_blocks)
            self._free_cached(group, tail)
            kept.append(head)
        node.windows = tuple(kept)
        for group in range(len(kept)):
            self._file(group, node)

    def lead_to(self, hold: WindowHold, node: Node, group: int) -> Runs:
        """Return the blocks of a group's lead that a lease at `node` holds. Cost: its path."""
        part = hold.parts[group]
        runs = part.lead.runs
        if part.lead_end:
            for above in _path_up(node):
                if above.end_block <= part.lead_end:
                    runs = join(above.windows[group], runs)
        return runs

    def runs_to(self, hold: WindowHold, node: Node, group: int) -> tuple[int, Runs]:
        """Return the first block that a lease at `node` holds in a group, and all from there on.

        The group's lead is not among them.
        """
        part = hold.parts[group]
        runs, start = part.rest.runs, part.rest.start
        for above in _path_up(node):
            if above.end_block <= part.lead_end or part not in above.window_users[group]:
                break
            n_there = n_blocks_in(above.windows[group])
            if above.end_block != start or not n_there:
                break
            runs, start = join(above.windows[group], runs), start - n_there
            if n_there < above.n_blocks:
                break
        return start, runs

    def is_loose(self, node: Node, group: int) -> bool:
        """Return whether a node may be asked to give up blocks of a group."""
        return node in self._loose[group]

    def n_loose(self, group: int) -> int:
        """Return how many nodes may be asked to give up blocks of a group."""
        return len(self._loose[group])

    def _adopt_one(self, hold: WindowHold, node: Node) -> None:
        windows = list(node.windows)
        for group, part in enumerate(hold.parts):
            own = part.take_until(node.end_block)
            n_filled = max(n_blocks_in(own) - n_blocks_in(windows[group]), 0)
            filling, doubles = cut(own, n_filled)
            windows[group] = join(filling, windows[group])
            self._free_held(group, doubles)
            if not node.window_users[group]:
                self._hold(group, -n_filled)
        node.windows = tuple(windows)
        for group, part in enumerate(hold.parts):
            self._use(group, part, node)
            part.first_seen = min(part.first_seen, node.end_block - node.n_blocks)

    def _look_from(self, group: int, part: WindowPart, node: Node, first: int) -> None:
        """Let go of the tree's blocks before block `first`, but of the lead's, up from `node`."""
        for above in _path_up(node):
            start = above.end_block - above.n_blocks
            is_between = part.lead_end < above.end_block <= first
            if is_between and part in above.window_users[group]:
                self._unuse(group, part, above)
            if start <= part.first_seen:
                break
        part.first_seen = max(part.first_seen, first)

    def _leave_lead(self, group: int, part: WindowPart, node: Node) -> None:
        """Let go of the tree's blocks of a lead. Cost: the path to `node`."""
        for above in _path_up(node):
            if above.end_block <= part.lead_end and part in above.window_users[group]:
                self._unuse(group, part, above)

    def _use(self, group: int, part: WindowPart, node: Node) -> None:
        users = node.window_users[group]
        if part in users:
            return
        if not users:
            self._hold(group, n_blocks_in(node.windows[group]))
        self._set_users(group, node, (*users, part))

    def _unuse(self, group: int, part: WindowPart, node: Node) -> None:
        users = tuple([other for other in node.window_users[group] if other is not part])
        if not users:
            self._hold(group, -n_blocks_in(node.windows[group]))
        self._set_users(group, node, users)

    def _set_users(self, group: int, node: Node, users: Users) -> None:
        everyone = node.window_users
        node.window_users = (*everyone[:group], users, *everyone[group + 1 :])
        self._file(group, node)

    def _file(self, group: int, node: Node) -> None:
        """List a node exactly while it has cached blocks in the group."""
        if node.windows[group] and not node.window_users[group]:
            self._loose[group][node] = None
        else:
            self._loose[group].pop(node, None)

    def _hold(self, group: int, n_blocks: int) -> None:
        """Count `n_blocks` more of the group's cached blocks as held."""
        self.n_cached[group] -= n_blocks
        self.n_held[group] += n_blocks

    def _require(self, group: int, n_blocks: int) -> None:
        obtainable = self.pools[group].n_free + self.n_cached[group]
        if n_blocks > obtainable:
            raise PoolExhaustedError(n_blocks, obtainable, self.n_held[group])

    def _shed(self, group: int, n_blocks: int) -> None:
        """Give up cached blocks of a group, the first of each node first, until it is enough."""
        while n_blocks > 0:
            node = self._next_to_give(group)
            runs = node.windows[group]
            dropped, kept = cut(runs, min(n_blocks, n_blocks_in(runs)))
            node.windows = (*node.windows[:group], kept, *node.windows[group + 1 :])
            self._free_cached(group, dropped)
            n_blocks -= n_blocks_in(dropped)
            if not kept:
                del self._loose[group][node]

    def _next_to_give(self, group: int) -> Node:
        """Return the node let go first; what is retained comes after all that is not.

        Cost: O(1) amortised, unless nothing but what is retained is left.
        """
        loose = self._loose[group]
        for _ in range(len(loose)):
            node = next(iter(loose))
            if not node.keeps:
                return node
            loose.move_to_end(node)
        return next(iter(loose))

    def _free_held(self, group: int, runs: Runs) -> None:
        self.n_held[group] -= n_blocks_in(runs)
        for span in runs:
            self.pools[group].free(span)

    def _free_cached(self, group: int, runs: Runs) -> None:
        self.n_cached[group] -= n_blocks_in(runs)
        for span in runs:
            self.pools[group].free(span)

    def _intervals(self, path: Sequence[Step], group: int) -> list[tuple[int, int]]:
        """Return where a group has blocks on a path, the last of them first."""
        found: list[tuple[int, int]] = []
        for node, end in path:
            start = node.end_block - n_blocks_in(node.windows[group])
            if start >= end:
                continue
            if found and found[-1][0] == end:
                found[-1] = (start, found[-1][1])
            else:
                found.append((start, end))
        return found

    def _last_allowed(self, group: int, intervals: list[tuple[int, int]], end: int) -> int:
        """Return the longest prefix up to `end` blocks of which a group has all that is visible."""
        size = self._block_tokens
        if self.lead_blocks[group]:
            lead_end = intervals[-1][1] if intervals and not intervals[-1][0] else 0
            if lead_end < self.lead_blocks[group]:
                return min(lead_end, end)
        seen = self.windows[group] - 1  # tokens before the next one that it sees
        if not seen:
            return end
        for start, until in intervals:
            at = min(until, end)
            if at > start and (start == 0 or at * size - seen >= start * size):
                return at
        return 0


def _is_seen(part: WindowPart, node: Node) -> bool:
    """Return whether a lease that has the node on its path sees some of it."""
    return node.end_block > part.first_seen or node.end_block <= part.lead_end


def _path_up(node: Node) -> Iterator[Node]:
    """Yield the nodes with tokens from `node` up to position 0."""
    above: Node | None = node
    while above is not None:
        if above.n_blocks:
            yield above
        above = above.source if isinstance(above, Mount) else above.parent


def _cut_last(runs: Runs, n_blocks: int) -> tuple[Runs, Runs]:
    """Return the runs of the last positions, cut before the last `n_blocks` of these."""
    return cut(runs, max(n_blocks_in(runs) - n_blocks, 0))
