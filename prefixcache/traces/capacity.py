"""How large a cache is to be: in blocks, in tokens, or without a limit."""

from __future__ import annotations

import re
from typing import NamedTuple

from prefixcache.errors import ConfigError

UNLIMITED = "unlimited"
_FORM = re.compile(r"([0-9][0-9_]*)(blocks|tokens)?")


class Capacity(NamedTuple):
    """An amount of room; neither: no limit."""

    blocks: int | None = None
    tokens: int | None = None

    def in_blocks(self, block_tokens: int) -> int | None:
        """Return the whole blocks of a trace that there is room for; None: no limit.

        Raises:
            ConfigError: there is room for less than one.
        """
        if self.tokens is None:
            return self.blocks
        n_blocks = self.tokens // block_tokens
        if not n_blocks:
            reason = f"is less than one of the trace's blocks of {block_tokens} tokens"
            raise ConfigError("capacity", f"{self.tokens}tokens", reason)
        return n_blocks


def parse_capacity(text: str) -> Capacity:
    """Return what `10000`, `10000blocks`, `160000tokens` or `unlimited` says.

    Raises:
        ConfigError: it is none of them, or not above 0.
    """
    if text == UNLIMITED:
        return Capacity()
    found = _FORM.fullmatch(text)
    amount = int(found[1]) if found else 0
    if not found or not amount:
        reason = f"must be blocks (10000), tokens (160000tokens) or {UNLIMITED!r}"
        raise ConfigError("capacity", text, reason)
    return Capacity(tokens=amount) if found[2] == "tokens" else Capacity(blocks=amount)
