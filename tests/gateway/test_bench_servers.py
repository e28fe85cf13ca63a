"""Servers measured from outside: which are told apart and which answers are refused."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator

import aiohttp
import pytest

from gateway.client.identity import check_unchanged, identify
from gateway.client.listeners import listener_at
from gateway.client.prompts import PromptMaker, Vocabulary
from gateway.client.streaming import BenchError, stream_completion
from gateway.client.targets import Address, Target
from tests.support.fake_server import Routes, fake_server, listening_process

TOKEN = b'data: {"choices":[{"text":"a"}]}\n\n'
END = b'data: {"choices":[{"text":"","finish_reason":"length"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"


def models(owner: str, *names: str) -> Routes:
    cards = [{"id": name, "owned_by": owner} for name in names or ("m",)]
    return {"/v1/models": {"data": cards}}


OWN = {**models("prefixcache"), "/health": {"status": "alive", "version": "1.2"}}
VLLM = {**models("vllm"), "/version": {"version": "1.2"}}
LLAMA = {**models("llamacpp"), "/props": {"build_info": "b1"}}
TRANSFORMERS = {**models("someone"), "/openapi.json": {"paths": {"/load_model": {}}}}


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_a_stream_is_read_to_its_end(session: aiohttp.ClientSession) -> None:
    """Events with text are arrivals; tokens are what usage says, cached ones if it does."""
    async with fake_server({}, b": hello\n\n" + TOKEN + TOKEN + END + USAGE + DONE) as url:
        answer = await stream_completion(session, url, {})
    assert len(answer.arrivals) == 2
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (5, 2, None)


async def test_an_answer_without_text_may_be_taken(session: aiohttp.ClientSession) -> None:
    """Where text is not needed, the end of the answer stands for it."""
    async with fake_server({}, END + USAGE + DONE) as url:
        answer = await stream_completion(session, url, {}, needs_text=False)
    assert answer.arrivals == (answer.ended_at,)


@pytest.mark.parametrize("delta", ['{"content":"a"}', '{"reasoning_content":"a"}'])
async def test_parts_of_a_chat_are_arrivals(session: aiohttp.ClientSession, delta: str) -> None:
    """Text and thoughts count; a part that says who speaks does not."""
    role = b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n'
    part = b'data: {"choices":[{"delta":%s}]}\n\n' % delta.encode()
    async with fake_server({}, role + part + END + USAGE + DONE) as url:
        answer = await stream_completion(session, url, {})
    assert len(answer.arrivals) == 1


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (TOKEN + b'data: {"error":{"message":"no"}}\n\n' + END + USAGE + DONE, "sent an error"),
        (TOKEN + b'event: error\ndata: {"x":1}\n\n' + END + USAGE, "sent an error"),
        (TOKEN + b"error: no\n\n" + END + USAGE, "sent an error"),
        (TOKEN + b"data: [1]\n\n" + END + USAGE, "sent an error"),
        (TOKEN + b"data: {\n\n" + END + USAGE, "broke off"),
        (TOKEN + USAGE + DONE, "finish_reason None"),
        (TOKEN + END.replace(b"length", b"error") + USAGE, "finish_reason 'error'"),
        (TOKEN + END + DONE, "no usage"),
        (END + USAGE + DONE, "no text"),
        (TOKEN + END + USAGE.replace(b"5", b"0"), "prompt_tokens = 0"),
        (TOKEN + END + USAGE.replace(b"2", b"null"), "completion_tokens = None"),
        (b"", "finish_reason None"),
    ],
)
async def test_what_is_no_whole_answer_is_an_error(
    session: aiohttp.ClientSession, answer: bytes, reason: str
) -> None:
    """Errors in a stream, streams that break off and missing counts are never measured."""
    async with fake_server({}, answer) as url:
        with pytest.raises(BenchError, match=reason):
            await stream_completion(session, url, {})


async def test_a_refusal_is_an_error(session: aiohttp.ClientSession) -> None:
    """Another status than 200 is an error with the server's text, and so is no server."""
    async with fake_server({}, b"go away", status=503) as url:
        with pytest.raises(BenchError, match="answered 503: go away"):
            await stream_completion(session, url, {})
    with pytest.raises(BenchError, match="broke off"):
        await stream_completion(session, url, {})


