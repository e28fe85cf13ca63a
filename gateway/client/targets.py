"""A server under measurement, and what may be asked of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from gateway.client.identity import Identity, identify
from gateway.client.prompts import WORDS, Prompt, Vocabulary, learn_vocabulary
from gateway.client.streaming import BenchError, Streamed, stream_completion


@dataclass(frozen=True, slots=True)
class Address:
    """Where to find a server: a name for the tables, its URL, and perhaps its process."""

    name: str
    url: str
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """An identified server with the words that it takes for one token each."""

    address: Address
    identity: Identity
    vocabulary: Vocabulary
    session: aiohttp.ClientSession

    async def ask(self, prompt: Prompt, max_tokens: int) -> Streamed:
        """Have the server continue `prompt` greedily, with `max_tokens` where it can be told so.

        Raises:
            BenchError: no whole answer, another count of prompt tokens than was meant, more
                tokens than were asked for or fewer than half of them.
        """
        answer = await _ask(self.session, self.address.url, self.identity, prompt.text, max_tokens)
        if answer.prompt_tokens != prompt.tokens:
            raise BenchError(
                f"{self.address.name} counts {answer.prompt_tokens} prompt tokens in what was"
                f" made to be {prompt.tokens}"
            )
        if not max_tokens / 2 <= answer.completion_tokens <= max_tokens:
            raise BenchError(
                f"{self.address.name} gave {answer.completion_tokens} tokens of {max_tokens}"
            )
        return answer

    async def ask_all(
        self, prompts: Sequence[Prompt], max_tokens: int, *, at_a_time: int
    ) -> list[Streamed]:
        """Ask all, `at_a_time` together; the first failure ends the others and is raised."""
        room = asyncio.Semaphore(at_a_time)

        async def one(prompt: Prompt) -> Streamed:
            async with room:
                return await self.ask(prompt, max_tokens)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(prompt)) for prompt in prompts]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]


async def make_target(
    session: aiohttp.ClientSession, address: Address, *, model: str | None = None
) -> Target:
    """Identify the server at `address` and learn its vocabulary. Raises BenchError."""
    identity = await identify(session, address.url, model=model, pid=address.pid)

    async def count(text: str) -> int:
        return (await _ask(session, address.url, identity, text, 1)).prompt_tokens

    return Target(address, identity, await learn_vocabulary(count, WORDS), session)


async def _ask(
    session: aiohttp.ClientSession, url: str, identity: Identity, text: str, max_tokens: int
) -> Streamed:
    body = {"model": identity.model, "prompt": text, "max_tokens": max_tokens, "temperature": 0}
    return await stream_completion(session, url, {**body, **identity.kind.extra})
