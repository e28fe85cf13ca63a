"""What an operator has said outlives the worker that it was said to."""

from __future__ import annotations

import asyncio

import pytest

from gateway.backends.local import LocalBackend
from gateway.errors import ChangeRefusedError, NotReadyError
from prefixcache.control import Invalidation, InvalidationKind, Publication, TenantQuota
from prefixcache.index import pack
from tests.gateway.test_backends import events_of, make_request
from tests.gateway.test_local_backend import local_backend, until_ready
from tests.support.fake_worker import DIE, SILENT
from tests.support.waiting import until

EVERYTHING = Invalidation(kind=InvalidationKind.EVERYTHING)


def publication(prompt_id: str, first_id: int = 50) -> Publication:
    tokens = pack([first_id, *range(60, 80)])
    return Publication(prompt_id=prompt_id, name="n", version=1, token_ids=tokens)


async def published(backend: LocalBackend) -> list[str]:
    return [each.prompt_id for each in (await backend.inspect()).publications]


async def reserves(backend: LocalBackend) -> dict[str, int]:
    return {each.tenant: each.reserved_tokens for each in (await backend.inspect()).tenants}


async def test_a_worker_that_comes_back_is_told_what_stands() -> None:
    """Publications and quotas hold again when it is ready, and nothing that was taken back."""
    async with local_backend() as backend:
        for prompt_id in ("a", "b", "c"):
            await backend.publish(publication(prompt_id))
        await backend.retire("b")
        await backend.set_quotas({"old": TenantQuota(reserved_tokens=1)})
        await backend.set_quotas({"t": TenantQuota(reserved_tokens=5)})
        for _ in range(2):
            await events_of(backend, make_request("r", DIE))
            await until_ready(backend)
            assert await published(backend) == ["a", "c"]
            assert await reserves(backend) == {"t": 5}


async def test_a_worker_that_is_away_has_nothing_to_retire_or_invalidate() -> None:
    """Both hold at once, also for the next worker; what needs a worker is refused."""
    async with local_backend() as backend:
        for prompt_id in ("a", "b"):
            await backend.publish(publication(prompt_id))
        await events_of(backend, make_request("r", DIE))
        assert not backend.is_ready
        await backend.retire("a")
        await backend.retire("unknown")
        await backend.invalidate(EVERYTHING)
        with pytest.raises(NotReadyError):
            await backend.publish(publication("c"))
        with pytest.raises(NotReadyError):
            await backend.set_quotas({})
        with pytest.raises(NotReadyError):
            await backend.inspect()
        await until_ready(backend)
        assert await published(backend) == ["b"]
        await backend.publish(publication("a"))


async def test_a_publication_that_is_not_read_does_not_stand() -> None:
    """Its caller leaves, or the worker dies first: it is retired, and its id is free again."""
    async with local_backend() as backend:
        leaving = asyncio.create_task(backend.publish(publication("a", SILENT)))
        dying = asyncio.create_task(backend.publish(publication("b", SILENT)))
        while await published(backend) != ["a", "b"]:
            pass
        with pytest.raises(ChangeRefusedError, match="in use"):
            await backend.publish(publication("a"))
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert await published(backend) == ["b"]
        await events_of(backend, make_request("r", DIE))
        with pytest.raises(NotReadyError):
            await dying
        await until_ready(backend)
        assert await published(backend) == []
        await backend.publish(publication("a"))
        assert await published(backend) == ["a"]


async def test_quotas_whose_caller_leaves_are_taken_back() -> None:
    """A call that is cancelled has changed nothing, in the worker neither."""
    async with local_backend() as backend:
        await backend.set_quotas({"t": TenantQuota(reserved_tokens=5)})
        setting = asyncio.create_task(backend.set_quotas({"u": TenantQuota(reserved_tokens=6)}))
        await asyncio.sleep(0)
        setting.cancel()
        await asyncio.gather(setting, return_exceptions=True)
        assert await reserves(backend) == {"t": 5}


async def test_what_is_too_long_for_a_frame_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is not broken by it."""
    async with local_backend() as backend:
        with monkeypatch.context() as patch:
            patch.setattr("prefixcache.wire.MAX_FRAME_BYTES", 100)
            with pytest.raises(ChangeRefusedError, match="over the limit"):
                await backend.publish(publication("a"))
        assert await published(backend) == []
        assert backend.is_ready


async def test_a_closed_backend_takes_no_orders() -> None:
    """What it waits for ends, and nothing hangs."""
    async with local_backend() as backend:
        waiting = asyncio.create_task(backend.publish(publication("a", SILENT)))
        await until(lambda: waiting.done() or backend.is_ready)
        while await published(backend) != ["a"]:
            pass
    with pytest.raises(NotReadyError):
        await waiting
    with pytest.raises(NotReadyError):
        await backend.inspect()
    await backend.retire("a")