@pytest.mark.parametrize(
    ("prompt_tokens", "completion_tokens", "reason"),
    [
        (6, 2, "x counts 6 prompt tokens in what was made to be 5"),
        (5, 99, "x gave 99 tokens of 4"),
        (5, 1, "x gave 1 tokens of 4"),
    ],
)
async def test_other_counts_than_were_meant_are_an_error(
    session: aiohttp.ClientSession, prompt_tokens: int, completion_tokens: int, reason: str
) -> None:
    """A prompt of another length, too many tokens or fewer than half end the measurement."""
    usage = USAGE.replace(b"5", b"%d" % prompt_tokens).replace(b"2", b"%d" % completion_tokens)
    vocabulary = Vocabulary((" one", " two"), 0)
    prompt = PromptMaker(vocabulary.words, random.Random(0)).fresh(5, vocabulary)
    async with fake_server(OWN, TOKEN + END + usage) as url:
        identity = await identify(session, url, pid=os.getpid())
        target = Target(Address("x", url), identity, vocabulary, session)
        with pytest.raises(BenchError, match=reason):
            await target.ask(prompt, 4)


@pytest.mark.parametrize(
    ("routes", "kind", "version"),
    [
        (OWN, "prefixcache", "1.2"),
        (VLLM, "vllm", "1.2"),
        (LLAMA, "llama.cpp", "b1"),
        (TRANSFORMERS, "transformers", "unknown"),
    ],
)
async def test_a_server_is_told_by_its_routes(
    session: aiohttp.ClientSession, routes: Routes, kind: str, version: str
) -> None:
    """Each kind has a sign of its own; the process is the one that was named."""
    async with fake_server(routes) as url:
        identity = await identify(session, url, pid=os.getpid())
    assert (identity.kind.name, identity.version, identity.model) == (kind, version, "m")
    assert identity.listener is not None
    assert identity.listener.pid == os.getpid()
    assert f"process {os.getpid()}" in str(identity)


@pytest.mark.parametrize(
    ("routes", "reason"),
    [
        ({}, r"lists the models \[\]"),
        ({"/v1/models": [1]}, r"lists the models \[\]"),
        (models("prefixcache", "a", "b"), r"lists the models \['a', 'b'\]; choose"),
        (models("prefixcache"), "no known kind"),
        ({**models("prefixcache"), "/version": {"version": "1"}}, "no known kind"),
        ({**models("vllm"), "/health": {"status": "alive"}}, "no known kind"),
        ({**TRANSFORMERS, **OWN}, "prefixcache and transformers"),
    ],
)
async def test_a_server_that_cannot_be_told_is_refused(
    session: aiohttp.ClientSession, routes: Routes, reason: str
) -> None:
    """No sign, signs of two kinds, or no model to choose: nothing is measured."""
    async with fake_server(routes) as url:
        with pytest.raises(BenchError, match=reason):
            await identify(session, url, pid=os.getpid())


async def test_one_of_several_models_is_chosen_by_name(session: aiohttp.ClientSession) -> None:
    """The model that is named is measured; one that is not listed is refused."""
    async with fake_server({**OWN, **models("prefixcache", "a", "b")}) as url:
        assert (await identify(session, url, model="b", pid=os.getpid())).model == "b"
        with pytest.raises(BenchError, match="choose one of them"):
            await identify(session, url, model="c", pid=os.getpid())


async def test_another_process_on_the_port_is_refused(session: aiohttp.ClientSession) -> None:
    """A port that a process of another kind has, or not the one that was named, is not measured."""
    async with fake_server(VLLM) as url:
        with pytest.raises(BenchError, match="answers like vllm, but process"):
            await identify(session, url)
        with (
            listening_process("127.0.0.1") as (pid, _),
            pytest.raises(BenchError, match=f"not by {pid}"),
        ):
            await identify(session, url, pid=pid)


async def test_a_port_that_changed_hands_is_noticed(session: aiohttp.ClientSession) -> None:
    """When the measured process is gone, or another has its port, the sitting ends."""
    async with fake_server(OWN) as url:
        identity = await identify(session, url, pid=os.getpid())
        check_unchanged(url, identity)
    with pytest.raises(BenchError, match="nothing listens"):
        check_unchanged(url, identity)
    with listening_process("127.0.0.1", int(url.rpartition(":")[2])) as (_, port):
        assert port is not None
        with pytest.raises(BenchError, match=f"was served by process {os.getpid()}"):
            check_unchanged(url, identity)


def test_a_name_that_means_two_servers_is_refused() -> None:
    """localhost with one server on IPv4 and another on IPv6 is neither of them."""
    with listening_process("127.0.0.1") as (four, port):
        assert port is not None
        with listening_process("::1", port) as (six, six_port):
            if six_port is None:
                pytest.skip("this machine has no IPv6")
            with pytest.raises(BenchError, match=f"several servers .*{min(four, six)}"):
                listener_at(f"http://localhost:{port}")
            for url, pid in ((f"http://127.0.0.1:{port}", four), (f"http://[::1]:{port}", six)):
                found = listener_at(url)
                assert found is not None
                assert found.pid == pid


def test_a_server_elsewhere_has_no_process_here() -> None:
    """Only loopback addresses are looked up among this machine's processes."""
    assert listener_at("http://192.0.2.1:8000") is None
