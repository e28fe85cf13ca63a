"""An answer that comes back is read in the tokens that it was generated in."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.memory import TenantMemory
from gateway.own_answers import OwnAnswers, Scope
from prefixcache.index import pack, unpack
from prefixcache.text import Tokenizer
from prefixcache.types import (
    Delta,
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    Started,
    Usage,
)
from tests.support.gateways import MODEL, Gateway, running_gateway
from tests.support.inline import InlineBackend
from tests.support.models import write_tiny_model
from tests.support.scripted import ScriptedBackend
from tests.support.tokenizers import TURN_END, write_chat_tokenizer

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
ASK: Any = {"role": "user", "content": "one two"}
MORE: Any = {"role": "user", "content": f"and {TURN_END} three"}  # spells a control token
BLOCK_TOKENS = 16  # only whole blocks are cached
SCOPE = Scope(tenant="a", adapter=None, salt=None)


class SayingBackend(ScriptedBackend):
    """Says given tokens, one answer after the other, whatever it is asked."""

    def __init__(self, folder: Path, *answers: Sequence[int], stop: str | None = None) -> None:
        write_chat_tokenizer(folder)
        super().__init__(folder, [])
        self.max_model_tokens = 2000
        self.tokenizer = Tokenizer.load(folder)
        self._answers = list(answers)
        self._stop = stop

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Event]:
        self.requests.append(request)
        ids, request_id = self._answers[len(self.requests) - 1], request.request_id
        n_prompt = len(request.token_ids) // 4
        yield Started(request_id, n_prompt, 0)
        yield Delta(request_id, self.tokenizer.decode(ids), tuple(ids))
        usage = Usage(n_prompt, 0, len(ids))
        yield Finished(request_id, FinishReason.STOP, usage, self._stop)

    def prompt(self, index: int) -> list[int]:
        return unpack(self.requests[index].token_ids)


def spelled(folder: Path, text: str = " hello world") -> list[int]:
    """Return an answer of one token for each letter, where a tokenizer takes one for a word."""
    write_chat_tokenizer(folder)
    tokenizer = Tokenizer.load(folder)
    ids = [token for letter in text for token in tokenizer.encode(letter)]
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode(text) != ids
    return ids


async def turns(backend: SayingBackend, *between: Any, **settings: Any) -> None:
    """Ask, and ask on: the first answer's message comes back before `between`."""
    scope = settings.pop("second", {})
    async with running_gateway(backend, **settings) as gateway:
        body: dict[str, Any] = {"model": MODEL, "messages": [ASK]}
        _, reply = await gateway.post(CHAT, body)
        choices: Any = reply["choices"]
        said = {"role": "assistant", "content": choices[0]["message"]["content"]}
        messages = [ASK, said, *(between or (MORE,))]
        status, reply = await gateway.post(CHAT, body | {"messages": messages} | scope)
        assert status == 200, reply


async def test_the_next_prompt_begins_with_the_tokens_of_the_answer(tmp_path: Path) -> None:
    """What was generated stays as it was, and what follows is encoded as ever."""
    answer = spelled(tmp_path)
    backend = SayingBackend(tmp_path, answer, answer)
    await turns(backend)
    first, second = backend.prompt(0), backend.prompt(1)
    assert second[: len(first) + len(answer)] == first + answer
    text = backend.tokenizer.decode(second, skip_special_tokens=False)
    rest = f"{TURN_END}\n<|im_start|>user\nand {TURN_END} three{TURN_END}\n<|im_start|>assistant\n"
    assert text.endswith(f" hello world{rest}")
    assert second.count(2) == 3, "what the user spelled is no control token"


async def test_a_long_conversation_is_remembered_off_the_event_loop(tmp_path: Path) -> None:
    """And before its answer's end is told, so that a quick next turn finds it."""
    answer = spelled(tmp_path)
    backend = SayingBackend(tmp_path, answer, answer)
    backend.max_model_tokens = 100_000
    threads: list[str] = []
    long: Any = {"role": "user", "content": "one two " * 3000}
    async with running_gateway(backend) as gateway:
        kept = gateway.service.own_answers
        assert kept is not None
        remember = kept.remember

        def slow(*arguments: Any, **named: Any) -> None:
            time.sleep(0.05)
            threads.append(threading.current_thread().name)
            remember(*arguments, **named)

        kept.remember = slow  # type: ignore[method-assign]
        body: dict[str, Any] = {"model": MODEL, "messages": [long]}
        await gateway.post(CHAT, body)
        said = {"role": "assistant", "content": " hello world"}
        await gateway.post(CHAT, body | {"messages": [long, said, ASK]})
    first, second = backend.prompt(0), backend.prompt(1)
    assert second[: len(first) + len(answer)] == first + answer
    assert threads
    assert all(name.startswith("encode") for name in threads)


