"""Tool calls through the official client: found in texts, forced on a model, and sent back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from prefixcache.text import PromptEncoder, Tokenizer
from prefixcache.types import FinishReason
from tests.support.gateways import MODEL, Gateway, running_gateway
from tests.support.inline import InlineBackend
from tests.support.models import Bench, write_tiny_model
from tests.support.scripted import ScriptedBackend
from tests.support.tokenizers import write_chat_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")

HERMES = (
    "{% if tools %}{{ '<|im_start|>system\n' }}"
    "{% for t in tools %}{{ t.function.name }} {% endfor %}"
    "{{ '<tool_call>...</tool_call><|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{% if m.role == 'tool' %}{{ ' of ' + m.name }}{% endif %}"
    "{% if 'tool_calls' in m and not m.tool_calls %}{{ raise_exception('no calls') }}{% endif %}"
    "{% for c in m.tool_calls or [] %}{{ '\n<tool_call>\n{\"name\": ' + (c.function.name | tojson)"
    " + ', \"arguments\": ' + (c.function.arguments | tojson) + '}\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}"
)
DEEPSEEK = (
    "{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}"
    "{{ '<｜tool▁calls▁begin｜>' }}{% for c in m.tool_calls %}"
    "{{ '<｜tool▁call▁begin｜>' + c.type + '<｜tool▁sep｜>' + c.function.name + '\n' + '```json'"
    " + '\n' + c.function.arguments + '\n' + '```' + '<｜tool▁call▁end｜>' }}"
    "{% endfor %}{{ '<｜tool▁calls▁end｜>' }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"enum": [1, 2, 3]}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK: dict[str, Any] = {"type": "function", "function": {"name": "clock"}}
MESSAGES: Any = [{"role": "user", "content": "hello"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>'
ARGUMENTS = {"city": "Rome", "days": 2}
DEEPSEEK_CALL = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
    '{"city": "Rome", "days": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)


def write_tool_model(folder: Path, template: str = HERMES) -> None:
    write_tiny_model(folder)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    folder = tmp_path_factory.mktemp("model")
    write_tool_model(folder)
    async with running_gateway(InlineBackend.load(folder, 1 << 22)) as running:
        yield running


async def chat(gateway: Gateway, **fields: Any) -> Any:
    create: Any = gateway.openai.chat.completions.create
    return await create(model=MODEL, **({"messages": MESSAGES} | fields))


async def said(folder: Path, *texts: str, template: str = HERMES, **fields: Any) -> Any:
    """Return the choice that a client sees when the model says `texts`."""
    write_chat_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    backend = ScriptedBackend(folder, [[*texts, FinishReason.STOP]])
    backend.max_model_tokens = 2000
    async with running_gateway(backend) as running:
        reply = await chat(running, **({"tools": [WEATHER, CLOCK]} | fields))
        if fields.get("stream"):
            return await gathered(reply)
    choice = reply.choices[0]
    calls = choice.message.tool_calls or []
    return (
        choice.message.content,
        [(call.function.name, call.function.arguments) for call in calls],
        choice.finish_reason,
        [call.id for call in calls],
    )


async def gathered(stream: Any) -> Any:
    """Put a stream together as clients do."""
    content, calls, reason = "", dict[int, Any](), None
    async for chunk in stream:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reason = choice.finish_reason or reason
            for part in choice.delta.tool_calls or []:
                call = calls.setdefault(part.index, {"id": part.id, "name": "", "arguments": ""})
                assert part.id in (None, call["id"])
                call["name"] += part.function.name or ""
                call["arguments"] += part.function.arguments or ""
    pairs = [(call["name"], call["arguments"]) for call in calls.values()]
    return content or None, pairs, reason, [call["id"] for call in calls.values()]


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_in_the_text_become_tool_calls(tmp_path: Path, stream: bool) -> None:
    """Content, calls with ids of their own, and finish_reason tool_calls, streamed or not."""
    second = CALL.replace("Rome", "Oslo")
    texts = ["Let me see.\n<tool", CALL[5:40], CALL[40:] + "\n" + second[:20], second[20:]]
    content, calls, reason, ids = await said(tmp_path, *texts, stream=stream)
    assert (content, reason) == ("Let me see.", "tool_calls")
    assert [name for name, _ in calls] == ["weather", "weather"]
    assert [json.loads(text)["city"] for _, text in calls] == ["Rome", "Oslo"]
    assert len(set(ids)) == 2
    assert all(call_id.startswith("call_") for call_id in ids)


@pytest.mark.parametrize("stream", [False, True])
async def test_deepseeks_calls_become_tool_calls(tmp_path: Path, stream: bool) -> None:
    """Its marks and fences are no content, and what it is sent back is what it said."""
    call = DEEPSEEK_CALL.removeprefix("<｜tool▁calls▁begin｜>").removesuffix("<｜tool▁calls▁end｜>")
    text = f"So.\n<｜tool▁calls▁begin｜>{call}\n{call}<｜tool▁calls▁end｜>"
    texts = [text[start : start + 9] for start in range(0, len(text), 9)]
    content, calls, reason, ids = await said(tmp_path, *texts, template=DEEPSEEK, stream=stream)
    assert (content, reason, len(set(ids))) == ("So.", "tool_calls", 2)
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [
        ("weather", ARGUMENTS)
    ] * 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("<tool_call>\n{bad}\n</tool_call>", {}),
        (CALL, {"tool_choice": "none"}),
        (CALL, {"tools": []}),
        ("no call at all ", {}),
    ],
)
async def test_what_is_no_call_stays_content(
    tmp_path: Path, text: str, fields: dict[str, Any], stream: bool
) -> None:
    """Malformed calls, and calls that were not asked for, come through as they were written."""
    content, calls, reason, _ = await said(tmp_path, text[:9], text[9:], stream=stream, **fields)
    assert (content, calls, reason) == (text, [], "stop")


@pytest.mark.parametrize("stream", [False, True])
async def test_one_call_at_a_time_may_be_asked_for(tmp_path: Path, stream: bool) -> None:
    """Without parallel_tool_calls only the first call is told."""
    text = CALL + "\n" + CALL.replace("Rome", "Oslo")
    _, calls, reason, _ = await said(tmp_path, text, parallel_tool_calls=False, stream=stream)
    assert [json.loads(arguments) for _, arguments in calls] == [ARGUMENTS]
    assert reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_named_tool_is_called(gateway: Gateway, stream: bool) -> None:
    """A model of random weights calls just the named tool, with arguments of its schema."""
    choice = {"type": "function", "function": {"name": "weather"}}
    for seed in range(3):
        reply = await chat(
            gateway, tools=[WEATHER, CLOCK], tool_choice=choice, seed=seed, stream=stream
        )
        if stream:
            content, calls, reason, _ = await gathered(reply)
        else:
            message, reason = reply.choices[0].message, reply.choices[0].finish_reason
            content = message.content
            calls = [(c.function.name, c.function.arguments) for c in message.tool_calls]
        assert (content, reason) == (None, "tool_calls")
        ((name, arguments),) = calls
        assert name == "weather"
        assert set(json.loads(arguments)) == {"city", "days"}


async def test_a_call_is_forced_in_deepseeks_format(tmp_path: Path) -> None:
    """A model of random weights writes its marks and its fence, and the call is read."""
    write_chat_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(DEEPSEEK, encoding="utf-8")
    bench = Bench(tokenizer=Tokenizer.load(tmp_path), eos_token_id=2, kv_memory_bytes=1 << 22)
    async with running_gateway(InlineBackend(bench.engine, tmp_path)) as gateway:
        options: Any = {"tool_choice": "required", "parallel_tool_calls": False}
        reply = await chat(gateway, tools=[WEATHER], seed=1, **options)
        (call,) = reply.choices[0].message.tool_calls
        assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
        assert reply.choices[0].message.content is None


@pytest.mark.parametrize("path", ["chat", "responses"])
async def test_only_allowed_tools_are_called(gateway: Gateway, path: str) -> None:
    """The prompt has all tools; a required call is of an allowed one, and auto is refused."""
    create: Any = gateway.openai.chat.completions.create
    names: Any = [{"type": "function", "function": {"name": "weather"}}]
    fields: Any = {"messages": MESSAGES, "tools": [WEATHER, CLOCK]}
    if path == "responses":
        create = gateway.openai.responses.create
        names = [{"type": "function", "name": "weather"}]
        tools = [{"type": "function", **each["function"]} for each in (WEATHER, CLOCK)]
        fields = {"input": "hello", "tools": tools}

    def choice(mode: str) -> Any:
        allowed = {"mode": mode, "tools": names}
        return {"type": "allowed_tools"} | (
            {"allowed_tools": allowed} if path == "chat" else allowed
        )

    for seed in range(3):
        options: Any = {"tool_choice": choice("required"), "parallel_tool_calls": False}
        reply = await create(model=MODEL, **fields, **options, extra_body={"seed": seed})
        calls = reply.output if path == "responses" else reply.choices[0].message.tool_calls
        found = calls[0].name if path == "responses" else calls[0].function.name
        assert found == "weather"
    with pytest.raises(openai.BadRequestError, match="auto") as caught:
        await create(model=MODEL, **fields, tool_choice=choice("auto"))
    assert caught.value.param == "tool_choice"


async def test_some_tool_must_be_called(gateway: Gateway) -> None:
    """With tool_choice required there is always a call, of any of the tools."""
    names = set()
    for seed in range(8):
        reply = await chat(
            gateway,
            tools=[WEATHER, {"type": "function", "function": {"name": "stop", "parameters": {
                "type": "object", "properties": {}, "additionalProperties": False}}}],
            tool_choice="required",
            parallel_tool_calls=False,
            seed=seed,
            temperature=2,
        )  # fmt: skip
        (call,) = reply.choices[0].message.tool_calls
        assert isinstance(json.loads(call.function.arguments), dict)
        names.add(call.function.name)
    assert names == {"weather", "stop"}


async def test_a_call_cut_short_says_length(gateway: Gateway) -> None:
    """max_tokens may cut a forced call: the reason is length, and what came of it is there."""
    reply = await chat(gateway, tools=[WEATHER], tool_choice="required", max_tokens=60, stream=True)
    content, calls, reason, _ = await gathered(reply)
    assert (reason, content) in {("length", None), ("tool_calls", None)}
    assert calls == [] or calls[0][0] == "weather"


async def test_a_format_holds_beside_tools(gateway: Gateway) -> None:
    """With response_format and tools, an answer is a call or follows the schema."""
    schema = {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"],
              "additionalProperties": False}  # fmt: skip
    response_format = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    for seed in range(6):
        reply = await chat(
            gateway, tools=[WEATHER], response_format=response_format, seed=seed, temperature=2
        )
        message = reply.choices[0].message
        if message.tool_calls:
            assert message.tool_calls[0].function.name == "weather"
        else:
            assert set(json.loads(message.content)) == {"x"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [{"type": "retrieval"}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools"),
    ],
    ids=str,
)
async def test_wrong_tools_are_refused_by_name(
    gateway: Gateway, fields: dict[str, Any], param: str
) -> None:
    """Tools that are malformed or missing are a 400 that names the field."""
    with pytest.raises(openai.BadRequestError) as caught:
        await chat(gateway, **fields)
    assert str(caught.value.param).startswith(param)


async def test_a_schema_that_cannot_be_followed_is_a_400(gateway: Gateway) -> None:
    """A forced tool's schema is compiled: strictly if it says strict, else as far as it goes."""
    parameters = {"type": "object", "not": {"required": ["x"]}, "properties": {}}
    function: dict[str, Any] = {"name": "f", "parameters": parameters}
    strict = {"type": "function", "function": function | {"strict": True}}
    with pytest.raises(openai.BadRequestError, match="not"):
        await chat(gateway, tools=[strict], tool_choice="required")
    loose = {"type": "function", "function": function}
    options: dict[str, Any] = {"tool_choice": "required", "max_tokens": 30}
    assert (await chat(gateway, tools=[loose], **options)).choices


