"""Messages and plain text to the token ids of a prompt."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from prefixcache.errors import PromptTooLongError, TemplateError
from prefixcache.text.call_shape import CallShape, call_shape
from prefixcache.text.control import ControlTokens, Message
from prefixcache.text.history import History
from prefixcache.text.marks import Mark, fixed_tokens
from prefixcache.text.template import ChatTemplate, Clock, TemplateOption
from prefixcache.text.tokenizer import Tokenizer
from prefixcache.text.tools import canonical, format_of

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class PromptEncoder:
    """Turns requests into prompts. Safe to use from many threads at once."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self.tokenizer = tokenizer
        self._template = template
        self._control = ControlTokens(tokenizer, template.literals)
        self.tool_format = format_of(template.literals)  # None: the model was taught none
        # found when a call first comes back: a template may take its time
        self._calls: Callable[[], CallShape] = cache(partial(call_shape, template))

    @classmethod
    def load(cls, folder: Path, *, now: Clock = datetime.now) -> PromptEncoder:
        """Read the tokenizer and the chat template of a model folder; `now` dates the prompts.

        A model without a chat template still encodes plain text.

        Raises:
            ModelError: there is no tokenizer, or a file cannot be read.
            TemplateError: the template is not well formed.
        """
        return cls(Tokenizer.load(folder), ChatTemplate.load(folder, now=now))

    def with_options(self, options: Mapping[str, TemplateOption]) -> PromptEncoder:
        """Return the same encoder, whose template finds `options` by name (enable_thinking, say).

        Raises:
            TemplateError: a name stands for something else already, or a text spells a control
                token: the template would write it as one.
        """
        texts = {name: value for name, value in options.items() if isinstance(value, str)}
        for name, text in texts.items():
            if self._control.is_spelled_in(text):
                raise TemplateError(f"{name!r} spells a control token; say something else")
        other = copy.copy(self)
        other._template = self._template.with_options(options)
        other._control = self._control.beside(texts.values())
        return other

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[object] | None = None,
        order_tool_keys: bool = False,
        continue_last: bool = False,
        add_generation_prompt: bool = True,
        max_characters: int | None = None,
    ) -> list[int]:
        """Return the ids of a conversation. Arguments, errors and cost are those of `prompt`."""
        prompt = self.prompt(
            messages,
            tools=tools,
            order_tool_keys=order_tool_keys,
            continue_last=continue_last,
            add_generation_prompt=add_generation_prompt,
            max_characters=max_characters,
        )
        return prompt.token_ids

    def prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[object] | None = None,
        order_tool_keys: bool = False,
        continue_last: bool = False,
        add_generation_prompt: bool = True,
        max_characters: int | None = None,
        history: History | None = None,
    ) -> ChatPrompt:
        """Return a conversation's prompt, up to where the assistant's next turn begins.

        With `continue_last` the last message is the assistant's and not over: the prompt ends
        with its content, white space and all. Without `add_generation_prompt` it ends where the
        last message does.

        No message is dropped or moved. The role `developer` is read as `system`. A content
        that is a list of text parts is their texts, joined with nothing between. Fields that
        are None are left out. Calls of earlier turns come in the form that the template takes. With
        `order_tool_keys`, tools that differ in the order of keys alone give the same ids. Special
        tokens are those that the template writes, and whatever spells a control token in messages
        or tools is encoded as plain text; without such spellings the ids are those of transformers'
        `apply_chat_template`. Where the prompt begins with a text that `history` knows, it begins
        with the ids that this text was.

        Raises:
            PromptTooLongError: all texts together, or what the template makes of them, have more
                than `max_characters`; any other value counts as one. Nothing was tokenized.
            TemplateError: a message is malformed, or the template refused it or is missing.
            TextError: a text holds half of a surrogate pair.

        Cost: linear in the prompt. It blocks for milliseconds to seconds: not for an event loop.
        """
        if not messages:
            raise TemplateError("there are no messages; send at least one")
        prepared = [_prepared(message, f"messages[{i}]") for i, message in enumerate(messages)]
        try:
            _check(_n_characters([prepared, tools]), max_characters)
            if order_tool_keys and tools is not None:
                tools = [canonical(tool) for tool in tools]
            shaped = [self._shaped(fields) for fields in prepared]
            guarded = self._control.guarded(shaped, tools)
        except RecursionError as error:
            deepest = "tools" if _depth(tools) > _depth(prepared) else "messages"
            raise TemplateError("nested too deeply", deepest) from error
        render = self._continued if continue_last else self._template.render
        if guarded is None:
            prompt = render(shaped, tools=tools, add_generation_prompt=add_generation_prompt)
            _check(len(prompt), max_characters)
            return ChatPrompt(self._encoded(prompt, None, history), prompt)
        prompt = render(
            guarded.messages, tools=guarded.tools, add_generation_prompt=add_generation_prompt
        )
        _check(len(prompt) - prompt.count(guarded.mark), max_characters)
        return ChatPrompt(self._encoded(prompt, guarded.mark, history), prompt, guarded.mark)

    def marked_chat(
        self,
        messages: Sequence[Message],
        marks: Sequence[Mark],
        *,
        tools: Sequence[object] | None = None,
        order_tool_keys: bool = False,
        continue_last: bool = False,
        max_characters: int | None = None,
        history: History | None = None,
    ) -> MarkedPrompt:
        """Return the ids of a conversation and how many of them each of `marks` fixes.

        Raises: as `prompt`.

        Cost: as `prompt`, and for each different mark that of the conversation up to it.
        """
        prompt = self.prompt(
            messages,
            tools=tools,
            order_tool_keys=order_tool_keys,
            continue_last=continue_last,
            max_characters=max_characters,
            history=history,
        )

        def encode(other: Sequence[Message], tools: Sequence[object] | None) -> list[int]:
            cut = self.prompt(other, tools=tools, order_tool_keys=order_tool_keys, history=history)
            return cut.token_ids

        ids = prompt.token_ids
        fixed = {mark: fixed_tokens(ids, messages, tools, mark, encode) for mark in set(marks)}
        return MarkedPrompt(*prompt, tuple(fixed[mark] for mark in marks))

    def text(
        self,
        text: str,
        *,
        max_characters: int | None = None,
        add_special_tokens: bool = True,
    ) -> list[int]:
        """Return the ids of a plain prompt, with the tokens that the model puts around any text.

        It is trusted: spellings of control tokens in it are control tokens.

        Raises:
            PromptTooLongError: it has more than `max_characters`; nothing was tokenized.
            TextError: `text` holds half of a surrogate pair.
        """
        _check(len(text), max_characters)
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def _encoded(self, prompt: str, mark: str | None, history: History | None) -> list[int]:
        known: list[int] = []
        if history is not None:
            places = [start for start, _ in self.tokenizer.added_places(prompt)]
            start = history.longest(prompt, places, mark)
            if start is not None:
                known, prompt = list(start.token_ids), prompt[len(start.text) :]
        if mark is None:
            return known + self.tokenizer.encode(prompt, add_special_tokens=False)
        return known + self._control.encode(prompt, mark)

    def _shaped(self, fields: dict[str, object]) -> dict[str, object]:
        return self._calls().shaped(fields) if fields.get("tool_calls") else fields

    def _continued(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[object] | None,
        add_generation_prompt: bool,
    ) -> str:
        """Return the text of a prompt that is cut off where its last content ends."""
        *before, last = messages
        if last.get("role") != "assistant":
            raise TemplateError("only a turn of the assistant's can go on")
        end = _unused(messages)
        going_on = [*before, {**last, "content": f"{last.get('content') or ''}{end}"}]
        prompt = self._template.render(going_on, tools=tools, add_generation_prompt=False)
        if end not in prompt:
            raise TemplateError("the chat template does not show the turn that is to go on")
        return prompt[: prompt.rindex(end)]