@pytest.mark.parametrize("path", [RESPONSES])
async def test_responses_go_on_in_the_tokens_as_well(tmp_path: Path, path: str) -> None:
    """previous_response_id leads to the same prompt."""
    answer = spelled(tmp_path)
    backend = SayingBackend(tmp_path, answer, answer, answer)
    async with running_gateway(backend) as gateway:
        previous = None
        for _ in range(3):
            body = {"model": MODEL, "input": "one two", "previous_response_id": previous}
            _, reply = await gateway.post(path, body)
            previous = reply["id"]
    first, second, third = (backend.prompt(n) for n in range(3))
    assert second[: len(first) + len(answer)] == first + answer
    assert third[: len(second) + len(answer)] == second + answer


@pytest.mark.parametrize(
    "second",
    [{"cache_salt": "s"}, {"messages": [MORE, {"role": "assistant", "content": " hello world"}]}],
    ids=["another salt", "another conversation"],
)
async def test_others_read_the_text_as_ever(tmp_path: Path, second: dict[str, Any]) -> None:
    """Another salt, or the same words elsewhere, have a tokenizer's own tokens."""
    answer = spelled(tmp_path)
    backend = SayingBackend(tmp_path, answer, answer)
    await turns(backend, second=second)
    assert str(answer)[1:-1] not in str(backend.prompt(1))


async def test_a_changed_answer_is_read_as_ever(tmp_path: Path) -> None:
    """Text that differs by one letter is not what was said."""
    answer = spelled(tmp_path)
    backend = SayingBackend(tmp_path, answer, answer)
    async with running_gateway(backend) as gateway:
        said = {"role": "assistant", "content": " hello worle"}
        for messages in ([ASK], [ASK, said, MORE]):
            await gateway.post(CHAT, {"model": MODEL, "messages": messages})
    assert str(answer[:6])[1:-1] not in str(backend.prompt(1))


async def test_it_can_be_turned_off(tmp_path: Path) -> None:
    """With own_answers off, equal texts have equal tokens, whoever said them."""
    answer = spelled(tmp_path)
    backend = SayingBackend(tmp_path, answer, answer)
    await turns(backend, own_answers=False)
    assert str(answer)[1:-1] not in str(backend.prompt(1))


async def test_what_a_stop_string_cut_is_not_remembered(tmp_path: Path) -> None:
    """Tokens that say more than the client was told are not read for it."""
    answer = spelled(tmp_path)
    backend = SayingBackend(tmp_path, answer, answer, stop="x")
    await turns(backend)
    assert str(answer)[1:-1] not in str(backend.prompt(1))


async def test_a_template_that_rewrites_answers_shows_what_it_writes(tmp_path: Path) -> None:
    """Where history has another text than was said, it has the tokens of that text."""
    answer = spelled(tmp_path)
    backend = SayingBackend(tmp_path, answer, answer)
    template = (tmp_path / "chat_template.jinja").read_text(encoding="utf-8")
    rewriting = template.replace("message['content']", "(message['content'] | replace('w', 'W'))")
    (tmp_path / "chat_template.jinja").write_text(rewriting, encoding="utf-8")
    await turns(backend)
    text = backend.tokenizer.decode(backend.prompt(1))
    assert " hello World" in text


async def test_special_tokens_in_an_answer_do_not_come_back(tmp_path: Path) -> None:
    """A control token that the client was not shown is not read as the client's text."""
    answer = spelled(tmp_path)
    forged = [*answer, 1, *answer]
    backend = SayingBackend(tmp_path, forged, forged)
    await turns(backend)
    assert str(forged)[1:-1] not in str(backend.prompt(1))


async def test_tool_calls_come_back_in_their_tokens(tmp_path: Path) -> None:
    """A call that the template writes as the model did has the model's tokens."""
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
        "{% for c in m.tool_calls or [] %}{{ '<tool_call>\n' }}"
        '{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}}'
        "{{ '\n</tool_call>' }}{% endfor %}"
        "{{ '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}"
    )
    call = '<tool_call>\n{"name": "f", "arguments": {"n": " world"}}\n</tool_call>'
    letters = spelled(tmp_path, call)
    backend = SayingBackend(tmp_path, letters, letters)
    (tmp_path / "chat_template.jinja").write_text(template, encoding="utf-8")
    tools = [{"type": "function", "function": {"name": "f"}}]
    async with running_gateway(backend) as gateway:
        body: dict[str, Any] = {"model": MODEL, "messages": [ASK], "tools": tools}
        _, reply = await gateway.post(CHAT, body)
        choices: Any = reply["choices"]
        message = choices[0]["message"]
        result = {
            "role": "tool",
            "tool_call_id": message["tool_calls"][0]["id"],
            "content": "7",
        }
        await gateway.post(CHAT, body | {"messages": [ASK, message, result]})
    first, second = backend.prompt(0), backend.prompt(1)
    assert second[: len(first) + len(letters)] == first + letters


