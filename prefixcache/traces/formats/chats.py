"""Traces with text: OpenAI-style request logs, LMCache agent logs and ShareGPT conversations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from prefixcache.errors import PrefixCacheError
from prefixcache.index import pack
from prefixcache.traces.formats.arrays import read_array
from prefixcache.traces.formats.rows import Count, decode, read_rows
from prefixcache.traces.reading import Reading, RowError
from prefixcache.traces.records import TracePrompt, TraceRequest
from prefixcache.traces.texts import BlockDigests, StandIn, TextEncoder

BLOCK_TOKENS = 16  # where no option says otherwise

_ROLES = {"human": "user", "user": "user", "system": "system", "tool": "tool", "function": "tool"}
_ANSWERERS = frozenset({"gpt", "assistant", "chatgpt", "bard", "bing"})


class _Usage(msgspec.Struct):
    completion_tokens: Count | None = None


class _Body(msgspec.Struct):
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    model: str | None = None


class _ChatRow(msgspec.Struct):
    """A body, or a line of a log with the body inside."""

    body: _Body | None = None
    request: _Body | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    model: str | None = None
    timestamp: float | msgspec.UnsetType = msgspec.UNSET
    session_id: str | int | None = None
    tenant: str | None = None
    output_length: Count | None = None
    usage: _Usage | None = None


class _AgentRow(msgspec.Struct):
    input: str
    timestamp: float
    output: str | None = None
    session_id: str | int | None = None


class _Turn(msgspec.Struct):
    from_: str = msgspec.field(name="from")
    value: str = ""


class _ShareGpt(msgspec.Struct):
    conversations: list[_Turn]
    id: str | int | None = None


class _Texts:
    """The prompts of a reading as block ids."""

    def __init__(self, reading: Reading) -> None:
        self.encoder: TextEncoder = reading.options.encoder or StandIn()
        self.digests = BlockDigests(reading.options.block_tokens or BLOCK_TOKENS)
        self._keeps = reading.options.keep_prompts

    def chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[object] | None
    ) -> list[int]:
        """Return a conversation's tokens. Raises RowError: the template refuses it."""
        try:
            return self.encoder.chat(messages, tools=tools)
        except PrefixCacheError as error:
            raise RowError(str(error)) from error

    def text(self, text: str) -> list[int]:
        """Return a text's tokens. Raises RowError: it is no Unicode."""
        try:
            return self.encoder.text(text)
        except PrefixCacheError as error:
            raise RowError(str(error)) from error

    def request(
        self,
        seconds: float,
        tokens: list[int],
        n_output: int,
        *,
        text: str | None = None,
        messages: Sequence[Mapping[str, Any]] = (),
        tools: Sequence[object] | None = None,
        conversation: str | None = None,
        tenant: str | None = None,
        model: str | None = None,
    ) -> TraceRequest:
        """Return the request of a tokenized prompt; its last part of a block has no id."""
        packed = pack(tokens)
        return TraceRequest(
            seconds,
            len(tokens),
            n_output,
            self.digests.ids(packed),
            self.digests.block_tokens,
            conversation,
            tenant,
            model,
            prompt=TracePrompt(packed, text, tuple(messages), tools) if self._keeps else None,
        )


def read_chat_log(path: Path, reading: Reading) -> Iterator[TraceRequest]:
    """Yield the requests of a log of chat bodies, one a line: bare, or under `body` or `request`.

    `timestamp`, `session_id`, `tenant`, `output_length` and `usage` may stand beside them.
    """
    texts = _Texts(reading)

    def convert(row: _ChatRow, reading: Reading) -> TraceRequest:
        body = row.body or row.request
        if body is None:
            if row.messages is None:
                raise RowError("it has no messages: neither `messages`, nor a `body` or `request`")
            body = _Body(row.messages, row.tools, row.model)
        tokens = texts.chat(body.messages, body.tools)
        seconds = reading.seconds(
            None if isinstance(row.timestamp, msgspec.UnsetType) else row.timestamp
        )
        n_output = row.output_length
        if n_output is None and row.usage is not None:
            n_output = row.usage.completion_tokens
        return texts.request(
            seconds,
            tokens,
            reading.count(n_output, "output_length"),
            messages=body.messages,
            tools=body.tools,
            conversation=None if row.session_id is None else str(row.session_id),
            tenant=row.tenant,
            model=body.model,
        )

    return read_rows(path, reading, _ChatRow, convert, shows_values=False)


def read_agent_log(path: Path, reading: Reading) -> Iterator[TraceRequest]:
    """Yield the requests of an LMCache agent log; its prompts are plain text.

    Source: github.com/LMCache/lmcache-agent-trace.
    """
    texts = _Texts(reading)

    def convert(row: _AgentRow, reading: Reading) -> TraceRequest:
        tokens = texts.text(row.input)
        n_output = None if row.output is None else len(texts.text(row.output))
        session = path.name if row.session_id is None else str(row.session_id)
        return texts.request(
            reading.seconds(row.timestamp),
            tokens,
            reading.count(n_output, "output"),
            text=row.input,
            conversation=session,
        )

    return read_rows(path, reading, _AgentRow, convert, shows_values=False)


def read_sharegpt(path: Path, reading: Reading) -> Iterator[TraceRequest]:
    """Yield a request for each answer of each conversation: all messages before it.

    There are no times: requests come a second apart, a conversation after the other.

    Raises:
        TraceError: the file is no JSON array of objects.
    """
    texts, decoder = _Texts(reading), msgspec.json.Decoder(_ShareGpt)
    for number, item in enumerate(read_array(path, reading.progress), start=1):
        place = str(number)
        reading.report.rows_read += 1
        try:
            found = list(_answers(decode(decoder, item, shows_values=False), texts, reading, place))
        except RowError as error:
            reading.skip(path, place, str(error))
            continue
        reading.report.rows_used += 1
        yield from found


def _answers(
    conversation: _ShareGpt, texts: _Texts, reading: Reading, number: str
) -> Iterator[TraceRequest]:
    name = number if conversation.id is None else str(conversation.id)
    messages: list[dict[str, str]] = []
    for turn in conversation.conversations:
        if turn.from_ in _ANSWERERS:
            if messages:
                tokens, n_output = texts.chat(messages, None), len(texts.text(turn.value))
                yield texts.request(
                    reading.seconds(None),
                    tokens,
                    n_output,
                    messages=messages,
                    conversation=name,
                )
            messages.append({"role": "assistant", "content": turn.value})
        elif turn.from_ in _ROLES:
            messages.append({"role": _ROLES[turn.from_], "content": turn.value})
        else:
            raise RowError("it has a message from somebody unknown")
