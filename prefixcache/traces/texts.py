"""Text of a trace as block ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Protocol

from prefixcache.index import TOKEN_BYTES, unpack

_CHAIN_BYTES = 16
_ID_BYTES = 8


class TextEncoder(Protocol):
    """Turns prompts into token ids; `prefixcache.text.PromptEncoder` is one.

    Prompts that begin with the same text should begin with the same ids.
    """

    def chat(
        self, messages: Sequence[Mapping[str, object]], *, tools: Sequence[object] | None = None
    ) -> list[int]:
        """Return the ids of a conversation."""

    def text(self, text: str) -> list[int]:
        """Return the ids of a plain prompt."""


class StandIn:
    """A tokenizer for want of one: each four bytes of UTF-8 are a token, the last one filled up.

    About as many tokens as a real one gives for English, and texts that begin alike begin with
    the same ids; but what follows an insertion is never in step again. A message is its role, its
    content and whatever else it has, each after a control character.
    """

    def chat(
        self, messages: Sequence[Mapping[str, object]], *, tools: Sequence[object] | None = None
    ) -> list[int]:
        """Return the ids of a conversation, tools first."""
        parts = [f"\x02{tool!r}" for tool in tools or ()]
        for message in messages:
            parts += [f"\x01{name}\x02{value}" for name, value in message.items() if value]
        return self.text("".join(parts))

    def text(self, text: str) -> list[int]:
        """Return the ids of a plain prompt."""
        data = text.encode(errors="surrogatepass")
        return unpack(data + bytes(-len(data) % TOKEN_BYTES))


class BlockDigests:
    """Ids for blocks of token ids: equal where all tokens up to the block's end are.

    An id is 63 bits of a keyed digest of the block and of the one before: without the key
    nobody can tell what it stands for.
    """

    def __init__(self, block_tokens: int, key: bytes = b"") -> None:
        self.block_tokens = block_tokens
        self._key = key

    def ids(self, packed: bytes | memoryview, *, scope: str = "") -> tuple[int, ...]:
        """Return the ids of the full blocks of a prompt, packed as the index has it.

        Args:
            scope: what must be equal as well, such as the model.

        Cost: about a microsecond a block.
        """
        step = self.block_tokens * TOKEN_BYTES
        chain, ids = self.digest(scope), []
        for start in range(0, len(packed) - step + 1, step):
            state = blake2b(chain, key=self._key, digest_size=_CHAIN_BYTES)
            state.update(packed[start : start + step])
            chain = state.digest()
            ids.append(int.from_bytes(chain[:_ID_BYTES], "little") >> 1)
        return tuple(ids)

    def digest(self, name: str) -> bytes:
        """Return a keyed digest of a name."""
        return blake2b(name.encode(), key=self._key, digest_size=_CHAIN_BYTES).digest()
