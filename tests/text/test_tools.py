"""Tool calls in the formats that models were taught, whole and in any pieces."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixcache.text.tools import (
    CallArguments,
    CallBegin,
    Content,
    Piece,
    ToolFormat,
    canonical,
    format_of,
)
from prefixcache.text.tools.deepseek import DeepSeekFormat, DeepSeekPlainFormat
from prefixcache.text.tools.hermes import HermesFormat
from prefixcache.text.tools.llama import LlamaFormat
from prefixcache.text.tools.mistral import MistralFormat
from prefixcache.text.tools.named import MistralArgsFormat
from prefixcache.text.tools.qwen import QwenFormat

HERMES, LLAMA, MISTRAL = HermesFormat(), LlamaFormat(), MistralFormat()
ARGS, QWEN = MistralArgsFormat(), QwenFormat()
FENCED, PLAIN = DeepSeekFormat(), DeepSeekPlainFormat()
NAMES = ("weather", "clock", "f")
FORMATS: tuple[ToolFormat, ...] = (HERMES, LLAMA, MISTRAL, ARGS, QWEN, FENCED, PLAIN)
ROME = '{"name": "weather", "arguments": {"city": "Rome"}}'
TAGS = "<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>"
OSLO = '{"name": "weather", "parameters": {"city": "Oslo", "in": ["}", "\\"]{"]}}'
D_CALLS, D_CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
D_CALL, D_SEP, D_CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
D_HEAD, D_TAIL = f"{D_CALL}function{D_SEP}weather\n```json\n", f"\n```{D_CALL_END}"
D_ROME, D_OSLO = f'{D_HEAD}{{"city": "Rome"}}{D_TAIL}', f'{D_HEAD}{{"city": "`}}{{"}}{D_TAIL}'
D_PLAIN = f'{D_CALL}weather{D_SEP}{{"city": "Rome"}}{D_CALL_END}'


@dataclass
class Answer:
    """Pieces put together."""

    content: str = ""
    names: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)

    def take(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            match piece:
                case Content(text):
                    assert text
                    self.content += text
                case CallBegin(index, name):
                    assert index == len(self.names)
                    self.names.append(name)
                    self.arguments.append("")
                case CallArguments(index, text):
                    assert index == len(self.names) - 1
                    self.arguments[index] += text

    @property
    def calls(self) -> list[tuple[str, object]]:
        return [(n, json.loads(a)) for n, a in zip(self.names, self.arguments, strict=True)]


def parsed(tool_format: ToolFormat, *texts: str, is_sure: bool = False) -> Answer:
    parser, answer = tool_format.parser(NAMES, is_sure=is_sure), Answer()
    for text in texts:
        answer.take(parser.push(text))
    answer.take(parser.finish())
    return answer


CALLS: list[tuple[ToolFormat, str, str, list[str]]] = [
    (HERMES, f"<tool_call>\n{ROME}\n</tool_call>", "", ["Rome"]),
    (HERMES, f"Sure.\n\n<tool_call>{ROME}</tool_call>", "Sure.", ["Rome"]),
    (HERMES, f"<tool_call>{ROME}</tool_call>\n<tool_call>{OSLO}</tool_call>", "", ["Rome", "Oslo"]),
    (HERMES, f"<tool_call>{ROME}", "", ["Rome"]),
    (HERMES, f"a <tool_call>{ROME}</tool_call> b ", "a b", ["Rome"]),
    (LLAMA, OSLO, "", ["Oslo"]),
    (LLAMA, f"  <|python_tag|>{OSLO}; {ROME}", "", ["Oslo", "Rome"]),
    (LLAMA, f"Then: {ROME}", f"Then: {ROME}", []),
    (MISTRAL, f"[TOOL_CALLS][{ROME}, {OSLO}]", "", ["Rome", "Oslo"]),
    (MISTRAL, f"Sure. [TOOL_CALLS] [{ROME}]", "Sure.", ["Rome"]),
    (MISTRAL, f"[{ROME}]", f"[{ROME}]", []),
    (ARGS, '[TOOL_CALLS]weather[ARGS]{"city": "Rome"}', "", ["Rome"]),
    (ARGS, 'Sure. [TOOL_CALLS] weather[ARGS] {"city": "}["} so', "Sure. so", ["}["]),
    (ARGS, '[TOOL_CALLS]weather[ARGS]{"city": "a"}' * 2, "", ["a", "a"]),
    (ARGS, 'weather[ARGS]{"city": "Rome"}', 'weather[ARGS]{"city": "Rome"}', []),
    (FENCED, f"{D_CALLS}{D_ROME}{D_CALLS_END}", "", ["Rome"]),
    (FENCED, f"Sure.\n{D_CALLS}{D_ROME}\n{D_OSLO}{D_CALLS_END} so ", "Sure. so", ["Rome", "`}{"]),
    (FENCED, f'{D_CALLS}{D_HEAD}{{"city": "Rome"}}', "", ["Rome"]),
    (FENCED, f"{D_ROME}{D_OSLO}", "", ["Rome", "`}{"]),
    (FENCED, f'a {D_CALLS}\n{D_HEAD}{{"city": "Rome"}}\n``', "a", ["Rome"]),
    (PLAIN, f"{D_CALLS}{D_PLAIN}{D_PLAIN}{D_CALLS_END}", "", ["Rome", "Rome"]),
    (PLAIN, f"So: {D_CALLS}{D_PLAIN}", "So:", ["Rome"]),
    (PLAIN, f"{D_CALLS}so {D_PLAIN}", f"{D_CALLS}so", ["Rome"]),
]  # fmt: skip


@pytest.mark.parametrize(("tool_format", "text", "content", "cities"), CALLS)
@pytest.mark.parametrize("is_sure", [False, True])
def test_calls_are_found(
    tool_format: ToolFormat, text: str, content: str, cities: list[str], is_sure: bool
) -> None:
    """Each format's calls come out with name and arguments, and the rest as content."""
    answer = parsed(tool_format, text, is_sure=is_sure)
    assert answer.content == content
    assert [(name, value["city"]) for name, value in answer.calls] == [  # type: ignore[index]
        ("weather", city) for city in cities
    ]


