"""The official client against a running gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from gateway.backends.echo import EchoBackend
from prefixcache.types import FailureKind, FinishReason
from tests.support.gateways import MODEL, Gateway, echo_backend, running_gateway
from tests.support.scripted import ScriptedBackend
from tests.support.tokenizers import write_chat_tokenizer, write_piece_tokenizer

TEXT = "one two three"


def user(text: str = TEXT) -> list[ChatCompletionUserMessageParam]:
    return [{"role": "user", "content": text}]


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running_gateway(echo_backend(tmp_path)) as running:
        yield running


async def test_chat_is_answered(gateway: Gateway) -> None:
    """A chat completion carries the model's turn, its reason to end, and usage."""
    reply = await gateway.openai.chat.completions.create(model=MODEL, messages=user())
    assert reply.object == "chat.completion"
    assert reply.model == MODEL
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].message.content == TEXT
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (3, 3)
    assert reply.usage.total_tokens == 6


async def test_chat_is_streamed(gateway: Gateway) -> None:
    """A stream is role, text, reason, usage: in this order, each where the client looks for it."""
    stream = await gateway.openai.chat.completions.create(
        model=MODEL, messages=user(), stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    *body, closing, usage = chunks
    assert body[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in body) == TEXT
    assert closing.choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == 3
    assert len({chunk.id for chunk in chunks}) == 1


async def test_usage_is_streamed_only_when_asked_for(gateway: Gateway) -> None:
    """Without include_usage no chunk speaks of usage, and every chunk has a choice."""
    stream = await gateway.openai.chat.completions.create(model=MODEL, messages=user(), stream=True)
    chunks = [chunk async for chunk in stream]
    assert all(chunk.choices and "usage" not in chunk.model_fields_set for chunk in chunks)


async def test_completions_take_every_kind_of_prompt(gateway: Gateway) -> None:
    """A prompt is a text, texts, token ids or lists of token ids."""
    create: Any = gateway.openai.completions.create
    for prompt, answers in (
        ("one two", ["one two"]),
        (["one", " two"], ["one", " two"]),
        ([0, 2], ["one three"]),
        ([[0], [1, 2]], ["one", " two three"]),
    ):
        reply = await create(model=MODEL, prompt=prompt)
        assert [choice.text for choice in reply.choices] == answers
        assert [choice.index for choice in reply.choices] == list(range(len(answers)))


async def test_completions_are_streamed(gateway: Gateway) -> None:
    """Joined chunks of each choice are its text; the last one tells the reason."""
    stream = await gateway.openai.completions.create(
        model=MODEL, prompt=["one two", " three"], stream=True
    )
    texts, reasons = ["", ""], ["", ""]
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] += choice.finish_reason or ""
    assert texts == ["one two", " three"]
    assert reasons == ["stop", "stop"]


async def test_usage_sums_prompts_and_counts_each_once(gateway: Gateway) -> None:
    """Several prompts add up; several choices of one prompt count it once."""
    reply = await gateway.openai.completions.create(
        model=MODEL, prompt=["one two", " three"], n=3, temperature=0
    )
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == 3
    assert reply.usage.completion_tokens == 9
    assert [choice.index for choice in reply.choices] == list(range(6))
    assert [choice.text for choice in reply.choices] == ["one two"] * 3 + [" three"] * 3


async def test_cached_tokens_are_the_same_streamed_or_not(gateway: Gateway) -> None:
    """Once a prompt is warm, every endpoint reports the same count, in either mode."""
    chat: Any = partial(gateway.openai.chat.completions.create, model=MODEL, messages=user())
    text: Any = partial(gateway.openai.completions.create, model=MODEL, prompt=TEXT)
    await chat()
    found = []
    for create in (chat, text):
        found.append((await create()).usage)
        stream = await create(stream=True, stream_options={"include_usage": True})
        found.append([chunk async for chunk in stream][-1].usage)
    assert [usage.prompt_tokens_details.cached_tokens for usage in found] == [2] * 4


