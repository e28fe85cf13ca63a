"""What an echo remembers, so that it has hits, quotas and published prompts to speak of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gateway.errors import ChangeRefusedError
from prefixcache.control import (
    Inspection,
    Invalidation,
    InvalidationKind,
    NodeShown,
    Publication,
    PublicationState,
    TenantQuota,
    TenantShown,
    TreeShown,
)
from prefixcache.index import SYSTEM_TENANT, TOKEN_BYTES, common_prefix_tokens
from prefixcache.types import GenerationRequest, PoolCounts

BLOCK_TOKENS = 16


@dataclass(slots=True)
class _Kept:
    """Tokens that count as cached."""

    tokens: bytes
    last_used: float
    hits: int = 0


@dataclass(slots=True)
class _Account:
    """One tenant's counters; they never fall."""

    requests: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    evicted_tokens: int = 0
    misses: Counter[str] = field(default_factory=Counter)


class EchoMemory:
    """The last prompt of each tenant and salt, at most `limit` of them, and what is published.

    There is no pool: quotas are remembered and shown, and nothing is refused for want of room.
    """

    def __init__(self, *, clock: Callable[[], float], limit: int = 64) -> None:
        self._clock = clock
        self._limit = limit
        self._prompts: dict[tuple[str, str | None], _Kept] = {}
        self._published: dict[str, tuple[Publication, _Kept]] = {}
        self._quotas: dict[str, TenantQuota] = {}
        self._accounts: dict[str, _Account] = {}

    @property
    def misses(self) -> dict[str, int]:
        """Requests that did not find all of their prompt, by reason."""
        return dict(sum((account.misses for account in self._accounts.values()), Counter()))

    def take(self, request: GenerationRequest) -> tuple[int, int]:
        """Look a prompt up and remember it; return its cached and its written tokens."""
        n_prompt = len(request.token_ids) // TOKEN_BYTES
        cached = self._look_up(request, n_prompt) if request.read_cache else 0
        if not request.store_cache:
            return cached, 0
        self._keep(request)
        return cached, max(_whole(n_prompt) - cached, 0)

    def publish(self, publication: Publication, *, max_tokens: int) -> PublicationState:
        """Count a prefix as cached for its tenants. Raises ChangeRefusedError."""
        n_tokens, rest = divmod(len(publication.token_ids), TOKEN_BYTES)
        if publication.prompt_id in self._published:
            raise ChangeRefusedError("this prompt id is in use; each publication has its own")
        if rest or not BLOCK_TOKENS <= n_tokens <= max_tokens:
            reason = f"a published prompt has {BLOCK_TOKENS} to {max_tokens} tokens"
            raise ChangeRefusedError(f"{reason}, this one {n_tokens}")
        if publication.adapter is not None:
            raise ChangeRefusedError(f"no adapter {publication.adapter!r} is loaded")
        kept = _Kept(publication.token_ids, self._clock())
        self._published[publication.prompt_id] = publication, kept
        return _state(publication)

    def retire(self, prompt_id: str) -> None:
        """Count a prefix as cached no more."""
        self._published.pop(prompt_id, None)

    def invalidate(self, invalidation: Invalidation) -> None:
        """Forget prompts; what is published is read again at once. Raises ChangeRefusedError."""
        match invalidation.kind:
            case InvalidationKind.ADAPTER:
                raise ChangeRefusedError(f"no adapter {invalidation.name!r} is loaded")
            case InvalidationKind.TENANT if invalidation.name in (None, SYSTEM_TENANT):
                raise ChangeRefusedError(f"{invalidation.name!r} is no tenant")
            case InvalidationKind.TENANT:
                for key in [key for key in self._prompts if key[0] == invalidation.name]:
                    del self._prompts[key]
            case _:
                self._prompts.clear()

    def set_quotas(self, quotas: Mapping[str, TenantQuota]) -> None:
        """Remember quotas."""
        self._quotas = dict(quotas)

    def inspection(self, *, max_nodes: int, tenant: str | None) -> Inspection:
        """Return what is remembered, each prompt as a tree of one node."""
        trees = [self._tree(*key, kept) for key, kept in self._prompts.items()]
        trees += [self._tree(SYSTEM_TENANT, None, kept) for _, kept in self._published.values()]
        trees = [tree for tree in trees if tenant in (None, tree.tenant)]
        shown = trees[: max(max_nodes, 0) // 2]  # a root is a node too
        names = [*self._accounts, *(name for name in self._quotas if name not in self._accounts)]
        return Inspection(
            trees=shown,
            is_complete=len(shown) == len(trees),
            tenants=[self._tenant(name) for name in ([tenant] if tenant is not None else names)],
            publications=[
                _state(publication)
                for publication, _ in self._published.values()
                if tenant is None or _is_for(publication, tenant)
            ],
            pool=PoolCounts(free=0, cached=0, held=0),
            longest_free_run=0,
            block_size_tokens=BLOCK_TOKENS,
            kv_bytes_per_token=0,
        )

    def _look_up(self, request: GenerationRequest, n_prompt: int) -> int:
        """Return how far what is remembered goes along, less the token to compute."""
        best, most = None, 0
        for kept in self._candidates(request):
            n_alike = common_prefix_tokens(kept.tokens, 0, request.token_ids, 0)
            if n_alike > most:
                best, most = kept, n_alike
        if best is not None:
            best.hits += 1
            best.last_used = self._clock()
        cached = min(most, n_prompt - 1)
        account = self._accounts.setdefault(request.tenant, _Account())
        account.requests += 1
        account.prompt_tokens += n_prompt
        account.hit_tokens += cached
        if cached < n_prompt - 1:
            account.misses["diverged" if cached else "nothing_stored"] += 1
        return cached

    def _candidates(self, request: GenerationRequest) -> Iterable[_Kept]:
        own = self._prompts.get((request.tenant, request.salt))
        if own is not None:
            yield own
        for publication, kept in self._published.values():
            if publication.adapter == request.adapter and _is_for(publication, request.tenant):
                yield kept

    def _keep(self, request: GenerationRequest) -> None:
        """Remember a prompt, forgetting the oldest one when there are too many."""
        key = request.tenant, request.salt
        before = self._prompts.pop(key, None)
        hits = 0 if before is None else before.hits
        self._prompts[key] = _Kept(request.token_ids, self._clock(), hits)
        if len(self._prompts) > self._limit:
            oldest = next(iter(self._prompts))
            gone = self._prompts.pop(oldest)
            account = self._accounts.setdefault(oldest[0], _Account())
            account.evicted_tokens += _whole(len(gone.tokens) // TOKEN_BYTES)

    def _tree(self, tenant: str, salt: str | None, kept: _Kept) -> TreeShown:
        node = NodeShown(
            id=0,
            parent=None,
            start_token=0,
            n_tokens=len(kept.tokens) // TOKEN_BYTES,
            pins=0,
            is_retained=tenant == SYSTEM_TENANT,
            hits=kept.hits,
            idle_seconds=max(self._clock() - kept.last_used, 0.0),
        )
        return TreeShown(
            tenant=tenant,
            adapter=None,
            has_salt=salt is not None,
            is_current=True,
            published=None,
            nodes=[node],
        )

    def _tenant(self, name: str) -> TenantShown:
        quota = self._quotas.get(name, TenantQuota())
        account = self._accounts.get(name, _Account())
        own = [kept.tokens for key, kept in self._prompts.items() if key[0] == name]
        return TenantShown(
            tenant=name,
            cached_tokens=sum(_whole(len(tokens) // TOKEN_BYTES) for tokens in own),
            held_tokens=0,
            retained_tokens=0,
            reserved_tokens=quota.reserved_tokens,
            max_tokens=quota.max_tokens or 0,
            requests_total=account.requests,
            prompt_tokens_total=account.prompt_tokens,
            hit_tokens_total=account.hit_tokens,
            evicted_tokens_total=account.evicted_tokens,
            misses=dict(account.misses),
        )


def _whole(n_tokens: int) -> int:
    return n_tokens // BLOCK_TOKENS * BLOCK_TOKENS


def _is_for(publication: Publication, tenant: str) -> bool:
    return publication.tenants is None or tenant in publication.tenants


def _state(publication: Publication) -> PublicationState:
    n_tokens = len(publication.token_ids) // TOKEN_BYTES
    return PublicationState(
        prompt_id=publication.prompt_id, n_tokens=n_tokens, cached_tokens=_whole(n_tokens)
    )
