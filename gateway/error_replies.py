"""The objects that tell of an error, as the clients of each dialect look for them."""

from __future__ import annotations

from typing import Literal

import msgspec


class ErrorObject(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong, in OpenAI's words."""

    message: str
    type: str
    param: str | None  # the field at fault
    code: str | None


class ErrorReply(msgspec.Struct, frozen=True, kw_only=True):
    """The envelope that OpenAI's clients look for errors in."""

    error: ErrorObject


class AnthropicError(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong, in Anthropic's words."""

    type: str
    message: str


class AnthropicErrorReply(msgspec.Struct, frozen=True, kw_only=True):
    """The envelope that Anthropic's clients look for errors in."""

    type: Literal["error"] = "error"
    error: AnthropicError
    request_id: str


class GoogleErrorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The cause of an error as google.rpc.ErrorInfo has it."""

    type: str = msgspec.field(name="@type", default="type.googleapis.com/google.rpc.ErrorInfo")
    reason: str
    metadata: dict[str, str]


class GoogleError(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong, in Google's words."""

    code: int  # the HTTP status
    message: str
    status: str
    details: list[GoogleErrorInfo]


class GoogleErrorReply(msgspec.Struct, frozen=True, kw_only=True):
    """The envelope that Google's clients look for errors in."""

    error: GoogleError
