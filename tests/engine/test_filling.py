"""How far a load goes where windows lack some of the blocks."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from prefixcache.engine.tiers.filling import Filling
from prefixcache.index.spans import Runs
from tests.support.models import Bench


@dataclass
class Listed:
    """A piece that says of each block whether a group has it, and counts how often it is asked."""

    start: int
    there: list[list[bool]]  # by group, by block
    tier: str = "listed"
    asked: list[int] = field(default_factory=list)
    n_blocks: int = 0

    def __post_init__(self) -> None:
        self.n_blocks = len(self.there[0])

    def has(self, group: int, block: int) -> bool:
        self.asked.append(block)
        return self.there[group][block - self.start]

    def write(self, group: int, block: int, runs: Runs) -> None:
        raise AssertionError("nothing is written here")


@pytest.fixture(scope="module")
def filling() -> Filling:
    """Of a model with a window group, which comes first, and one that sees all."""
    return Bench("gemma2").engine._tiers._filling


def test_a_load_goes_as_far_as_the_next_token_sees_all(filling: Filling) -> None:
    """As far as a plain look at each block of each group says, wherever blocks are missing."""
    rng = random.Random(5)
    for _ in range(300):
        start = rng.randrange(4)
        pieces, at = list[Listed](), start
        for _ in range(rng.randrange(1, 4)):
            n_blocks = rng.randrange(1, 5)
            there = [[rng.random() < share for _ in range(n_blocks)] for share in (0.6, 0.9)]
            pieces.append(Listed(at, there))
            at += n_blocks
        most = 4 * at - rng.randrange(2)  # a block may end with a prompt's last token

        def is_seen(
            stop: int, most: int = most, start: int = start, pieces: list[Listed] = pieces
        ) -> bool:
            position = min(4 * stop, most)
            needed = {
                group: {b for part in filling._needed(group, start, position) for b in part}
                for group in (0, 1)
            }
            return all(
                piece.there[group][block - piece.start]
                for piece in pieces
                for block in range(piece.start, piece.start + piece.n_blocks)
                for group in (0, 1)
                if block in needed[group]
            )

        expected = next(stop for stop in range(at, start - 1, -1) if is_seen(stop))
        assert filling._reach(pieces, start, most) == expected


def test_a_long_prompt_without_window_parts_is_looked_at_once(filling: Filling) -> None:
    """Each block of each group is asked for once, however far back the answer lies."""
    n_blocks = 3000
    piece = Listed(0, [[False] * n_blocks, [True] * n_blocks])
    assert filling._reach([piece], 0, 4 * n_blocks) == 0
    assert len(piece.asked) == 2 * n_blocks
