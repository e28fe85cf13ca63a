"""Calls of several requests, some of which have nothing when their deadline comes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from gateway.merge import NumberedEvent
from prefixcache.types import Delta, Failed, FailureKind, Finished, FinishReason, Started, Usage


async def with_late_ones(
    events: AsyncIterator[NumberedEvent],
) -> AsyncGenerator[NumberedEvent, None]:
    """Pass on the events of a call of several requests, and settle at its end what came too late.

    The choices of a call have one deadline. Where another one has said something by then, a
    request without output is an empty answer of reason `length`, told when the others have
    ended; where none has, the call fails as a single request does.
    """
    started: set[int] = set()
    late: list[tuple[int, Failed]] = []
    has_answer = False
    async for index, event in events:
        match event:
            case Failed(kind=FailureKind.DEADLINE):
                late.append((index, event))
                continue
            case Started():
                started.add(index)
            case Finished():
                has_answer = True
            case Delta():
                has_answer = has_answer or bool(event.token_ids)
        yield index, event
    for index, failed in late:
        if not has_answer:
            yield index, failed
            return
        usage = failed.usage or Usage(0, 0, 0)
        if index not in started:
            yield index, Started(failed.request_id, usage.prompt_tokens, usage.cached_tokens)
        yield index, Finished(failed.request_id, FinishReason.LENGTH, usage)