@pytest.mark.parametrize(
    ("template", "earlier"),
    [
        (
            HERMES,
            [f"<|im_start|>assistant\n\n{CALL}<|im_end|>", "tool\nsunny of weather<|im_end|>"],
        ),
        (DEEPSEEK, [f"hellowait{DEEPSEEK_CALL}sunny"]),
    ],
)
async def test_calls_and_results_are_shown_to_the_model(
    tmp_path: Path, template: str, earlier: list[str]
) -> None:
    """Earlier calls and results are rendered as the template writes them."""
    write_chat_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(template, encoding="utf-8")
    backend = ScriptedBackend(tmp_path, [["x", FinishReason.STOP]])
    call = {"name": "weather", "arguments": json.dumps(ARGUMENTS)}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": "wait", "tool_calls": []},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    backend.max_model_tokens = 2000
    async with running_gateway(backend) as gateway:
        await chat(gateway, messages=messages, tools=[WEATHER])
    tokens = memoryview(backend.requests[0].token_ids).cast("I").tolist()
    tokenizer = PromptEncoder.load(tmp_path).tokenizer
    shown = tokenizer.decode(tokens, skip_special_tokens=False)
    assert all(text in shown for text in earlier)


async def test_marks_that_are_special_tokens_are_seen(tmp_path: Path) -> None:
    """A mark that decoding leaves out is asked for, and forced as the token that it is."""
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ '' if tools else '' }}"
    write_tool_model(tmp_path, template + "{% if 0 %}<tool_call>{% endif %}")
    file = tmp_path / "tokenizer.json"
    definition = json.loads(file.read_text(encoding="utf-8"))
    definition["added_tokens"].append(
        {
            "id": 317,
            "content": "<tool_call>",
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
    )
    file.write_text(json.dumps(definition), encoding="utf-8")
    async with running_gateway(InlineBackend.load(tmp_path, 1 << 22)) as gateway:
        reply = await chat(
            gateway, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, seed=1
        )
        (call,) = reply.choices[0].message.tool_calls
        assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")


@pytest.mark.parametrize(("order_tool_keys", "n_prompts"), [(True, 1), (False, 2)])
async def test_tools_in_another_key_order_make_the_same_prompt(
    tmp_path: Path, order_tool_keys: bool, n_prompts: int
) -> None:
    """By default two bodies that differ in the key order of a tool's schema share all tokens."""
    write_chat_tokenizer(tmp_path)
    template = "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(template, encoding="utf-8")
    backend = ScriptedBackend(tmp_path, [["x", FinishReason.STOP]] * 2)
    backend.max_model_tokens = 2000
    function = WEATHER["function"]
    turned = {"function": dict(reversed(function.items())), "type": "function"}
    async with running_gateway(backend, order_tool_keys=order_tool_keys) as gateway:
        for tool in (WEATHER, turned):
            await chat(gateway, tools=[tool])
    assert len({request.token_ids for request in backend.requests}) == n_prompts


async def test_a_schema_that_is_no_json_beside_tools_is_a_400(gateway: Gateway) -> None:
    """Tools and a format are put together; what is wrong with the format still has its name."""
    with pytest.raises(openai.BadRequestError) as raised:
        await chat(gateway, tools=[CLOCK], extra_body={"guided_json": "no schema"})
    assert raised.value.param == "guided_json"
