"""The objects that the answers of the Anthropic dialect are made of, and their events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from gateway.api.anthropic_caching import UsageReply
from gateway.api.choice_text import CallStart, Told, arguments_of
from gateway.api.tool_use import JsonObject
from gateway.http import event_frame
from prefixcache.text.tools import CallArguments, Content


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """A block of text."""

    text: str


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: JsonObject


ReplyBlock = TextBlock | ToolUseBlock


class MissReason(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why the cache could not be used as for an earlier answer."""

    type: str
    cache_missed_input_tokens: int | None = None


class Diagnostics(msgspec.Struct, frozen=True):
    """What an answer says of the cache; there is none where nothing differs."""

    cache_miss_reason: MissReason


class MessageReply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer, or the start of one."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ReplyBlock]
    stop_reason: str | None
    stop_sequence: str | None
    diagnostics: Diagnostics | msgspec.UnsetType | None = msgspec.UNSET  # unset: not asked for
    usage: UsageReply


class TokenCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many tokens a prompt has."""

    input_tokens: int


def event(kind: str, **fields: object) -> bytes:
    """Return an event of a stream; its name is told twice, as clients expect."""
    return event_frame(kind, msgspec.json.encode({"type": kind, **fields}))


def blocks_of(told: Iterable[Told]) -> list[ReplyBlock]:
    """Return the blocks of a whole answer.

    Arguments that were cut off in their middle, and so are no JSON, are left empty.
    """
    blocks: list[ReplyBlock] = []
    arguments: dict[int, str] = {}  # by the place of their block
    for each in told:
        match each:
            case Content(text=text) if blocks and isinstance(blocks[-1], TextBlock):
                blocks[-1] = TextBlock(blocks[-1].text + text)
            case Content(text=text):
                blocks.append(TextBlock(text))
            case CallStart():
                blocks.append(ToolUseBlock(tool_id(each.id), each.name, {}))
            case CallArguments(text=text):
                arguments[len(blocks) - 1] = arguments.get(len(blocks) - 1, "") + text
    for place, text in arguments.items():
        block = blocks[place]
        assert isinstance(block, ToolUseBlock)
        blocks[place] = ToolUseBlock(block.id, block.name, arguments_of(text))
    return blocks


def tool_id(call_id: str) -> str:
    """Return a call's id as this dialect's clients know them; others are left as they are."""
    return f"toolu_{call_id.removeprefix('call_')}" if call_id.startswith("call_") else call_id
