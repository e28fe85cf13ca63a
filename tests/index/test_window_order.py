"""Window groups beside published prompts, observers and invalidated trees."""

from __future__ import annotations

from collections.abc import Sequence

from prefixcache.index import BlockEvent, Lease, Namespace, PrefixCache, Published, Scope, pack
from prefixcache.index.spans import n_blocks_in
from tests.index.small import NS
from tests.index.test_windows import BLOCK, cache_of


def run_for(
    cache: PrefixCache, namespace: Namespace, ids: Sequence[int], *, read: bool = True
) -> None:
    """Serve a prompt of any tenant, block by block."""
    lease = cache.acquire(namespace, pack(ids), read=read)
    compute(cache, lease, ids)


def compute(cache: PrefixCache, lease: Lease, ids: Sequence[int]) -> None:
    for start in range(lease.cached_tokens, len(ids), BLOCK):
        cache.slide(lease, start, start + BLOCK)
        cache.commit(lease, pack(ids[: start + BLOCK]))
    cache.release(lease)
    cache.check()


def test_a_published_prompt_with_a_hole_hides_no_shorter_prefix() -> None:
    """What the tenant has by itself is found, where the longer way shows a hole."""
    cache = cache_of(window_blocks=9, n_blocks=60)
    tenant, prompt = Namespace(tenant="t"), list(range(20))
    published = cache.prompts.publish("p", pack(prompt))
    compute(cache, cache.prompts.acquire(published), prompt)
    crowd = cache.acquire(tenant, pack(range(50, 64)))
    cache.slide(crowd, 0, 14)  # takes the window blocks of the prompt's beginning
    cache.release(crowd)
    run_for(cache, tenant, [*range(8), 77, 77], read=False)
    assert cache.match_length(tenant, pack([*range(12), 99])) == 8


def test_what_is_told_of_as_stored_has_its_window_blocks() -> None:
    """An observer sees them all, in each group."""

    class Journal:
        def __init__(self) -> None:
            self.windows: list[int] = []

        def stored(self, event: BlockEvent) -> None:
            self.windows.append(n_blocks_in(event.windows[0]))

        def removed(self, event: BlockEvent) -> None:
            pass

        def cleared(self, scope: Scope | Published) -> None:
            pass

    cache, journal = cache_of(), Journal()
    cache.subscribe(journal)
    lease = cache.acquire(NS, pack(range(4)))
    cache.slide(lease, 0, 4)
    cache.commit(lease, pack(range(4)))
    assert journal.windows == [2]


def test_windows_of_what_was_invalidated_go_first() -> None:
    """Before a live prefix gets a hole."""
    cache = cache_of(window_blocks=8, n_blocks=60)
    live, stale = Namespace(tenant="t"), Namespace(tenant="u")
    run_for(cache, live, range(8))
    run_for(cache, stale, range(8))
    cache.invalidate(Scope.tenant("u"))
    run_for(cache, live, range(50, 56))
    assert cache.match_length(live, pack([*range(8), 9])) == 8
