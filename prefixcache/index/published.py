"""What the system shares with tenants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prefixcache.index.namespaces import Namespace
from prefixcache.index.tokens import TOKEN_BYTES, common_prefix_tokens


class Published:
    """One version of a named prefix that chosen tenants, or all, may reuse.

    Compared by identity: every publication is a version of its own.
    """

    __slots__ = ("is_live", "is_pinned", "name", "namespace", "tenants", "tokens", "version")

    def __init__(
        self,
        name: str,
        version: int,
        namespace: Namespace,
        tokens: bytes,
        tenants: frozenset[str] | None,
        is_pinned: bool,
    ) -> None:
        self.name = name
        self.version = version  # of this name, from 1
        self.namespace = namespace  # the system's, of one model, adapter and KV format
        self.tokens = tokens  # packed
        self.tenants = tenants  # None: all
        self.is_pinned = is_pinned  # retained once it was read
        self.is_live = True  # False: retired, and never matched again

    @property
    def n_tokens(self) -> int:
        """Its length."""
        return len(self.tokens) // TOKEN_BYTES


class Passed(NamedTuple):
    """The first blocks of a published prompt, where a tenant's prompt begins with them."""

    published: Published
    n_blocks: int


def new_blocks(prompts: Iterable[Published], block_tokens: int) -> Iterator[tuple[Published, int]]:
    """Yield each prompt with the blocks it takes beyond what those before it take.

    Cost: one comparison of memory for each two that begin with the same block in one tree.
    """
    alike: dict[tuple[Namespace, bytes], list[Published]] = {}
    for prompt in prompts:
        first_block = prompt.tokens[: block_tokens * TOKEN_BYTES]
        others = alike.setdefault((prompt.namespace, first_block), [])
        yield prompt, blocks_beyond(prompt, others, block_tokens)
        others.append(prompt)


def blocks_beyond(prompt: Published, others: Iterable[Published], block_tokens: int) -> int:
    """Return how many blocks a prompt takes beyond those of `others`, in the same tree."""
    n_shared = max((_shared_blocks(prompt, other, block_tokens) for other in others), default=0)
    return -(-prompt.n_tokens // block_tokens) - n_shared


def _shared_blocks(prompt: Published, other: Published, block_tokens: int) -> int:
    """Return how many blocks of `prompt` those of `other` are; its last one may be half a block."""
    if prompt.tokens == other.tokens:
        return -(-prompt.n_tokens // block_tokens)
    return common_prefix_tokens(prompt.tokens, 0, other.tokens, 0) // block_tokens