MALFORMED = [
    '{"name": "f", "arguments": {"a": }}',
    '{"name": "f", "arguments": [1]}',
    '{"name": "f", "arguments": {"a": NaN}}',
    '{"name": "", "arguments": {}}',
    '{"name": 5, "arguments": {}}',
    '{"arguments": {}}',
    '{"name": "f", "arguments": {"a": 1}',
    '{"a": 1}',
    "{}",
    "not json",
    '"f"',
    "",
    '{"name": "f", "arguments": "[1"}',
    '{"a": ' * 3000 + "1" + "}" * 3000,
    '{"name": "f", "arguments": {"a": "\\ud83d"}}',  # half a pair: no JSON reply can hold it
    '{"name": "f\\udc00", "arguments": {}}',
    '{"name": "f", "arguments": {"a": 1e999}}',
]


@pytest.mark.parametrize("body", MALFORMED, ids=range(len(MALFORMED)))
def test_what_is_no_call_is_content_in_full(body: str) -> None:
    """A malformed call comes out as it was written, marks included."""
    for tool_format, text in (
        (HERMES, f"Well.\n<tool_call>\n{body}\n</tool_call>"),
        (HERMES, f"<tool_call>{body}"),
        (LLAMA, f"  {body} and more"),
        (LLAMA, f"<|python_tag|>{body}"),
        (MISTRAL, f"[TOOL_CALLS][{body}]"),
        (MISTRAL, f"[TOOL_CALLS] {body}, "),
        (ARGS, f"Well. [TOOL_CALLS]{body}[ARGS]{body}"),
        (ARGS, f"[TOOL_CALLS]a b[ARGS]{{}} {body}"),
        (FENCED, f"Well. {D_CALLS}{D_HEAD}[{body}{D_TAIL}{D_CALLS_END}"),
        (FENCED, f"{D_CALLS}{D_CALL}function{D_SEP}f\n```json\n[{body}]{D_CALL_END}"),
        (PLAIN, f"{D_CALLS}{D_CALL}f g{D_SEP}{body}{D_CALL_END}{D_CALLS_END}"),
        (QWEN, f"<tool_call>\n{body}\n</tool_call>"),
        (QWEN, f"<tool_call><function=f>{body}x</function></tool_call>"),
        (QWEN, f"<tool_call><function=f><parameter=a>{body}</function>"),
    ):
        answer = parsed(tool_format, text)
        assert (answer.content, answer.names) == (text, [])


