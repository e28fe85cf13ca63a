"""The request bodies of the Anthropic dialect. Null is the same as left out, everywhere.

Fields that are not named here are ignored; the manual's page says which those are. Those that
would change the answer and are not built are named here, so that they can be refused.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.api.bodies import Salt
from gateway.api.named_prompts import NamedPrompt
from gateway.api.tool_use import JsonObject

Name = Annotated[str, Meta(min_length=1, max_length=128)]
Share = Annotated[float, Meta(ge=0, le=1)]
StopText = Annotated[str, Meta(min_length=1, max_length=1024)]


class CacheControl(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the prompt up to here to be kept."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None  # None: 5m


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A block of content, of any kind; which fields it needs follows from `type`."""

    type: str
    text: str | None = None
    id: str | None = None  # of a tool_use
    name: str | None = None
    input: JsonObject | None = None
    tool_use_id: str | None = None  # of a tool_result
    content: str | list[Block] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a conversation; `system` is one in its middle."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of the client's. Tools of the vendor's have another type, and are refused by it."""

    name: Name
    type: str | None = None
    description: str | None = None
    input_schema: JsonObject | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Whether tools are called."""

    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None  # with `tool`
    disable_parallel_tool_use: bool | None = None


class OutputFormat(msgspec.Struct, frozen=True, kw_only=True):
    """What the answer's text follows."""

    type: Literal["json_schema"]
    schema: JsonObject


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How the answer looks; `effort` is passed over."""

    format: OutputFormat | None = None


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    """Passed over: the answer has no thinking blocks."""

    type: str


class DiagnosticsAsked(msgspec.Struct, frozen=True, kw_only=True):
    """Asks why the cache could not be used as for an earlier answer."""

    previous_message_id: str | None = None


class PromptBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/messages/count_tokens: what makes a prompt."""

    model: str
    messages: Annotated[list[Message], Meta(min_length=1)]
    system: str | list[Block] | None = None
    tools: list[Tool] | None = None
    prompt: NamedPrompt | None = None  # extension: a published one, in place of system and tools
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    cache_salt: Salt | None = None  # extension; missing is the tenant's default
    container: str | JsonObject | None = None
    mcp_servers: list[JsonObject] | None = None


class MessagesBody(PromptBody, frozen=True, kw_only=True):
    """POST /v1/messages."""

    max_tokens: Annotated[int, Meta(ge=0)]  # 0: the prompt is read and kept, nothing is said
    stream: bool | None = None
    stop_sequences: list[StopText] | None = None
    temperature: Share | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    diagnostics: DiagnosticsAsked | None = None
    metadata: JsonObject | None = None  # read by nobody


MESSAGES_DECODER = msgspec.json.Decoder(MessagesBody)
PROMPT_DECODER = msgspec.json.Decoder(PromptBody)
