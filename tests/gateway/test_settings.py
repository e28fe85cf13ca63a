"""What the settings of a request become on their way to the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prefixcache.types import FinishReason, SamplingParams
from tests.support.bodies import CHAT, CHAT_BODY, TEXT, error_of
from tests.support.gateways import MODEL, Gateway, running_gateway
from tests.support.scripted import ScriptedBackend


@pytest.mark.parametrize("max_tokens", [10_000, 2**31, 2**70])
async def test_max_tokens_is_cut_to_what_fits(folder: Path, max_tokens: int) -> None:
    """However much is asked for, the engine is asked for no more than the context has."""
    backend = ScriptedBackend(folder, [["x", FinishReason.LENGTH]])
    async with running_gateway(backend) as gateway:
        status, _ = await gateway.post(CHAT, {**CHAT_BODY, "max_tokens": max_tokens})
    assert status == 200
    assert backend.requests[0].sampling.max_tokens == 98


@pytest.mark.parametrize(
    ("fields", "n_tokens"),
    [
        ({"max_completion_tokens": 3}, 3),
        ({"max_completion_tokens": 3, "max_tokens": 5}, 3),
        ({"max_completion_tokens": 5, "max_tokens": 3}, 5),
        ({"max_completion_tokens": 3, "max_tokens": None}, 3),
        ({"max_completion_tokens": 3, "max_tokens": 0}, 3),
        ({"max_completion_tokens": 5, "max_tokens": 3, "min_tokens": 4}, 5),
        ({"max_completion_tokens": None, "max_tokens": 3}, 3),
    ],
)
async def test_the_newer_limit_wins(
    gateway: Gateway, fields: dict[str, int | None], n_tokens: int
) -> None:
    """max_completion_tokens is honoured, and goes before max_tokens."""
    body = {**CHAT_BODY, "ignore_eos": True, **fields}
    status, reply = await gateway.post(CHAT, body)
    usage: Any = reply["usage"]
    assert (status, usage["completion_tokens"]) == (200, n_tokens)


async def test_min_tokens_is_held_against_the_limit_that_counts(gateway: Gateway) -> None:
    """More than the newer limit allows is refused, whatever the older one says."""
    limits = {"max_completion_tokens": 3, "max_tokens": 9, "min_tokens": 4}
    status, reply = await gateway.post(CHAT, {**CHAT_BODY, **limits})
    assert (status, error_of(reply)["param"]) == (400, "min_tokens")


async def test_defaults_are_openais(folder: Path) -> None:
    """Without further fields: temperature 1, chat as long as fits, completions 16 tokens."""
    backend = ScriptedBackend(folder, [["x", FinishReason.STOP]] * 2)
    async with running_gateway(backend) as gateway:
        await gateway.post(CHAT, {"model": MODEL, "messages": CHAT_BODY["messages"]})
        await gateway.post(TEXT, {"model": MODEL, "prompt": "one two"})
    chat, text = backend.requests
    assert chat.sampling == SamplingParams(max_tokens=98, temperature=1.0)
    assert text.sampling == SamplingParams(max_tokens=16, temperature=1.0)
    assert (chat.tenant, chat.salt, chat.read_cache, chat.store_cache) == (
        "default",
        None,
        True,
        True,
    )


async def test_fields_reach_the_engine(folder: Path) -> None:
    """Sampling, stops, salt and cache switches arrive as they were sent."""
    backend = ScriptedBackend(folder, [["x", FinishReason.STOP]])
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 10**6,
        "seed": 7,
        "stop": ["a", "b"],
        "stop_token_ids": [1, 2],
        "ignore_eos": True,
        "min_p": 0.05,
        "min_tokens": 2,
        "repetition_penalty": 1.2,
        "presence_penalty": -0.5,
        "frequency_penalty": 2,
        "logit_bias": {"5": 1, "0": -100},
        "logprobs": True,
        "top_logprobs": 4,
        "cache_salt": "blue",
        "cache": {"read": False, "store": False},
        "priority": -3,
        "deadline_seconds": 2.5,
    }
    async with running_gateway(backend) as gateway:
        assert (await gateway.post(CHAT, CHAT_BODY | fields))[0] == 200
    (request,) = backend.requests
    assert request.sampling == SamplingParams(
        max_tokens=4,
        temperature=0.5,
        top_p=0.9,
        top_k=1000,  # the vocabulary
        seed=7,
        stop=("a", "b"),
        stop_token_ids=(1, 2),
        ignore_eos=True,
        min_p=0.05,
        min_tokens=2,
        repetition_penalty=1.2,
        presence_penalty=-0.5,
        frequency_penalty=2.0,
        logit_bias=((5, 1.0), (0, -100.0)),
        top_scores=4,
    )
    assert (request.salt, request.read_cache, request.store_cache) == ("blue", False, False)
    assert (request.priority, request.deadline_seconds) == (-3, 2.5)


async def test_a_bias_on_a_row_without_a_token_is_refused(folder: Path) -> None:
    """Ids above the tokenizer's, which the padded output layer has, are refused by number."""
    backend = ScriptedBackend(folder, [["x", FinishReason.STOP]])
    async with running_gateway(backend) as gateway:
        status, reply = await gateway.post(CHAT, {**CHAT_BODY, "logit_bias": {"999": 1}})
        assert status == 400
        assert "999" in error_of(reply)["message"]


async def test_tops_need_logprobs(gateway: Gateway) -> None:
    """top_logprobs without logprobs is a 400, as OpenAI has it; 0 of them changes nothing."""
    for fields, expected in (
        ({"top_logprobs": 3}, 400),
        ({"top_logprobs": 3, "logprobs": False}, 400),
        ({"top_logprobs": 0}, 200),
        ({"top_logprobs": 3, "logprobs": True}, 200),
    ):
        assert (await gateway.post(CHAT, CHAT_BODY | fields))[0] == expected


async def test_odd_but_legal_sampling_is_made_plain(folder: Path) -> None:
    """top_p 0 is greedy, top_k 0 and -1 are off."""
    backend = ScriptedBackend(folder, [["x", FinishReason.STOP]] * 2)
    async with running_gateway(backend) as gateway:
        await gateway.post(CHAT, {**CHAT_BODY, "top_p": 0, "top_k": 0})
        await gateway.post(CHAT, {**CHAT_BODY, "top_k": -1})
    first, second = (request.sampling for request in backend.requests)
    assert (first.temperature, first.top_p, first.top_k) == (0.0, 1.0, None)
    assert second.top_k is None


async def test_a_missing_salt_and_a_null_one_share_the_default(gateway: Gateway) -> None:
    """Without a salt the second request hits, whichever way it leaves it out; with one not."""
    cached = []
    for salt in ({}, {"cache_salt": None}, {}, {"cache_salt": "blue"}, {"cache_salt": "blue"}):
        _, reply = await gateway.post(CHAT, CHAT_BODY | salt)
        usage: Any = reply["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 1, 1, 0, 1]
