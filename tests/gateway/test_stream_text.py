"""What of a model's output a client sees: whole characters, and nothing of a stop string."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from prefixcache.types import FinishReason
from tests.support.anthropics import events
from tests.support.gateways import MODEL, Gateway, echo_backend, running_gateway
from tests.support.scripted import ScriptedBackend
from tests.support.tokenizers import write_piece_tokenizer

STOPS = [
    (["The quick br", "own", " f", "ox jumps"], ["own fox"], "The quick br"),
    (["<unk>", "<unk>"], ["><"], "<unk"),
    (["ab", "cd", "ef"], ["cde", "cd"], "ab"),
    (["x\u3042", "\u3044y"], ["\u3042\u3044"], "x"),
    (["plain"], ["absent"], "plain"),
]


async def answers(gateway: Gateway, pieces: list[str], **fields: Any) -> list[tuple[str, str]]:
    """Return text and reason from both endpoints, unstreamed and streamed."""
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "".join(pieces)}], **fields}
    text = {"model": MODEL, "prompt": "".join(pieces), "max_tokens": 1000, **fields}
    found = []
    for path, body in (("/v1/chat/completions", chat), ("/v1/completions", text)):
        _, reply = await gateway.post(path, body)
        choices: Any = reply["choices"]
        shown = choices[0].get("message", {}).get("content", choices[0].get("text"))
        found.append((shown, choices[0]["finish_reason"]))
        found.append(await streamed(gateway, path, body))
    return found


async def streamed(gateway: Gateway, path: str, body: dict[str, Any]) -> tuple[str, str]:
    shown, reason = "", ""
    client = gateway.openai
    create: Any = client.chat.completions if "chat" in path else client.completions
    extra = {name: body.pop(name) for name in ("stop_token_ids",) if name in body}
    async for chunk in await create.create(**body, stream=True, extra_body=extra):
        choice = chunk.choices[0]
        shown += (choice.delta.content or "") if "chat" in path else choice.text
        reason += choice.finish_reason or ""
    return shown, reason


@pytest.mark.parametrize(("pieces", "stop", "expected"), STOPS)
async def test_nothing_of_a_stop_string_is_sent(
    tmp_path: Path, pieces: list[str], stop: list[str], expected: str
) -> None:
    """Stops that span pieces, overlap or hold several bytes end the text in front of them."""
    async with running_gateway(echo_backend(tmp_path, [p.encode() for p in pieces])) as gateway:
        assert await answers(gateway, pieces, stop=stop) == [(expected, "stop")] * 4


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"stop": " END", "max_tokens": 3}, ("one two", "stop")),
        ({"stop_token_ids": [2], "max_tokens": 3}, ("one two", "stop")),
        ({"max_tokens": 3}, ("one two END", "length")),
        ({"max_tokens": 2}, ("one two", "length")),
        ({}, ("one two END", "stop")),
    ],
)
async def test_the_reason_is_what_ended_it_not_the_count(
    tmp_path: Path, fields: dict[str, Any], expected: tuple[str, str]
) -> None:
    """A stop that comes with the last allowed token is a stop; a cut is a length."""
    pieces = ["one", " two", " END"]
    async with running_gateway(echo_backend(tmp_path, [p.encode() for p in pieces])) as gateway:
        assert await answers(gateway, pieces, **fields) == [expected] * 4


async def test_a_long_stop_that_never_comes_delays_nothing(tmp_path: Path) -> None:
    """Only text that may still become a stop is held back: each token has its own chunk."""
    async with running_gateway(echo_backend(tmp_path, [b"word "])) as gateway:
        stream = await gateway.openai.completions.create(
            model=MODEL, prompt="word " * 50, max_tokens=50, stop=["Z" * 200], stream=True
        )
        texts = [chunk.choices[0].text async for chunk in stream]
    assert texts == ["word "] * 50 + [""]


async def test_bytes_that_are_no_text_stay_in_their_own_answer(tmp_path: Path) -> None:
    """Invalid bytes show as replacement marks; streams beside it are untouched."""
    bad = [b"ok", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"]
    async with running_gateway(echo_backend(tmp_path, [*bad, b"good"])) as gateway:

        async def text_of(*prompt: int) -> str:
            stream = await gateway.openai.completions.create(
                model=MODEL, prompt=list(prompt), stream=True
            )
            return "".join([chunk.choices[0].text async for chunk in stream])

        odd, *fine = await asyncio.gather(
            text_of(0, 1, 2, 3, 4, 0), text_of(0, 5, 5, 5), text_of(5, 0, 5)
        )
        assert fine == ["okgoodgoodgood", "goodokgood"]
        assert odd == b"".join([*bad, b"ok"]).decode("utf-8", "replace")
        assert await text_of(5) == "good"


async def test_a_character_in_two_tokens_is_sent_once_whole(tmp_path: Path) -> None:
    """No chunk holds half a character."""
    halves = ["é".encode()[:1], "é".encode()[1:]]
    async with running_gateway(echo_backend(tmp_path, halves)) as gateway:
        stream = await gateway.openai.completions.create(model=MODEL, prompt=[0, 1], stream=True)
        texts = [chunk.choices[0].text async for chunk in stream]
    assert texts == ["é", ""]


@pytest.mark.parametrize("stream", [False, True])
async def test_each_choice_ends_for_its_own_reason(tmp_path: Path, stream: bool) -> None:
    """However many tokens all have together, and each index ends once."""
    write_piece_tokenizer(tmp_path, [b"x"])
    scripts = [["a"] * 6 + [FinishReason.STOP], ["b"] * 7 + [FinishReason.STOP],
               ["c"] * 10 + [FinishReason.LENGTH]]  # fmt: skip
    body = {"model": MODEL, "prompt": "x", "n": 3, "max_tokens": 10, "stream": stream}
    async with (
        running_gateway(ScriptedBackend(tmp_path, scripts)) as gateway,
        gateway.http.post(f"{gateway.url}/v1/completions", json=body) as reply,
    ):
        said = await reply.text()
    lines = [line.removeprefix("data: ") for line in said.splitlines() if "{" in line]
    choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    ends = [(each["index"], each["finish_reason"]) for each in choices if each["finish_reason"]]
    assert sorted(ends) == [(0, "stop"), (1, "stop"), (2, "length")]


@pytest.mark.parametrize(("pieces", "stop", "expected"), STOPS)
async def test_other_dialects_stop_at_the_same_place(
    tmp_path: Path, pieces: list[str], stop: list[str], expected: str
) -> None:
    """Anthropic's and Gemini's texts end where OpenAI's do, streamed and not."""
    turn, text = f"/v1beta/models/{MODEL}", "".join(pieces)
    message = {"model": MODEL, "max_tokens": 50, "stop_sequences": stop,
               "messages": [{"role": "user", "content": text}]}  # fmt: skip
    content = {"contents": [{"parts": [{"text": text}]}],
               "generationConfig": {"stopSequences": stop}}  # fmt: skip
    async with running_gateway(echo_backend(tmp_path, [p.encode() for p in pieces])) as gateway:
        told: Any = (await gateway.post("/v1/messages", message))[1]
        assert "".join(block["text"] for block in told["content"]) == expected
        pushed = [event for _, event in await events(gateway, message)]
        deltas = [
            event["delta"]["text"] for event in pushed if "index" in event and "delta" in event
        ]
        assert "".join(deltas) == expected
        assert (told["stop_reason"] == "stop_sequence") == (expected != text)
        told = (await gateway.post(f"{turn}:generateContent", content))[1]
        assert shown(told) == expected
        _, chunks = await gateway.post(f"{turn}:streamGenerateContent", content)
        assert "".join(map(shown, chunks)) == expected


def shown(reply: Any) -> str:
    """Return the text of a Gemini answer, or of a piece of one."""
    return "".join(part["text"] for part in reply["candidates"][0]["content"]["parts"])
