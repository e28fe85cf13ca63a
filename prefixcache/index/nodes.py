"""The nodes of a tree: what each one knows. How they hang together is `tree.py`'s matter."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from prefixcache.index.accounts import Account
from prefixcache.index.children import Children
from prefixcache.index.entry import Entry
from prefixcache.index.misses import Tally
from prefixcache.index.namespaces import Generations, Namespace
from prefixcache.index.published import Published
from prefixcache.index.spans import GroupRuns
from prefixcache.index.window_hold import Users


class Copy(NamedTuple):
    """Where the KV of a node lies besides the device."""

    handle: Hashable  # the lower tier's own name for it
    first_block: int  # where the node's part of it begins: a node that is split shares its copy


class Node(Entry):
    """An edge of the tree: tokens of one or more whole blocks, and the blocks with their KV.

    `pins` counts the leases that end at this node and the children that are pinned, so that a
    pinned node's ancestors are pinned as well, and a walk up can stop at the first that already
    was. A root, which is never given up, counts leases alone, so that no walk goes on to it.
    The node's blocks are held while it is above 0. `keeps` counts retentions in the same
    way: neither a pinned nor a kept node is listed with a policy.

    An edge ends with a whole block, but for the last node of a published prompt.
    """

    source: Node | None = None  # where the path goes on above a mount; None: it does not

    __slots__ = (
        "account",
        "children",
        "copy",
        "digest",
        "keeps",
        "parent",
        "pins",
        "runs",
        "window_users",
        "windows",
    )

    def __init__(
        self,
        account: Account,
        edge: bytes,
        runs: GroupRuns,
        n_blocks: int,
        end_block: int,
        now: float,
        priority: int = 0,
    ) -> None:
        # Entry's fields, set here: a call of its own would cost a third of all this
        self.n_blocks, self.end_block, self.priority = n_blocks, end_block, priority
        self.created = self.last_used = now
        self.hits = self.n_resident = 0
        self.older = self.newer = None
        self.account = account  # whose blocks these are
        self.edge = edge
        self.runs = runs  # each group's empty while its KV is not on the device
        self.parent: Node | None = None  # None: a root, or cut off from its tree
        self.children: Children[Node] | None = None  # None: there are none
        self.pins = self.keeps = 0
        self.copy: Copy | None = None
        self.digest: bytes | None = None  # of its last block, once somebody asked for it
        self.windows: GroupRuns = ()  # of each window group, what its last positions have there
        self.window_users: tuple[Users, ...] = ()  # of each window group, who sees some of that


class Anchor(Node):
    """A node without tokens that a tenant's own nodes hang from; it is never given up."""

    __slots__ = ("memberships",)

    def __init__(self, account: Account, no_runs: GroupRuns, end_block: int, now: float) -> None:
        super().__init__(account, b"", no_runs, 0, end_block, now)
        self.memberships: tuple[dict[Anchor, None], ...] = ()  # what is to die together


class Root(Anchor):
    """The node above all others of one namespace and its generations."""

    __slots__ = (
        "checked_epoch",
        "generations",
        "mounts",
        "n_mounted",
        "namespace",
        "previous",
        "tally",
    )

    def __init__(
        self,
        account: Account,
        no_runs: GroupRuns,
        namespace: Namespace,
        generations: Generations,
        epoch: int,
        now: float,
    ) -> None:
        super().__init__(account, no_runs, 0, now)
        self.namespace = namespace
        self.generations = generations
        self.checked_epoch = epoch  # the last at which nothing of it had been invalidated
        # by prompt and the system's tree that it was read in, then by blocks passed through
        self.mounts: dict[tuple[Published, Root], dict[int, Mount]] = {}
        self.n_mounted = 0  # mounts of the prompts read here: it stays for them, though empty
        self.previous: Root | None = None  # of the same namespace, out of date
        self.tally = Tally()


class Mount(Anchor):
    """Where a tenant's tree passes through the first blocks of a published prompt.

    The blocks before it are the system's: `source` is the node they end at. It is known, and
    pinned, while the mount is.
    """

    __slots__ = ("passed_digest", "published", "source", "system_root")

    def __init__(
        self, root: Root, published: Published, system_root: Root, n_blocks: int, now: float
    ) -> None:
        super().__init__(root.account, root.runs, n_blocks, now)
        self.parent = root
        self.published = published
        self.system_root = system_root  # of the tree that the blocks before it are in
        self.source: Node | None = None
        self.passed_digest: bytes | None = None  # of the block before, once somebody asked for it
