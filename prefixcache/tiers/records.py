"""One block of KV, outside of a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from prefixcache.index import Packed
from prefixcache.tiers.keys import StoredNamespace


class WantedBlock(NamedTuple):
    """What a reader asks for. A record with the key and another owner or other ids is not it."""

    key: bytes
    parent_key: bytes
    token_ids: bytes  # packed
    namespace: StoredNamespace


@dataclass(frozen=True, slots=True)
class BlockRecord:
    """The KV of one block, as `KVStore.copy_out` gives it, and what it is the KV of."""

    key: bytes  # as `chain_keys` makes them
    parent_key: bytes
    namespace: StoredNamespace
    token_ids: bytes  # packed
    parts: tuple[Packed | None, ...]  # by layer group; None: the window has passed it

    @property
    def n_bytes(self) -> int:
        """Bytes of KV."""
        return sum(len(part) for part in self.parts if part is not None)

    def answers(self, wanted: WantedBlock) -> bool:
        """Whether it is what was asked for: owner and ids are compared, not its key alone."""
        return (self.key, self.parent_key, self.token_ids, self.namespace) == wanted
