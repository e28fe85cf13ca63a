"""How prompts are cut into blocks."""

from __future__ import annotations

from dataclasses import dataclass

from prefixcache.errors import ConfigError
from prefixcache.index.tokens import TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """The size of a block, the same in every layer group, and whether part of one is reused."""

    n_tokens: int
    is_token_exact: bool  # a prompt that leaves a block midway gets a copy of what it shares

    def __post_init__(self) -> None:
        if self.n_tokens < 1:
            raise ConfigError("block_size_tokens", self.n_tokens, "must be at least 1")

    @property
    def n_bytes(self) -> int:
        """Bytes of its token ids, packed."""
        return self.n_tokens * TOKEN_BYTES
