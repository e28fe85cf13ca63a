"""Log-probabilities, echoed prompts and several choices, as the official client reads them."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM

from prefixcache.text import Tokenizer
from tests.support.gateways import MODEL, Gateway, echo_backend, running_gateway
from tests.support.inline import InlineBackend
from tests.support.models import write_tiny_model

PROMPT = "hello world, the question"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    write_tiny_model(made)
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(folder: Path) -> AsyncIterator[Gateway]:
    async with running_gateway(InlineBackend.load(folder, 1 << 22)) as running:
        yield running


pytestmark = pytest.mark.asyncio(loop_scope="module")


def reference(folder: Path, ids: list[int]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)


async def texts_of(gateway: Gateway, **body: Any) -> Any:
    return await gateway.openai.completions.create(model=MODEL, **body)


async def merged(stream: Any) -> tuple[str, dict[str, list[Any]]]:
    """Return a completions stream's text and its logprobs, each list joined."""
    text, lists = "", dict[str, list[Any]]()
    async for chunk in stream:
        for choice in chunk.choices:
            text += choice.text
            for name, part in (choice.logprobs.model_dump() if choice.logprobs else {}).items():
                lists.setdefault(name, []).extend(part)
    return text, lists


async def test_echo_scores_the_prompt(gateway: Gateway, folder: Path) -> None:
    """With echo and logprobs every token of prompt and answer is scored as transformers does."""
    body: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 5, "echo": True, "logprobs": 2}
    reply = await texts_of(gateway, temperature=0, **body)
    (choice,) = reply.choices
    ids = Tokenizer.load(folder).encode(PROMPT)
    found = choice.logprobs
    assert choice.text.startswith(PROMPT)
    assert found.token_logprobs[0] is None
    assert found.top_logprobs[0] is None
    logprobs = reference(folder, ids)
    expected = [float(logprobs[at, token]) for at, token in enumerate(ids[1:])]
    assert found.token_logprobs[1 : len(ids)] == pytest.approx(expected, abs=2e-3)
    assert len({len(each) for each in found.model_dump().values()}) == 1
    assert len(found.tokens) == len(ids) + 5
    assert found.text_offset[: len(ids)] == [
        sum(map(len, found.tokens[:at])) for at in range(len(ids))
    ]
    assert "".join(found.tokens[: len(ids)]) == PROMPT
    assert all(2 <= len(tops) <= 3 for tops in found.top_logprobs[1:])
    assert reply.usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize("max_tokens", [0, 6])
async def test_a_stream_says_what_the_whole_answer_does(gateway: Gateway, max_tokens: int) -> None:
    """Joined chunks have the text and all lists of the unstreamed answer, prompt included."""
    body: dict[str, Any] = {
        "prompt": PROMPT,
        "max_tokens": max_tokens,
        "echo": True,
        "logprobs": 1,
        "temperature": 0,
    }
    whole = (await texts_of(gateway, **body)).choices[0]
    text, lists = await merged(await texts_of(gateway, stream=True, **body))
    assert text == whole.text
    scores = whole.logprobs.model_dump()
    for name in ("tokens", "text_offset"):
        assert lists[name] == scores[name]
    for mine, theirs in zip(lists["token_logprobs"], scores["token_logprobs"], strict=True):
        assert mine == pytest.approx(theirs, abs=1e-3)
    assert (whole.finish_reason, text == PROMPT) == ("length", max_tokens == 0)