class ChatPrompt(NamedTuple):
    """A conversation's prompt: its ids, and the text that they were made of."""

    token_ids: list[int]
    text: str
    mark: str | None = None  # a character that breaks up what must stay text in it


class MarkedPrompt(NamedTuple):
    """The same, and how many of its tokens are fixed by what comes before each mark."""

    token_ids: list[int]
    text: str
    mark: str | None
    fixed_tokens: tuple[int, ...]


def _unused(messages: Sequence[Message]) -> str:
    """Return a character for private use that is in none of the contents."""
    used = set().union(*(str(message.get("content", "")) for message in messages))
    for code in range(0xE000, 0xF900):
        if chr(code) not in used:
            return chr(code)
    raise TemplateError("the messages use every character that is for private use")


def _check(n_characters: int, max_characters: int | None) -> None:
    if max_characters is not None and n_characters > max_characters:
        raise PromptTooLongError(n_characters, max_characters)


def _n_characters(value: object) -> int:
    """Return the characters of all texts in a JSON-like value; what is no text counts as one."""
    total = 0
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            total += len(value)
            continue
        if isinstance(value, (dict, Mapping)):  # by its type first: to ask an ABC takes longer
            waiting += value.keys()
            waiting += value.values()
        elif isinstance(value, (list, Sequence)):
            waiting += value
        total += 1
    return total


def _depth(value: object) -> int:
    """Return how many levels of objects and lists are in one another."""
    level, n_levels = [value], 0
    while level := [inner for outer in level for inner in _inside(outer)]:
        n_levels += 1
    return n_levels


def _inside(value: object) -> Iterable[object]:
    match value:
        case str():
            return ()
        case Mapping():
            return value.values()
        case Sequence():
            return value
    return ()


def _prepared(message: Message, place: str) -> dict[str, object]:
    """Return `message`, which is told of as `place`, as templates expect it."""
    if not isinstance(message, (dict, Mapping)):
        raise TemplateError(f"a message is an object, not {type(message).__name__}", place)
    fields = {name: value for name, value in message.items() if value is not None}
    fields["role"] = _role(fields.get("role"), f"{place}.role")
    if "content" in fields:
        fields["content"] = _joined(fields["content"], f"{place}.content")
    return fields


def _role(role: object, place: str) -> str:
    if role not in ROLES:
        raise TemplateError(f"role {role!r} is unknown; known are {', '.join(ROLES)}", place)
    return "system" if role == "developer" else str(role)


def _joined(content: object, place: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise TemplateError("a message's content is a text or a list of text parts", place)
    return "".join(_part_text(part, f"{place}[{i}]") for i, part in enumerate(content))


def _part_text(part: object, place: str) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": str(kind)} if kind != "text":
            reason = f"content parts of type {kind!r} are not supported; send text"
            raise TemplateError(reason, place)
    raise TemplateError('a content part is {"type": "text", "text": "..."}', place)
