"""Calls of several choices whose deadline comes before all have begun."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prefixcache.types import FailureKind, FinishReason
from tests.support.bodies import CHAT, CHAT_BODY, TEXT, TEXT_BODY, error_of
from tests.support.gateways import running_gateway
from tests.support.scripted import Script, ScriptedBackend

LATE, CUT, DONE = FailureKind.DEADLINE, FinishReason.LENGTH, FinishReason.STOP


@pytest.mark.parametrize(
    ("played", "texts", "reasons"),
    [
        ([["a", "b", CUT], [LATE]], ["ab", ""], ["length", "length"]),
        ([[LATE], ["a", "b", CUT]], ["", "ab"], ["length", "length"]),
        ([["a", DONE], [LATE], [LATE]], ["a", "", ""], ["stop", "length", "length"]),
    ],
)
async def test_choices_that_came_too_late_are_empty(
    folder: Path, played: list[Script], texts: list[str], reasons: list[str]
) -> None:
    """Where a choice of the call has output, it is 200 and those without end with `length`."""
    n = len(played)
    async with running_gateway(ScriptedBackend(folder, played * 4)) as gateway:
        for path, body in ((CHAT, CHAT_BODY), (TEXT, TEXT_BODY)):
            asked = body | {"n": n, "deadline_seconds": 60}
            status, reply = await gateway.post(path, asked)
            assert status == 200
            choices: Any = reply["choices"]
            found = [c.get("text", c.get("message", {}).get("content")) for c in choices]
            assert found == texts
            assert [choice["finish_reason"] for choice in choices] == reasons
            usage: Any = reply["usage"]
            assert usage["prompt_tokens"] > 0
            assert usage["completion_tokens"] == sum(map(len, texts))
            assert await streamed(gateway.openai, path, asked) == (texts, reasons)


async def test_a_call_without_any_output_is_late_as_a_whole(folder: Path) -> None:
    """Where no choice has anything, the answer is the 408 of a single request, streamed or not."""
    for stream in (False, True):
        backend = ScriptedBackend(folder, [[LATE]] * 3)
        async with running_gateway(backend) as gateway:
            status, reply = await gateway.post(CHAT, CHAT_BODY | {"n": 3, "stream": stream})
            assert (status, error_of(reply)["code"]) == (408, "deadline_exceeded")


async def test_another_failure_of_a_choice_fails_the_call(folder: Path) -> None:
    """Only deadlines leave the rest of a call as it is."""
    backend = ScriptedBackend(folder, [["a", DONE], [FailureKind.OVERLOADED]])
    async with running_gateway(backend) as gateway:
        status, reply = await gateway.post(CHAT, CHAT_BODY | {"n": 2})
        assert (status, error_of(reply)["code"]) == (429, "overloaded")


async def streamed(client: Any, path: str, body: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the texts and reasons of a stream's choices; each begins once and ends once."""
    create = client.chat.completions if path == CHAT else client.completions
    fields = {name: value for name, value in body.items() if name != "deadline_seconds"}
    texts, reasons = [""] * body["n"], [""] * body["n"]
    async for chunk in await create.create(**fields, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += (choice.delta.content if path == CHAT else choice.text) or ""
            reasons[choice.index] += choice.finish_reason or ""
    return texts, reasons