async def test_chat_scores_every_token(gateway: Gateway) -> None:
    """Each token has its text, bytes, logprob and as many tops as asked for, the best first."""
    create: Any = gateway.openai.chat.completions.create
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 8,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 3,
    }
    reply = await create(**body)
    (choice,) = reply.choices
    tokens = choice.logprobs.content
    assert len(tokens) == reply.usage.completion_tokens
    spelled = b"".join(bytes(token.bytes) for token in tokens)
    assert spelled.decode(errors="replace") == choice.message.content
    for token in tokens:
        values = [top.logprob for top in token.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert len(values) == 3
        assert token.logprob == values[0]
        assert token.top_logprobs[0].bytes == token.bytes
    streamed: list[Any] = []
    async for chunk in await create(stream=True, **body):
        for part in chunk.choices:
            streamed += part.logprobs.content if part.logprobs else []
    assert [token.bytes for token in streamed] == [token.bytes for token in tokens]


async def test_scores_are_left_out_unless_asked_for(gateway: Gateway) -> None:
    """Without logprobs the field is null, streamed or not."""
    create: Any = gateway.openai.chat.completions.create
    messages = [{"role": "user", "content": "hello"}]
    reply = await create(model=MODEL, messages=messages, max_tokens=2)
    assert reply.choices[0].logprobs is None
    stream = await create(model=MODEL, messages=messages, max_tokens=2, stream=True)
    assert all(c.logprobs is None for chunk in [x async for x in stream] for c in chunk.choices)
    assert (await texts_of(gateway, prompt=PROMPT, max_tokens=2)).choices[0].logprobs is None


@pytest.mark.parametrize("stream", [False, True])
async def test_greedy_choices_are_equal(gateway: Gateway, stream: bool) -> None:
    """n=2 at temperature 0 gives two equal choices, and the prompt counts once."""
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"hello {stream} " * 9}],
        "max_tokens": 6,
        "temperature": 0,
        "n": 2,
        "extra_body": {"cache_salt": f"greedy-{stream}"},
    }
    create: Any = gateway.openai.chat.completions.create
    texts, usage = ["", ""], None
    if stream:
        options = {"include_usage": True}
        async for chunk in await create(stream=True, stream_options=options, **body):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
    else:
        reply = await create(**body)
        texts, usage = [choice.message.content for choice in reply.choices], reply.usage
    assert texts[0] == texts[1] != ""
    assert usage is not None
    single = await create(**{**body, "n": 1})
    assert usage.prompt_tokens == single.usage.prompt_tokens
    assert usage.prompt_tokens_details.cached_tokens == 0


async def test_a_seed_repeats_all_choices(gateway: Gateway) -> None:
    """With a seed, n choices differ from each other and come back the same the next time."""
    body: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 12, "n": 3, "seed": 2**63 - 1}
    first = await texts_of(gateway, temperature=1.5, **body)
    again = await texts_of(gateway, temperature=1.5, **body)
    texts = [choice.text for choice in first.choices]
    assert texts == [choice.text for choice in again.choices]
    assert len(set(texts)) == 3


async def test_bias_and_penalties_change_the_answer(gateway: Gateway, folder: Path) -> None:
    """A bias of 100 forces a token; a penalty on it lets others come again."""
    token = Tokenizer.load(folder).encode(" alpha")[0]
    body: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0}
    forced = await texts_of(gateway, logit_bias={str(token): 100}, **body)
    assert forced.choices[0].text == " alpha" * 4
    banned = await texts_of(gateway, logit_bias={str(token): -100}, **body)
    assert " alpha" not in banned.choices[0].text
    seen = await texts_of(gateway, presence_penalty=2, frequency_penalty=2, logprobs=0, **body)
    plain = await texts_of(gateway, logprobs=0, **body)
    assert len(set(seen.choices[0].logprobs.tokens)) >= len(set(plain.choices[0].logprobs.tokens))
    unlikely = forced.choices[0].logprobs
    assert unlikely is None
    scored = await texts_of(gateway, logit_bias={str(token): 100}, logprobs=0, **body)
    assert max(scored.choices[0].logprobs.token_logprobs) < math.log(0.5), "the model's own chance"


async def test_echo_without_scores_repeats_the_prompt(tmp_path: Path) -> None:
    """echo puts each prompt's text before each of its answers, of token ids too."""
    async with running_gateway(echo_backend(tmp_path)) as gateway:
        reply = await texts_of(gateway, prompt=["one two", " three"], n=2, echo=True)
        texts = [choice.text for choice in reply.choices]
        assert texts == ["one twoone two"] * 2 + [" three three"] * 2
        reply = await texts_of(gateway, prompt=[0, 1], echo=True)
        assert reply.choices[0].text == "one twoone two"
        text, lists = await merged(
            await texts_of(gateway, prompt="one two", echo=True, stream=True, logprobs=1)
        )
        assert text == "one twoone two"
        assert lists["tokens"] == ["one", " two"] * 2
        assert lists["text_offset"] == [0, 3, 7, 10]