QWEN_CALLS: list[tuple[str, str, list[tuple[str, object]]]] = [
    (f"<tool_call>\n{TAGS}\n</tool_call>", "", [("weather", {"city": "Rome"})]),
    (f"Well.\n<tool_call>{TAGS}</tool_call> so ", "Well. so", [("weather", {"city": "Rome"})]),
    (f"<tool_call>\n{TAGS}", "", [("weather", {"city": "Rome"})]),
    ("<tool_call><function=clock>\n</function></tool_call>", "", [("clock", {})]),
    (
        "<tool_call><function=clock><parameter=n>5</parameter><parameter=s>5</parameter>"
        "<parameter=o>\n{\"a\": [null]}\n</parameter><parameter=t>\na\n\n<b>\n</parameter>"
        "</function></tool_call>",
        "",
        [("clock", {"n": 5, "s": "5", "o": {"a": [None]}, "t": "a\n\n<b>"})],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "content", "calls"), QWEN_CALLS)
def test_calls_in_tags_are_found(text: str, content: str, calls: list[tuple[str, object]]) -> None:
    """Each parameter has its tag; a text stays text where its schema says so, else JSON is read."""
    schemas = {"clock": {"properties": {"s": {"type": "string"}}}, "weather": {}}
    for pieces in ([text], list(text)):
        parser, answer = QWEN.parser(schemas, is_sure=False), Answer()
        for piece in pieces:
            answer.take(parser.push(piece))
        answer.take(parser.finish())
        assert (answer.content, answer.calls) == (content, calls)


def test_sure_calls_with_their_name_in_front_are_told_as_they_come() -> None:
    """The name is told with its mark, and what is cut short keeps what came."""
    parser = ARGS.parser(NAMES, is_sure=True)
    assert parser.push("[TOOL_CALLS]f[ARG") == []
    assert parser.push('S]{"a": [') == [CallBegin(0, "f"), CallArguments(0, '{"a": [')]
    assert parser.push('1]}[TOOL_CALLS]f[ARGS]{"') == [
        CallArguments(0, "1]}"),
        CallBegin(1, "f"),
        CallArguments(1, '{"'),
    ]
    assert parser.finish() == []


def test_a_bad_call_after_a_good_one_is_content() -> None:
    """What was well formed stays a call."""
    text = f"<tool_call>{ROME}</tool_call>\n<tool_call>{{bad}}</tool_call>"
    answer = parsed(HERMES, text)
    assert [name for name, _ in answer.calls] == ["weather"]
    assert answer.content.strip() == "<tool_call>{bad}</tool_call>"


def test_sure_calls_are_told_as_they_come() -> None:
    """Where calls must be well formed, the name and each bit of arguments do not wait."""
    parser = HERMES.parser(NAMES, is_sure=True)
    head, tail = HERMES.call("weather")
    assert parser.push(head) == []
    assert parser.push('{"ci') == [CallBegin(0, "weather"), CallArguments(0, '{"ci')]
    assert parser.push('ty": "R') == [CallArguments(0, 'ty": "R')]
    assert parser.push('ome"}' + tail) == [CallArguments(0, 'ome"}')]
    assert parser.finish() == []


def test_a_sure_call_that_is_cut_short_keeps_what_came() -> None:
    """When max_tokens ends a call, the client has its beginning, as with OpenAI."""
    answer = parsed(MISTRAL, "[TOOL_CALLS][" + MISTRAL.call("f")[0] + '{"a": [1, ', is_sure=True)
    assert (answer.content, answer.names, answer.arguments) == ("", ["f"], ['{"a": [1, '])


@pytest.mark.parametrize("tool_format", FORMATS, ids=lambda each: type(each).__name__)
def test_what_is_left_of_a_further_sure_call_is_no_content(tool_format: ToolFormat) -> None:
    """Cut anywhere after a whole call, an answer has the calls that were begun and no text."""
    head, tail = tool_format.call("f")
    before, between, _ = tool_format.around()
    first = f"{before}{head}{{}}{tail}"
    further = f"{between}{head}"
    for n_characters in range(len(further)):
        answer = parsed(tool_format, first + further[:n_characters], is_sure=True)
        assert answer.content == ""
        assert answer.calls[0] == ("f", {})