async def test_a_cached_content_stays_in_its_own_tokens(tmp_path: Path) -> None:
    """What was read in is found by all that builds on it, whatever is known of answers in it."""
    answer = spelled(tmp_path)
    backend = SayingBackend(tmp_path, *[answer] * 4)
    said = [turn("one two"), turn(" hello world", "model")]
    path = f"/v1beta/models/{MODEL}:generateContent"
    async with running_gateway(backend) as gateway:
        await gateway.post(path, {"contents": said[:1]})
        _, made = await gateway.post("/v1beta/cachedContents", {"model": MODEL, "contents": said})
        body: dict[str, Any] = {"contents": [turn("three")], "cachedContent": made["name"]}
        await gateway.post(path, body)
        more = [turn("three"), turn(" hello world", "model"), turn("four")]
        await gateway.post(path, body | {"contents": more})
    kept, third, fourth = (backend.prompt(n) for n in (1, 2, 3))
    assert third[: len(kept)] == kept
    assert fourth[: len(third) + len(answer)] == third + answer


def turn(text: str, role: str = "user") -> dict[str, Any]:
    """Return one of Gemini's turns."""
    return {"role": role, "parts": [{"text": text}]}


def test_tenants_and_scopes_know_their_own_alone() -> None:
    """The same text of another tenant, adapter or salt is unknown, however they are spelled."""
    answers = OwnAnswers(
        TenantMemory(max_tenant_bytes=9999, max_bytes=9999, ttl_seconds=10, clock=lambda: 0.0)
    )
    answers.remember(SCOPE, "prompt answer", pack([1, 2]))
    text = "prompt answer|rest"
    assert answers.longest(SCOPE, text, [6, 13], None) is not None
    for adapter, salt in ((None, "-"), ("-", None), ("1:x", None), (None, "1:x")):
        other = Scope(tenant="a", adapter=adapter, salt=salt)
        assert answers.longest(other, text, [6, 13], None) is None
    other = Scope(tenant="b", adapter=None, salt=None)
    assert answers.longest(other, text, [6, 13], None) is None


def test_marks_are_no_text() -> None:
    """A prompt whose marks are spelled by another's text does not begin with it."""
    answers = OwnAnswers(
        TenantMemory(max_tenant_bytes=9999, max_bytes=9999, ttl_seconds=10, clock=lambda: 0.0)
    )
    answers.remember(SCOPE, "pro⠀mpt", pack([1]))
    assert answers.longest(SCOPE, "pro⠀mpt|", [7], "⠀") is None
    assert answers.longest(SCOPE, "pro⠀mpt|", [7], "⠁") is not None
    answers.remember(SCOPE, "pro⠀mpt", pack([2]), mark="⠀")
    found = answers.longest(SCOPE, "pro⠀mpt|", [7], "⠀")
    assert found is not None
    assert unpack(found.token_ids) == [2]


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[Gateway]:
    write_tiny_model(tmp_path)
    async with running_gateway(InlineBackend.load(tmp_path, 8 << 20)) as gateway:
        yield gateway


async def test_the_second_turn_hits_all_of_the_first_answer(real: Gateway) -> None:
    """Tokens by chance, few of them a tokenizer's own, are found again to the last block."""
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [ASK],
        "temperature": 2,
        "structured_outputs": {"regex": " (hello|world|one|two){12,14}[.]"},
    }
    tokenizer = real.service.served().encoder.tokenizer
    n_odd = 0
    for seed in range(4):
        _, first = await real.post(CHAT, body | {"seed": seed})
        choices, usage = cast("Any", first["choices"]), cast("Any", first["usage"])
        content = choices[0]["message"]["content"]
        n_odd += len(tokenizer.encode(content)) != usage["completion_tokens"]
        said = {"role": "assistant", "content": content}
        again = body | {"messages": [ASK, said, ASK], "max_tokens": 1}
        _, second = await real.post(CHAT, again)
        found = cast("Any", second["usage"])["prompt_tokens_details"]["cached_tokens"]
        n_computed = usage["prompt_tokens"] + usage["completion_tokens"] - 1
        assert found >= n_computed // BLOCK_TOKENS * BLOCK_TOKENS
    assert n_odd
