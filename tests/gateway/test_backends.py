"""The bargain that every backend keeps."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.base import Backend
from gateway.backends.local import LocalBackend
from gateway.errors import NotReadyError
from prefixcache.config import EngineConfig
from prefixcache.index import pack
from prefixcache.types import (
    Delta,
    Event,
    Failed,
    Finished,
    FinishReason,
    GenerationRequest,
    RequestId,
    SamplingParams,
    Started,
)
from tests.support.fake_worker import ENDLESS
from tests.support.gateways import echo_backend
from tests.support.waiting import until

PROMPT = (40, 41, 42)


def make_request(
    name: str, *token_ids: int, max_tokens: int = 100, ignore_eos: bool = False
) -> GenerationRequest:
    return GenerationRequest(
        request_id=RequestId(name),
        token_ids=pack(token_ids or PROMPT),
        sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos),
    )


async def events_of(backend: Backend, request: GenerationRequest) -> list[Event]:
    return [event async for event in backend.generate(request)]


@pytest.fixture(params=["echo", "local"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    made: Backend
    if request.param == "echo":
        made = echo_backend(tmp_path)
    else:
        command = (sys.executable, "-m", "tests.support.fake_worker")
        made = LocalBackend(EngineConfig(model=str(tmp_path)), command=command)
    await made.start()
    yield made
    await made.close()


async def test_events_come_in_order_and_end_once(backend: Backend) -> None:
    """A request gives Started, its output, and exactly one end."""
    first, *middle, last = await events_of(backend, make_request("a"))
    assert isinstance(first, Started)
    assert first.prompt_tokens == len(PROMPT)
    assert all(isinstance(event, Delta) for event in middle)
    assert isinstance(last, Finished)
    assert last.usage.output_tokens == len(PROMPT)


async def test_max_tokens_ends_with_length(backend: Backend) -> None:
    """A request that is cut off says so."""
    last = (await events_of(backend, make_request("a", max_tokens=2)))[-1]
    assert isinstance(last, Finished)
    assert (last.reason, last.usage.output_tokens) == (FinishReason.LENGTH, 2)


async def test_requests_side_by_side_keep_their_own_events(backend: Backend) -> None:
    """Concurrent requests never see each other's events."""
    answers = await asyncio.gather(
        *(events_of(backend, make_request(f"r{i}", 50 + i, 60 + i)) for i in range(8))
    )
    for i, events in enumerate(answers):
        assert {event.request_id for event in events} == {f"r{i}"}
        ids = [token for event in events if isinstance(event, Delta) for token in event.token_ids]
        assert ids == [50 + i, 60 + i]


async def test_closing_the_iterator_cancels(backend: Backend) -> None:
    """A reader that leaves early leaves nothing running."""
    request = make_request("a", *range(50, 60), max_tokens=10**6, ignore_eos=True)
    async with aclosing(as_generator(backend, request)) as events:
        assert isinstance(await anext(events), Started)
        assert isinstance(await anext(events), Delta)
    await until(lambda: backend.stats().running == 0)


async def test_counters_never_fall(backend: Backend) -> None:
    """Totals only grow, over requests that end and requests that are cut off."""
    seen = [backend.stats()]
    for i in range(4):
        async with aclosing(as_generator(backend, make_request(f"r{i}"))) as events:
            async for event in events:
                seen.append(backend.stats())
                if i % 2 and isinstance(event, Delta):
                    break
    for before, after in pairwise(seen):
        assert after.prompt_tokens_total >= before.prompt_tokens_total
        assert after.output_tokens_total >= before.output_tokens_total
    assert seen[-1].prompt_tokens_total > 0


async def test_close_ends_what_is_in_flight(backend: Backend) -> None:
    """Closing a backend ends every request with Failed, and later ones are refused."""
    request = make_request("a", ENDLESS, *range(50, 60), max_tokens=10**6, ignore_eos=True)
    reading = asyncio.create_task(events_of(backend, request))
    await until(lambda: backend.stats().running)
    await backend.close()
    assert not backend.is_ready
    assert isinstance((await reading)[-1], (Failed, Finished))
    with pytest.raises(NotReadyError):
        await events_of(backend, make_request("b"))


def as_generator(backend: Backend, request: GenerationRequest) -> Any:
    return backend.generate(request)