def test_arguments_written_as_a_text_are_read() -> None:
    """Some models put the object into a string; parameters may be missing."""
    body = '{"name": "f", "arguments": "{\\"a\\": 1}"}'
    assert parsed(LLAMA, body).calls == [("f", {"a": 1})]
    assert parsed(LLAMA, '{"name": "f"}').calls == [("f", {})]


@pytest.mark.parametrize("is_sure", [False, True])
@pytest.mark.parametrize("body", ['{"name": "Bob"}', '{"name": "Bob", "parameters": {"a": 1}}'])
def test_an_object_that_names_no_tool_is_content(body: str, is_sure: bool) -> None:
    """Where calls have no mark, an answer that merely has a name is not one; with a mark it is."""
    assert parsed(LLAMA, body, is_sure=is_sure).content == body
    assert parsed(HERMES, f"<tool_call>{body}</tool_call>", is_sure=is_sure).names == ["Bob"]


FRAGMENTS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<tool", "[TOOL_CALLS]", "[", "]", "<|python_tag|>"),
        *("f[ARGS]", "[ARGS]{}", "<function=f>", "</function>", "<parameter=a>", "</parameter>"),
        *("{", "}", '"', "\\", "\n", " ", "text", ", ", "; ", "[TOO", ROME, OSLO),
        *(D_CALLS, D_CALL, D_CALL_END, D_SEP, "<｜tool▁call", D_HEAD, D_TAIL, D_PLAIN, "```"),
        '{"name": "f", "arguments": {}}',
    ]
)


@pytest.mark.parametrize("tool_format", FORMATS)
@given(fragments=st.lists(FRAGMENTS, max_size=9), cuts=st.lists(st.integers(1, 5)))
def test_pieces_do_not_depend_on_the_cuts(
    tool_format: ToolFormat, fragments: list[str], cuts: list[int]
) -> None:
    """However the text is cut, contents and calls are the same; without a call all is content."""
    text = "".join(fragments)
    pieces, rest = [], text
    for cut in [*cuts, len(text) + 1]:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    whole = parsed(tool_format, text)
    assert parsed(tool_format, *pieces) == whole
    assert parsed(tool_format, *text) == whole
    assert whole.names or whole.content == text


def test_text_is_held_back_only_while_it_may_be_a_call() -> None:
    """Ordinary text passes at once, but for white space and the start of a mark."""
    parser = HERMES.parser(NAMES, is_sure=False)
    assert parser.push("The answer") == [Content("The answer")]
    assert parser.push(" is <") == [Content(" is")]
    assert parser.push("5") == [Content(" <5")]


@pytest.mark.parametrize(
    ("literals", "kind"),
    [
        (["<tool_call>\n", "{'name'"], HermesFormat),
        (['{"name": function name, "parameters": dictionary}'], LlamaFormat),
        (["x<|python_tag|>"], LlamaFormat),
        (["[AVAILABLE_TOOLS]", "[TOOL_CALLS]"], MistralFormat),
        (["<tool_call>", "<function=example>"], type(None)),
        (["<tool_call>\n<function=", "<parameter="], QwenFormat),
        (["[TOOL_CALLS]", "[ARGS]"], MistralArgsFormat),
        (["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"], type(None)),
        ([f"{D_CALLS}{D_CALL}", D_SEP, "```json"], DeepSeekFormat),
        ([f"{D_CALLS}{D_CALL}", D_SEP], DeepSeekPlainFormat),
        (["<｜DSML｜function_calls>"], type(None)),
        (["<|im_start|>"], type(None)),
    ],
)
def test_the_template_tells_the_format(literals: list[str], kind: type) -> None:
    """The format is the one whose marks the template writes; unknown ones are none."""
    assert type(format_of(literals)) is kind


def test_equal_tools_have_one_order() -> None:
    """Objects that differ in key order alone become the same text; arrays keep their order."""
    first = {"type": "function", "function": {"name": "f", "parameters": {"b": [2, 1], "a": {}}}}
    second = {"function": {"parameters": {"a": {}, "b": [2, 1]}, "name": "f"}, "type": "function"}
    assert json.dumps(canonical(first)) == json.dumps(canonical(second))
    assert list(canonical(second)) == ["type", "function"]  # type: ignore[call-overload]
    other = {"type": "function", "function": {"name": "f", "parameters": {"b": [1, 2], "a": {}}}}
    assert canonical(other) != canonical(first)
