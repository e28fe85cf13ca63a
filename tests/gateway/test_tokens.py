"""/tokenize and /detokenize tell what the model would read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.backends.echo import EchoBackend
from tests.support.bodies import CHAT, error_of
from tests.support.gateways import MODEL, Gateway, running_gateway
from tests.support.tokenizers import TURN_END, write_chat_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")

KWARGS = "chat_template_kwargs"
MESSAGES: Any = [{"role": "user", "content": "hello"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("model")
    write_chat_tokenizer(folder)
    async with running_gateway(EchoBackend(folder, max_model_tokens=500)) as running:
        yield running


async def tokens(gateway: Gateway, **body: Any) -> Any:
    status, reply = await gateway.post("/tokenize", body)
    assert status == 200, reply
    return reply


async def text(gateway: Gateway, ids: list[int]) -> object:
    _, reply = await gateway.post("/detokenize", {"tokens": ids})
    return reply["prompt"]


async def test_a_text_comes_back_from_its_tokens(gateway: Gateway) -> None:
    """Tokens and text are each other's, with or without the model's name."""
    for model in ({}, {"model": MODEL}, {"model": None}):
        found = await tokens(gateway, prompt="hello world 🙂", **model)
        assert found["count"] == len(found["tokens"])
        assert found["max_model_len"] == 500
        assert await text(gateway, found["tokens"]) == "hello world 🙂"


async def test_a_conversation_has_the_tokens_of_its_prompt(gateway: Gateway) -> None:
    """The count is what usage shows for the same messages; the template's tokens are spelled."""
    found = await tokens(gateway, messages=MESSAGES)
    _, reply = await gateway.post(CHAT, {"model": MODEL, "messages": MESSAGES, "max_tokens": 1})
    usage: Any = reply["usage"]
    assert found["count"] == usage["prompt_tokens"]
    expected = f"<|im_start|>user\nhello{TURN_END}\n<|im_start|>assistant\n"
    assert await text(gateway, found["tokens"]) == expected


async def test_the_generation_prompt_can_be_left_out(gateway: Gateway) -> None:
    """Without it, the prompt ends where the last message does."""
    found = await tokens(gateway, messages=MESSAGES, add_generation_prompt=False)
    assert await text(gateway, found["tokens"]) == f"<|im_start|>user\nhello{TURN_END}\n"


async def test_options_reach_the_template(tmp_path: Path) -> None:
    """A model's own switches, thinking say: for one request, and the same at both routes."""
    write_chat_tokenizer(tmp_path)
    file = tmp_path / "chat_template.jinja"
    file.write_text("{{ messages[0].content }}{% if thinks is false %} at once{{ n }}{% endif %}")
    options = {KWARGS: {"thinks": False, "n": 2}}
    async with running_gateway(EchoBackend(tmp_path)) as gateway:
        for extra, expected in (
            (options, "hello at once2"),
            ({KWARGS: {}}, "hello"),
            ({}, "hello"),
        ):
            found = await tokens(gateway, messages=MESSAGES, **extra)
            assert await text(gateway, found["tokens"]) == expected
            _, reply = await gateway.post(CHAT, {"model": MODEL, "messages": MESSAGES} | extra)
            choices: Any = reply["choices"]
            assert choices[0]["message"]["content"] == expected


async def test_tokens_are_spelled_on_request(gateway: Gateway) -> None:
    """token_strs has one text for each token, and is null unless asked for."""
    found = await tokens(gateway, prompt=f" hello{TURN_END}", return_token_strs=True)
    assert found["token_strs"] == [" hello", TURN_END]
    assert (await tokens(gateway, prompt="x"))["token_strs"] is None


async def test_an_empty_prompt_has_no_tokens(gateway: Gateway) -> None:
    """Nothing is made of nothing, in both directions."""
    assert (await tokens(gateway, prompt=""))["tokens"] == []
    assert await text(gateway, []) == ""


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "x" * 100_000}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"messages": MESSAGES, "chat_template": "x"}, "chat_template"),
        ("/tokenize", {"messages": MESSAGES, "continue_final_message": True}, "continue_final"),
        ("/tokenize", {"messages": MESSAGES, "chat_template_kwargs": {"messages": 1}}, KWARGS),
        ("/tokenize", {"messages": MESSAGES, "chat_template_kwargs": {"bos_token": "x"}}, KWARGS),
        ("/tokenize", {"messages": MESSAGES, "chat_template_kwargs": {"range": 1}}, KWARGS),
        ("/tokenize", {"messages": MESSAGES, "chat_template_kwargs": {"mood": TURN_END}}, KWARGS),
        ("/tokenize", {"messages": MESSAGES, "chat_template_kwargs": {"mood": "<|im_"}}, KWARGS),
        ("/tokenize", {"messages": MESSAGES, "chat_template_kwargs": {"mood": ["x"]}}, KWARGS),
        ("/tokenize", {"messages": MESSAGES, KWARGS: {"mood": "x" * 4097}}, KWARGS),
        ("/tokenize", {"messages": MESSAGES, KWARGS: {"x" * 65: 1}}, KWARGS),
        ("/tokenize", {"messages": MESSAGES, KWARGS: {"n": 2**20 + 1}}, KWARGS),
        ("/tokenize", {"messages": MESSAGES, KWARGS: {"n": -(2**20) - 1}}, KWARGS),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [317]}, "tokens"),
        ("/detokenize", {"tokens": ["x"]}, "tokens"),
    ],
    ids=str,
)
async def test_a_wrong_value_is_refused_by_name(
    gateway: Gateway, path: str, body: dict[str, Any], param: str
) -> None:
    """What cannot be tokenized, or spelled, is a 400 that names the field."""
    status, reply = await gateway.post(path, body)
    assert status == 400
    assert str(error_of(reply)["param"]).startswith(param)


async def test_an_unknown_model_is_not_found(gateway: Gateway) -> None:
    """A model that is named has to be served."""
    for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
        status, reply = await gateway.post(path, body | {"model": "other"})
        assert (status, error_of(reply)["code"]) == (404, "model_not_found")
