"""Whether another order than that of last use would have been right, from what came of it."""

from __future__ import annotations

_ENTRIES_PER_BLOCK = 200  # of lead; why: prefixcache/design/0021-learned-eviction.md


class Duel:
    """Two prefixes of which one was given up and the other one kept; the first one used wins."""

    __slots__ = ("is_open", "n_blocks")

    def __init__(self, n_blocks: int) -> None:
        self.n_blocks = n_blocks  # that both have: so many hits are at stake
        self.is_open = True


class Duellist:
    """The duels of one prefix."""

    __slots__ = ("duels", "room_blocks")

    def __init__(self) -> None:
        self.duels: list[tuple[Duel, int]] = []  # and what each block counts if this one wins
        self.room_blocks: int | None = None  # that may still be set against others; None: all


class Duels:
    """Counts what another order would have gained while the longest unused is given up.

    Each time the two orders name different leaves, that of last use is obeyed. If what it gave up
    is used before what it kept, the other order was right, else it was wrong, by as many blocks as
    both have. What was kept could have been given up only once: when its blocks are used up,
    nothing more is set against it until it is used. All calls are O(1), amortised.
    """

    def __init__(self) -> None:
        self._lead_blocks = 0

    def are_won(self, n_listed: int) -> bool:
        """Whether the other order was right by enough more blocks than it was wrong.

        Args:
            n_listed: entries. The more there are, the more a lead must be to be worth a change.
        """
        return self._lead_blocks * _ENTRIES_PER_BLOCK >= max(n_listed, _ENTRIES_PER_BLOCK)

    def begin(self, gone: Duellist, kept: Duellist, *, gone_blocks: int, kept_blocks: int) -> None:
        """Note that `gone` is given up, and that the other order would have chosen `kept`."""
        room = kept_blocks if kept.room_blocks is None else kept.room_blocks
        n_blocks = min(room, gone_blocks)
        if n_blocks < 1 or _meet_again(gone, kept):
            return
        kept.room_blocks = room - n_blocks
        duel = Duel(n_blocks)
        gone.duels.append((duel, 1))
        kept.duels.append((duel, -1))

    def decide(self, used: Duellist) -> None:
        """Note that a prefix is used: it wins what is undecided."""
        for duel, sign in used.duels:
            if duel.is_open:
                duel.is_open = False
                self._lead_blocks += sign * duel.n_blocks
        used.duels.clear()
        used.room_blocks = None


def _meet_again(gone: Duellist, kept: Duellist) -> bool:
    """Whether the last duel of both is the same: a leaf may be given up bit by bit."""
    return bool(gone.duels and kept.duels) and gone.duels[-1][0] is kept.duels[-1][0]