async def test_the_model_is_listed(gateway: Gateway) -> None:
    """The list has the one model, and it can be looked up by name."""
    listed = [model.id async for model in gateway.openai.models.list()]
    assert listed == [MODEL]
    assert (await gateway.openai.models.retrieve(MODEL)).id == MODEL
    with pytest.raises(openai.NotFoundError):
        await gateway.openai.models.retrieve("other/model")


async def test_a_chat_template_is_applied(tmp_path: Path) -> None:
    """Turns are rendered as the model's template says before they are tokenized."""
    write_chat_tokenizer(tmp_path)
    async with running_gateway(EchoBackend(tmp_path)) as gateway:
        reply = await gateway.openai.chat.completions.create(
            model=MODEL,
            messages=[
                {"role": "system", "content": "hello"},
                {"role": "user", "content": [{"type": "text", "text": "wor"}]},
            ],
        )
        assert reply.choices[0].message.content == "system\nhello\nuser\nwor\nassistant\n"


async def test_each_choice_has_its_own_reason(tmp_path: Path) -> None:
    """How one choice ends says nothing about another, streamed or not."""
    scripts = [
        [*"abcdef", FinishReason.STOP],
        [*"abcdefg", FinishReason.STOP],
    ]
    write_piece_tokenizer(tmp_path, [b"one"])
    async with running_gateway(ScriptedBackend(tmp_path, [*scripts, *scripts])) as gateway:
        create = gateway.openai.chat.completions.create
        whole = await create(model=MODEL, messages=user(), n=2, max_tokens=10)
        assert [c.message.content for c in whole.choices] == ["abcdef", "abcdefg"]
        assert [c.finish_reason for c in whole.choices] == ["stop", "stop"]
        texts, reasons = ["", ""], [[], []]  # type: tuple[list[str], list[list[str]]]
        stream = await create(model=MODEL, messages=user(), n=2, max_tokens=10, stream=True)
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                if choice.finish_reason:
                    reasons[choice.index].append(choice.finish_reason)
        assert texts == ["abcdef", "abcdefg"]
        assert reasons == [["stop"], ["stop"]]


async def test_choices_share_a_seed_by_number(tmp_path: Path) -> None:
    """Choice i is asked for as choice i of the one seed, under an id of its own."""
    write_piece_tokenizer(tmp_path, [b"one"])
    backend = ScriptedBackend(tmp_path, [["x", FinishReason.STOP]] * 3)
    async with running_gateway(backend) as gateway:
        await gateway.openai.chat.completions.create(
            model=MODEL, messages=user(), n=3, seed=2**63 - 1
        )
    assert {request.sampling.seed for request in backend.requests} == {2**63 - 1}
    assert [request.sampling.choice for request in backend.requests] == [0, 1, 2]
    assert len({request.request_id for request in backend.requests}) == 3


async def test_trouble_in_a_stream_is_an_event_that_the_client_raises(tmp_path: Path) -> None:
    """After the first event an error is framed, and the client sees it as an API error."""
    write_piece_tokenizer(tmp_path, [b"one"])
    backend = ScriptedBackend(tmp_path, [["a", "b", FailureKind.WORKER_DIED]])
    async with running_gateway(backend) as gateway:
        stream = await gateway.openai.chat.completions.create(
            model=MODEL, messages=user(), stream=True
        )
        texts = []
        with pytest.raises(openai.APIError, match="as the script says"):  # noqa: PT012
            async for chunk in stream:
                texts.append(chunk.choices[0].delta.content)  # noqa: PERF401 - kept on error
        assert texts == ["", "a", "b"]


@pytest.mark.parametrize("stream", [False, True])
async def test_trouble_before_the_first_event_has_its_own_status(
    tmp_path: Path, stream: bool
) -> None:
    """A request that is refused at once gets an ordinary error, streamed or not."""
    write_piece_tokenizer(tmp_path, [b"one"])
    backend = ScriptedBackend(tmp_path, [[FailureKind.OVERLOADED]])
    async with running_gateway(backend) as gateway:
        with pytest.raises(openai.RateLimitError) as caught:
            await gateway.openai.chat.completions.create(
                model=MODEL, messages=user(), stream=stream
            )
        assert caught.value.code == "overloaded"
        assert caught.value.response.headers["retry-after"] == "1"
