"""Ours as well: learns what comes back, and when, and keeps what is most likely to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from math import inf

from prefixcache.index.entry import Entry
from prefixcache.index.policies.ages import N_AGES, age_of
from prefixcache.index.policies.duels import Duels
from prefixcache.index.policies.history import History, Key, Past, key_of
from prefixcache.index.policies.returns import Returns
from prefixcache.index.policies.shelves import Shelves

_LEFT_BEHIND = 0  # a kind of its own: what a prompt that goes on leaves unused
_N_FIRST_LENGTHS = 12  # of what was used once, by the logarithm of its length in blocks
_MOST_USES: Sequence[int] = (2, 3, 5, 9, 31)  # of each group of kinds but the last
_AGES_PER_GAP = 6
_MOST_BLOCKS: Sequence[int] = (1, 4)  # of each length of what was used again, but the last
_N_LENGTHS = len(_MOST_BLOCKS) + 1
_N_IN_GROUP = -(-N_AGES // _AGES_PER_GAP) * _N_LENGTHS
_FIRST_BRANCH = 1 + _N_FIRST_LENGTHS  # used once as well, but most of its prompt was known
_FIRST_REPEAT = _FIRST_BRANCH + _N_FIRST_LENGTHS
_N_KINDS = _FIRST_REPEAT + (len(_MOST_USES) + 1) * _N_IN_GROUP
_GROUPS: Sequence[Sequence[int]] = (
    (_LEFT_BEHIND,),
    range(1, _FIRST_BRANCH),
    range(_FIRST_BRANCH, _FIRST_REPEAT),
    *(range(first, first + _N_IN_GROUP) for first in range(_FIRST_REPEAT, _N_KINDS, _N_IN_GROUP)),
)

_LEAST_REMEMBERED = 4096  # prefixes, listed ones included
_REMEMBERED_PER_LISTED = 8
_LEAST_USES = 256  # between two times that worths are worked out
_REMEMBERED_PER_USE = 16
_LEAST_RETURNS = (
    256  # prompts that went through a known prefix, before anything is judged by its kind
)


class LearnedPolicy:
    """Gives up the leaf that promises the fewest hits for each second that it takes room.

    It remembers when prefixes were used, also those that were given up long ago, and so learns
    how long it takes until one of a kind comes back, if it does. A prefix's kind is how often it
    was used, the time between the last two uses and its length; of what was used once, its length
    and whether it goes on from a longer prefix that was known. What goes on where the last
    prompt through a prefix ended, as the next turn of a conversation does, counts that one's uses
    as its own. Where nobody answers within half a minute, what has just come in promises less
    than what has waited that long; and what has waited for too long goes.

    Nothing is set for some traffic: all rates are counted as requests come, and what was counted
    long ago weighs less and less. Until there are enough and what they say has proved better
    (`Duels`), and where all is alike, the longest unused goes first. Every call is O(log n),
    amortised; it takes 300 kB, and as many bytes for each of a few prefixes per listed one.

    Source: Beckmann, Chen, Cidon: LHD: improving cache hit rate by maximizing hit density (2018).
    What else was tried: prefixcache/design/0021-learned-eviction.md.
    """

    def __init__(self) -> None:
        self._shelves = Shelves(_N_KINDS)
        self._history = History()
        self._returns = Returns(_GROUPS)
        self._duels = Duels()
        self._keys: OrderedDict[Entry, Key] = OrderedDict()  # of what is listed, as it came
        self._now = 0.0
        self._uses_left = _LEAST_USES
        self._n_returns = 0
        self._is_judging = False  # until enough is known all are of one kind
        self._is_trusted = False  # until that has proved right the longest unused goes first
        self._new: list[tuple[Entry, Past]] = []  # ends of the path that is being listed
        self._path_returned = False
        self._path_start = (-inf, 0)  # when that was used, and the block that it begins at so far

    def add(self, entry: Entry) -> None:
        """List `entry`, and learn from its coming back if it is known."""
        self._now = max(self._now, entry.last_used)
        key = key_of(entry)
        past = self._history.get(key)
        if self._path_start != (entry.last_used, entry.end_block):
            self._new.clear()
            self._path_returned = False
        if past is None:
            past = Past(entry, _first_kind_of(entry))
            self._new.append((entry, past))
        else:
            self._come_back(entry, past)
        self._path_start = (entry.last_used, entry.end_block - entry.n_blocks)
        past.tip_block = inf if entry.n_resident else entry.end_block
        past.entry = entry
        self._keys[entry] = key
        self._history.renew(key, past)
        self._put(entry, past.kind)
        self._count_use()

    def discard(self, entry: Entry) -> None:
        """Take `entry` off its list; it is remembered."""
        if not self._shelves.take(entry):
            return
        past = self._history.get(self._keys.pop(entry))
        if past is not None and past.entry is entry:
            past.entry = None
            if past.tip_block < inf:
                past.tip_block = min(past.tip_block, entry.end_block)  # it may have been trimmed

    def expose(self, entry: Entry) -> None:
        """Put `entry` among the leaves."""
        past = self._history.get(self._keys[entry])
        kind = _LEFT_BEHIND if past is None or past.entry is not entry else past.kind
        self._move(entry, kind)

    def victim(self, now: float) -> Entry | None:
        """Return the leaf that is worth least."""
        self._now = max(self._now, now)
        if self._is_trusted:
            return self._shelves.least(self._now)
        oldest = next((entry for entry in self._keys if not entry.n_resident), None)
        if oldest is not None and self._is_judging:
            self._challenge(oldest)
        return oldest

    def overdue(self, now: float) -> Entry | None:
        """Return None: entries go only to make room."""
        self._now = max(self._now, now)
        return None

    def _challenge(self, oldest: Entry) -> None:
        """Note what would be given up instead of the longest unused, if that is another leaf."""
        least = self._shelves.least(self._now)
        if least is None or least is oldest:
            return
        gone, kept = (self._history.get(self._keys[entry]) for entry in (oldest, least))
        if gone is not None and kept is not None and gone.kind != kept.kind:
            self._duels.begin(
                gone.duellist,
                kept.duellist,
                gone_blocks=oldest.n_blocks,
                kept_blocks=least.n_blocks,
            )

    def _come_back(self, entry: Entry, past: Past) -> None:
        """Learn from a return, and let what is new below it count its uses if it goes on here."""
        if not self._is_trusted:
            self._duels.decide(past.duellist)
            self._is_trusted = self._duels.are_won(len(self._keys))
        gap_seconds = entry.last_used - past.last_used
        self._returns.count(past.kind, gap_seconds, returned=True)
        self._n_returns += not self._path_returned  # a path's returns are but one observation
        self._path_returned = True
        goes_on = entry.end_block >= past.tip_block - 1  # a prompt's last block may not be full
        if past.entry is not None and past.entry is not entry:
            self._cut_off(past.entry, _LEFT_BEHIND if goes_on else past.kind)
        past.last_used = entry.last_used
        past.uses += 1
        past.kind = _kind_of(past.uses, gap_seconds, entry.n_blocks)
        if goes_on:
            for new, its_past in self._new:
                its_past.uses = past.uses
                its_past.kind = _kind_of(past.uses, gap_seconds, new.n_blocks)
                self._move(new, its_past.kind)
        self._new.clear()

    def _cut_off(self, rest: Entry, kind: int) -> None:
        """Note that what was listed for a prefix is but the rest of it: its beginning is apart now.

        That is what a prompt that goes on leaves behind, or another one's own part.
        """
        key = self._keys[rest] = key_of(rest)
        self._history.renew(key, Past(rest, kind))
        self._move(rest, kind)

    def _move(self, entry: Entry, kind: int) -> None:
        if self._shelves.take(entry):
            self._put(entry, kind)

    def _put(self, entry: Entry, kind: int) -> None:
        self._shelves.put(entry, kind if self._is_judging else _LEFT_BEHIND, self._now)

    def _count_use(self) -> None:
        """Forget what is too much to remember, and work out the worths when it is time."""
        most = max(_LEAST_REMEMBERED, _REMEMBERED_PER_LISTED * len(self._shelves))
        while len(self._history) > most:
            past = self._history.forget_oldest()
            self._returns.count(past.kind, self._now - past.last_used, returned=False)
        self._uses_left -= 1
        if not self._uses_left:
            self._uses_left = max(_LEAST_USES, len(self._history) // _REMEMBERED_PER_USE)
            if not self._is_judging and self._n_returns >= _LEAST_RETURNS:
                self._begin_to_judge()
            if self._is_judging:
                self._rank()

    def _rank(self) -> None:
        self._returns.fade()
        self._shelves.rank(self._returns.worths(self._history.unused(self._now)))

    def _begin_to_judge(self) -> None:
        self._is_judging = True
        for entry in self._keys:
            self.expose(entry)


def _first_kind_of(entry: Entry) -> int:
    is_branch = 2 * entry.n_blocks < entry.end_block
    length = min(entry.n_blocks.bit_length(), _N_FIRST_LENGTHS)
    return (_FIRST_BRANCH if is_branch else 1) + length - 1


def _kind_of(uses: int, gap_seconds: float, n_blocks: int) -> int:
    group = sum(uses > most for most in _MOST_USES)
    gap = age_of(gap_seconds) // _AGES_PER_GAP
    length = sum(n_blocks > most for most in _MOST_BLOCKS)
    return _FIRST_REPEAT + group * _N_IN_GROUP + gap * _N_LENGTHS + length
