"""Layer groups with a sliding window: what they still have of each path, and what must stay."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from prefixcache.errors import ConfigError, PoolExhaustedError
from prefixcache.index.blocks import BlockPool
from prefixcache.index.nodes import Mount, Node
from prefixcache.index.spans import GroupRuns, Runs, cut, join, n_blocks_in
from prefixcache.index.window_hold import WindowHold
from prefixcache.types import PoolCounts

Step = tuple[Node, int]  # a node of a path, and the block that a match follows it up to


class Windows:
    """The pools of the window groups, and who holds what of them.

    A token sees the `window` tokens up to itself, so what lies further back may go, and goes when
    room is needed: the node stays, with a hole. A node has the blocks of its last positions in
    each group, as many as are left. They are held while some lease's next token can see them, and
    cached otherwise; of the cached ones, those of the node that was let go first are the first
    to be given up.
    """

    def __init__(
        self, pool_blocks: Sequence[int], windows: Sequence[int], block_tokens: int
    ) -> None:
        for window in windows:
            if window < 1:
                raise ConfigError("windows", window, "a window has at least one token")
        self.windows = tuple(windows)
        self.pools = tuple(BlockPool(n_blocks) for n_blocks in pool_blocks)
        self.n_cached = [0] * len(self.pools)
        self.n_held = [0] * len(self.pools)
        self.none: GroupRuns = ((),) * len(self.pools)
        self._block_tokens = block_tokens
        self._loose: tuple[OrderedDict[Node, None], ...] = tuple(
            OrderedDict() for _ in self.pools
        )  # by group: nodes with cached blocks, oldest first

    def __bool__(self) -> bool:
        """Return whether there are window groups at all."""
        return bool(self.pools)

    def counts(self, group: int) -> PoolCounts:
        """Return one window group's blocks by state."""
        free = self.pools[group].n_free
        return PoolCounts(free=free, cached=self.n_cached[group], held=self.n_held[group])

    def first_visible(self, group: int, position: int) -> int:
        """Return the first block that the token at `position` sees in a group."""
        return max(position - self.windows[group] + 1, 0) // self._block_tokens

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
        hold = WindowHold(len(self.pools), n_stored)
        self._see_from(hold, node, self._first_needed(n_stored * self._block_tokens))
        return hold

    def slide(self, hold: WindowHold, node: Node, first: int, last: int) -> None:
        """Have room for tokens `first` to `last` - 1, and let go of what none of them sees.

        Raises:
            PoolExhaustedError: some group has less room. Nothing more is held than before.
        """
        for group, part in enumerate(hold.parts):
            gone = min(self.first_visible(group, first), part.end) - part.start
            if gone > 0:
                dropped, part.runs = cut(part.runs, gone)
                part.start += gone
                self._free_held(group, dropped)
        self._look_from(hold, node, self._first_needed(first))
        end = -(-last // self._block_tokens)
        for group, part in enumerate(hold.parts):
            self._require(group, end - part.end)
        for group, part in enumerate(hold.parts):
            missing = end - part.end
            if missing > 0:
                self._shed(group, missing - self.pools[group].n_free)
                part.runs = join(part.runs, self.pools[group].allocate(missing, part.runs))
                self.n_held[group] += missing

    def store(self, hold: WindowHold, node: Node, n_full: int) -> None:
        """Give a new node that ends at block `n_full` what the lease has of its positions."""
        given = []
        for part in hold.parts:
            head, part.runs = cut(part.runs, max(n_full - part.start, 0))
            part.start = max(part.start, n_full)
            given.append(head)
        node.windows = tuple(given)
        node.window_users = (hold,)
        hold.first_seen = min(hold.first_seen, node.end_block - node.n_blocks)

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
            self._free_held(group, part.runs)
            part.runs = ()
        self._look_from(hold, node, node.end_block + 1)

    def split(self, upper: Node, node: Node) -> None:
        """Share out the window blocks of `node`, of which `upper` has become the first part."""
        parts = [_cut_last(runs, node.n_blocks) for runs in node.windows]
        upper.windows = tuple(head for head, _ in parts)
        node.windows = tuple(tail for _, tail in parts)
        upper.window_users = tuple(
            [hold for hold in node.window_users if hold.first_seen < upper.end_block]
        )
        if node.window_users and not upper.window_users:
            self._move(upper, self.n_held, self.n_cached)
        self._file(upper)
        self._file(node)

    def give_up(self, node: Node, n_blocks: int) -> None:
        """Free the window blocks of the last `n_blocks` positions of a node that nobody uses."""
        kept = []
        for group, runs in enumerate(node.windows):
            head, tail = _cut_last(runs, n_blocks)
            self._free_cached(group, tail)
            kept.append(head)
        node.windows = tuple(kept)
        self._file(node)

    def runs_to(self, hold: WindowHold, node: Node, group: int) -> tuple[int, Runs]:
        """Return the first block that a lease at `node` holds in a group, and all from there on."""
        part = hold.parts[group]
        runs, start = part.runs, part.start
        for above in _path_up(node):
            if hold not in above.window_users:
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

    def _first_needed(self, position: int) -> int:
        return min(self.first_visible(group, position) for group in range(len(self.pools)))

    def _adopt_one(self, hold: WindowHold, node: Node) -> None:
        windows = list(node.windows or self.none)
        for group, part in enumerate(hold.parts):
            own, part.runs = cut(part.runs, max(node.end_block - part.start, 0))
            part.start = max(part.start, node.end_block)
            n_filled = max(n_blocks_in(own) - n_blocks_in(windows[group]), 0)
            filling, doubles = cut(own, n_filled)
            windows[group] = join(filling, windows[group])
            self._free_held(group, doubles)
            if not node.window_users:
                self.n_held[group] -= n_filled
                self.n_cached[group] += n_filled
        node.windows = tuple(windows)
        self._use(hold, node)
        hold.first_seen = min(hold.first_seen, node.end_block - node.n_blocks)

    def _see_from(self, hold: WindowHold, node: Node, first: int) -> None:
        """Hold the tree's blocks from block `first` on, up the path from `node`."""
        for above in _path_up(node):
            if above.end_block <= first:
                break
            self._use(hold, above)
        hold.first_seen = first

    def _look_from(self, hold: WindowHold, node: Node, first: int) -> None:
        """Let go of the tree's blocks before block `first`."""
        for above in _path_up(node):
            start = above.end_block - above.n_blocks
            if above.end_block <= first and hold in above.window_users:
                self._unuse(hold, above)
            if start <= hold.first_seen:
                break
        hold.first_seen = max(hold.first_seen, first)

    def _use(self, hold: WindowHold, node: Node) -> None:
        if hold in node.window_users:
            return
        if not node.window_users:
            self._move(node, self.n_cached, self.n_held)
        node.window_users = (*node.window_users, hold)
        self._file(node)

    def _unuse(self, hold: WindowHold, node: Node) -> None:
        node.window_users = tuple([other for other in node.window_users if other is not hold])
        if not node.window_users:
            self._move(node, self.n_held, self.n_cached)
            self._file(node)

    def _file(self, node: Node) -> None:
        """List a node in each group exactly while it has cached blocks there."""
        for loose, runs in zip(self._loose, node.windows, strict=False):
            if runs and not node.window_users:
                loose[node] = None
            else:
                loose.pop(node, None)

    def _move(self, node: Node, from_counts: list[int], to_counts: list[int]) -> None:
        for group, runs in enumerate(node.windows):
            n_blocks = n_blocks_in(runs)
            from_counts[group] -= n_blocks
            to_counts[group] += n_blocks

    def _require(self, group: int, n_blocks: int) -> None:
        obtainable = self.pools[group].n_free + self.n_cached[group]
        if n_blocks > obtainable:
            raise PoolExhaustedError(n_blocks, obtainable, self.n_held[group])

    def _shed(self, group: int, n_blocks: int) -> None:
        """Give up cached blocks of a group, the first of each node first, until it is enough."""
        while n_blocks > 0:
            node = next(iter(self._loose[group]))
            runs = node.windows[group]
            dropped, kept = cut(runs, min(n_blocks, n_blocks_in(runs)))
            node.windows = (*node.windows[:group], kept, *node.windows[group + 1 :])
            self._free_cached(group, dropped)
            n_blocks -= n_blocks_in(dropped)
            if not kept:
                del self._loose[group][node]

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
        seen = self.windows[group] - 1  # tokens before the next one that it sees
        if not seen:
            return end
        for start, until in intervals:
            at = min(until, end)
            if at > start and (start == 0 or at * size - seen >= start * size):
                return at
        return 0


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
