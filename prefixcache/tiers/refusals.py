"""What a tier refused to give back: counted by reason, and logged."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Literal

RefusalReason = Literal[
    "checksum",  # bytes are not those that were written
    "cut_short",  # there are fewer bytes than the record says, or some of its pieces are gone
    "version",  # of another format, or no format of ours at all
    "other_block",  # a whole record, but not of the block that was asked for
    "unaccounted",  # nobody knows any more what has been invalidated since it was written
    "too_large",  # to be kept at all
]

_log = logging.getLogger(__name__)


class RefusedError(Exception):
    """Some bytes are no record that can be used. Stays inside of a tier."""

    def __init__(self, reason: RefusalReason) -> None:
        super().__init__(reason)
        self.reason: RefusalReason = reason


class Refusals:
    """How often a tier refused something, by reason. Grows alone."""

    def __init__(self, tier: str) -> None:
        self.counts: Counter[RefusalReason] = Counter()
        self._tier = tier

    @property
    def total(self) -> int:
        """Of all reasons."""
        return self.counts.total()

    def note(self, reason: RefusalReason, where: str) -> None:
        """Count one and log it. `where`: a place in the tier; never a key, token or address."""
        self.counts[reason] += 1
        _log.warning("the %s tier refused %s: %s", self._tier, where, reason)
