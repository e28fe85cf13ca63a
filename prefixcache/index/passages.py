"""A match as a path of nodes, and the same match cut short."""

from __future__ import annotations

from prefixcache.index.nodes import Anchor, Node, Root
from prefixcache.index.publisher import Passage
from prefixcache.index.tree import Match, anchor_of
from prefixcache.index.windows import Step


def path_to(node: Node, n_blocks: int) -> list[Step]:
    """Return the nodes down to `node`, the last first, each with the block it is followed up to."""
    steps: list[Step] = []
    while not isinstance(node, Anchor):
        steps.append((node, min(node.end_block, n_blocks)))
        assert node.parent is not None
        node = node.parent
    return steps


def path_of(match: Match, passage: Passage | None) -> list[Step]:
    """Return the nodes of a match, the last first, each with the block it is followed up to."""
    path = path_to(match.node, match.n_blocks)
    if passage is not None and passage.mount is not None:
        path += path_to(passage.through.node, passage.through.n_blocks)
    return path


def cut_match(
    root: Root, match: Match, passage: Passage | None, n_blocks: int
) -> tuple[Match, Passage | None]:
    """Return a match and its passage as far as the first `n_blocks` blocks go."""
    shorter, way = _first_of(root, match, passage, n_blocks)
    shorter.is_cut = True
    return shorter, way


def _first_of(
    root: Root, match: Match, passage: Passage | None, n_blocks: int
) -> tuple[Match, Passage | None]:
    if not n_blocks:
        return Match(root, 0, 0), None
    if passage is None:
        return _cut(match.node, n_blocks), None
    through = passage.through
    if passage.mount is not None and n_blocks > through.n_blocks:
        return _cut(match.node, n_blocks), passage
    shorter = _cut(through.node, n_blocks)
    system_root = anchor_of(shorter.node)
    assert isinstance(system_root, Root)
    mount = root.mounts.get((passage.published, system_root), {}).get(n_blocks)
    at_mount = shorter if mount is None else Match(mount, n_blocks, 0)
    return at_mount, Passage(passage.published, shorter, mount)


def _cut(node: Node, n_blocks: int) -> Match:
    while node.end_block - node.n_blocks >= n_blocks:
        assert node.parent is not None
        node = node.parent
    return Match(node, n_blocks, n_blocks - node.end_block + node.n_blocks)
