"""The bargain of Control, kept by an echo and by a real engine in a worker of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from itertools import count
from pathlib import Path
from typing import Protocol

import psutil
import pytest
import pytest_asyncio

from gateway.backends.base import Backend, Control
from gateway.backends.local import LocalBackend
from gateway.errors import ChangeRefusedError
from prefixcache.config import EngineConfig
from prefixcache.control import (
    Inspection,
    Invalidation,
    InvalidationKind,
    Publication,
    TenantQuota,
    TenantShown,
)
from prefixcache.index import pack
from prefixcache.types import (
    Finished,
    GenerationRequest,
    RequestId,
    Retain,
    SamplingParams,
    Usage,
)
from tests.support.gateways import echo_backend
from tests.support.models import prompt_ids, write_tiny_model
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVERYTHING = Invalidation(kind=InvalidationKind.EVERYTHING)
NUMBERS = count()


class Steered(Backend, Control, Protocol):
    """A backend as the gateway has it."""


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["echo", "local"])
async def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Steered]:
    folder = tmp_path_factory.mktemp("model")
    made: Steered = echo_backend(folder) if request.param == "echo" else real_backend(folder)
    await made.start()
    yield made
    await made.close()


def real_backend(folder: Path) -> LocalBackend:
    """Return a worker with a tiny random model, in blocks as long as the echo's."""
    write_tiny_model(folder)
    config = EngineConfig(model=str(folder), kv_memory_bytes=4 << 20, threads=1)
    return LocalBackend(config, restart_delay_seconds=0.01)


def fresh_prompt(n_tokens: int = 40) -> list[int]:
    """Return token ids that no other test has sent."""
    return prompt_ids(n_tokens, seed=1000 + next(NUMBERS))


async def usage(backend: Backend, tokens: Sequence[int], tenant: str, **options: object) -> Usage:
    """Send a prompt and return what became of its tokens."""
    sent = GenerationRequest(
        request_id=RequestId(f"r{next(NUMBERS)}"),
        token_ids=pack(tokens),
        sampling=SamplingParams(max_tokens=2, ignore_eos=True),
        tenant=tenant,
        **options,  # type: ignore[arg-type]
    )
    *_, last = [event async for event in backend.generate(sent)]
    assert isinstance(last, Finished)
    return last.usage


async def cached(backend: Backend, tokens: Sequence[int], tenant: str) -> int:
    return (await usage(backend, tokens, tenant, store_cache=False)).cached_tokens


def publication(
    prompt_id: str, tokens: Sequence[int], tenants: tuple[str, ...] | None = None
) -> Publication:
    return Publication(
        prompt_id=prompt_id, name=prompt_id, version=1, token_ids=pack(tokens), tenants=tenants
    )


def of_tenant(inspection: Inspection, tenant: str) -> TenantShown:
    (found,) = [each for each in inspection.tenants if each.tenant == tenant]
    return found


async def test_a_published_prompt_is_matched_until_it_is_retired(backend: Steered) -> None:
    """By chosen tenants and by nobody else, to its last token; retiring it twice is harmless."""
    prompt = fresh_prompt()
    asked = publication("shared", prompt, ("a", "b"))
    state = await backend.publish(asked)
    assert (state.prompt_id, state.n_tokens, state.cached_tokens) == ("shared", 40, 32)
    longer = [*prompt, 1, 2, 3]
    assert [await cached(backend, longer, name) for name in "abc"] == [40, 40, 0]
    with pytest.raises(ChangeRefusedError, match="in use"):
        await backend.publish(asked)
    for _ in range(2):
        await backend.retire("shared")
    assert [await cached(backend, longer, name) for name in "abc"] == [0, 0, 0]


@pytest.mark.parametrize(
    ("n_tokens", "adapter", "said"), [(15, None, "block|16"), (40, "none", "'none'")]
)
async def test_what_cannot_be_published_leaves_nothing(
    backend: Steered, n_tokens: int, adapter: str | None, said: str
) -> None:
    """Too short, or for an adapter that is not there: refused with the reason."""
    asked = Publication(
        prompt_id="bad",
        name="bad",
        version=1,
        token_ids=pack(fresh_prompt(n_tokens)),
        adapter=adapter,
    )
    with pytest.raises(ChangeRefusedError, match=said):
        await backend.publish(asked)
    assert (await backend.inspect()).publications == []


async def test_invalidation_of_a_tenant_is_its_own(backend: Steered) -> None:
    """Its prompts are read anew; others' are not, nor is what is published."""
    prompt, shared = fresh_prompt(), fresh_prompt()
    await backend.publish(publication("stays", shared))
    for tenant in ("inv-a", "inv-b"):
        await usage(backend, prompt, tenant)
    await backend.invalidate(Invalidation(kind=InvalidationKind.TENANT, name="inv-a"))
    assert await cached(backend, prompt, "inv-a") == 0
    assert await cached(backend, prompt, "inv-b") >= 32
    assert await cached(backend, [*shared, 1], "inv-a") == 40
    await backend.retire("stays")


