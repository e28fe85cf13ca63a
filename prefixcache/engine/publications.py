"""What the engine knows of each publication, and whether there is room for all that is pinned."""

from __future__ import annotations

from dataclasses import dataclass

from prefixcache.control import Publication, PublicationState
from prefixcache.engine.sequence import Sequence
from prefixcache.errors import PublicationError
from prefixcache.index import SYSTEM_TENANT, TOKEN_BYTES, PrefixCache, Published
from prefixcache.types import GenerationRequest, RequestId, SamplingParams

_NOTHING_SAID = SamplingParams(max_tokens=0)


@dataclass(slots=True, eq=False)
class LivePrompt:
    """One publication, and what has become of it here."""

    publication: Publication
    published: Published | None = None  # None: its adapter is not loaded now
    sequence: Sequence | None = None  # reads it
    is_awaited: bool = True  # somebody is to be told when it was read, or cannot be
    has_trouble: bool = False  # it could not be read; it is left alone until something changes

    @property
    def request(self) -> GenerationRequest:
        """What reads it, as a request; no client can make one with its id."""
        return GenerationRequest(
            request_id=RequestId(f"publication {self.publication.prompt_id}"),
            token_ids=self.publication.token_ids,
            sampling=_NOTHING_SAID,
            tenant=SYSTEM_TENANT,
            adapter=self.publication.adapter,
        )

    def is_for(self, tenant: str) -> bool:
        """Return whether a tenant may use it."""
        return self.publication.tenants is None or tenant in self.publication.tenants


@dataclass(frozen=True, slots=True)
class Reading:
    """What somebody waits for: a publication that can be matched, or that cannot be read."""

    prompt_id: str
    state: PublicationState | None
    refusal: str = ""


class PinnedRoom:
    """Counts the blocks of all pinned prompts, those that they share once."""

    def __init__(self, cache: PrefixCache) -> None:
        self._prompts = cache.prompts
        self._block_tokens = cache.block_size_tokens
        self._n_blocks: int | None = 0  # None: to be counted anew

    def forget(self) -> None:
        """Note that a prompt was retired."""
        self._n_blocks = None

    def add(self, published: Published) -> None:
        """Count a prompt that was just published. Cost: a comparison of memory for each other."""
        if not published.is_pinned:
            return
        if self._n_blocks is None:
            self._n_blocks = sum(n for _, n in self._prompts.pinned())
        else:
            self._n_blocks += self._prompts.blocks_beyond_others(published)

    def require_for(self, published: Published) -> None:
        """Raise PublicationError if the cache cannot have it, or not with all that is pinned."""
        n_blocks, most = -(-published.n_tokens // self._block_tokens), self._prompts.most_blocks
        beside = ""
        if published.is_pinned:
            n_blocks = self._n_blocks or 0
            beside = "with those that are pinned already "
        if n_blocks > most:
            raise PublicationError(
                f"{beside}it takes {n_blocks} KV blocks; published prompts have {most}."
                " Retire some, or give them a larger quota."
            )


def n_tokens(publication: Publication) -> int:
    """Return a publication's length."""
    return len(publication.token_ids) // TOKEN_BYTES