@pytest.mark.parametrize("kind", [InvalidationKind.EVERYTHING, InvalidationKind.MODEL])
async def test_after_an_invalidation_only_what_is_published_comes_back(
    backend: Steered, kind: InvalidationKind
) -> None:
    """Tenants' own prompts are gone; published ones are read again without being asked for."""
    prompt, shared = fresh_prompt(), fresh_prompt()
    await backend.publish(publication("back", shared))
    await usage(backend, prompt, "all")
    await backend.invalidate(Invalidation(kind=kind))
    assert await cached(backend, prompt, "all") == 0
    assert await cached(backend, [*shared, 1], "all") == 40
    (state,) = (await backend.inspect()).publications
    assert state.cached_tokens == 32
    await backend.retire("back")


@pytest.mark.parametrize(
    ("kind", "name"),
    [(InvalidationKind.ADAPTER, "none"), (InvalidationKind.TENANT, None)],
)
async def test_invalidations_of_nothing_are_refused(
    backend: Steered, kind: InvalidationKind, name: str | None
) -> None:
    """An adapter that is not loaded, a name that is missing."""
    with pytest.raises(ChangeRefusedError):
        await backend.invalidate(Invalidation(kind=kind, name=name))


async def test_quotas_are_shown_and_replaced_as_a_whole(backend: Steered) -> None:
    """Who is not named any more has the default again."""
    await backend.set_quotas({"q-a": TenantQuota(reserved_tokens=32), "q-b": TenantQuota(weight=3)})
    assert of_tenant(await backend.inspect(), "q-a").reserved_tokens == 32
    await backend.set_quotas({"q-b": TenantQuota(max_tokens=64)})
    assert (await backend.inspect(tenant="q-a")).tenants[0].reserved_tokens == 0
    assert of_tenant(await backend.inspect(), "q-b").max_tokens == 64
    await backend.set_quotas({})


async def test_an_inspection_counts_what_a_tenant_sent_and_found(backend: Steered) -> None:
    """Its trees have its tokens' number; other tenants' are not in its part."""
    prompt = fresh_prompt()
    for _ in range(2):
        await usage(backend, prompt, "seen")
    await usage(backend, fresh_prompt(), "unseen")
    shown = await backend.inspect(tenant="seen")
    assert {tree.tenant for tree in shown.trees} == {"seen"}
    assert sum(node.n_tokens for tree in shown.trees for node in tree.nodes) >= 32
    counted = of_tenant(shown, "seen")
    assert (counted.requests_total, counted.prompt_tokens_total) == (2, 80)
    assert counted.hit_tokens_total >= 32
    assert counted.cached_tokens == 32
    assert sum(counted.misses.values()) >= 1
    whole = await backend.inspect()
    assert whole.is_complete
    assert {"seen", "unseen"} <= {tree.tenant for tree in whole.trees}
    little = await backend.inspect(max_nodes=2)
    assert not little.is_complete
    assert sum(1 + len(tree.nodes) for tree in little.trees) <= 2


async def test_usage_tells_what_was_written(backend: Steered) -> None:
    """Whole blocks beyond what was cached, once; nothing where nothing is stored."""
    prompt = fresh_prompt(48)
    nothing = await usage(backend, prompt, "writer", store_cache=False)
    assert (nothing.cached_tokens, nothing.written_tokens) == (0, 0)
    first = await usage(backend, prompt, "writer", retain=(Retain(32, 60.0),))
    assert (first.cached_tokens, first.written_tokens) == (0, 48)
    second = await usage(backend, prompt, "writer")
    assert second.cached_tokens >= 32
    assert second.cached_tokens + second.written_tokens <= 48


async def test_a_killed_worker_comes_back_with_what_stood(tmp_path: Path) -> None:
    """Published prompts are matched again; what was retired, invalidated or a tenant's is not."""
    backend = real_backend(tmp_path)
    prompt, gone, own = fresh_prompt(), fresh_prompt(), fresh_prompt()
    try:
        await backend.start()
        await backend.publish(publication("stays", prompt, ("a",)))
        await backend.publish(publication("gone", gone))
        await backend.retire("gone")
        await backend.set_quotas({"a": TenantQuota(reserved_tokens=64)})
        await usage(backend, own, "a")
        await backend.invalidate(Invalidation(kind=InvalidationKind.TENANT, name="a"))
        (worker,) = [child for child in psutil.Process().children() if is_worker(child)]
        worker.kill()
        await until(lambda: not backend.is_ready, seconds=30)
        await backend.invalidate(EVERYTHING)
        await until(lambda: backend.is_ready, seconds=120)
        assert await cached(backend, [*prompt, 1], "a") == 40  # it waits for the reading
        assert await cached(backend, [*prompt, 1], "b") == 0
        assert await cached(backend, [*gone, 1], "a") == 0
        assert await cached(backend, own, "a") == 0
        shown = await backend.inspect()
        assert [state.prompt_id for state in shown.publications] == ["stays"]
        assert of_tenant(shown, "a").reserved_tokens == 64
    finally:
        await backend.close()


def is_worker(process: psutil.Process) -> bool:
    """Whether a child is the worker of this file's last test: the youngest of its kind."""
    children = psutil.Process().children()
    workers = [each for each in children if "prefixcache.engine.worker" in each.cmdline()]
    return process == max(workers, key=lambda each: each.create_time())
