"""The events of a response's stream. Each has a number, and its type on a line of its own."""

from __future__ import annotations

import msgspec

from gateway.api.openai_scores import ChatToken
from gateway.api.responses_replies import OutputItem, OutputText, Response


class ResponseEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What all of them have."""

    sequence_number: int


class Created(ResponseEvent, frozen=True, kw_only=True, tag="response.created"):
    """First of all."""

    response: Response


class InProgress(ResponseEvent, frozen=True, kw_only=True, tag="response.in_progress"):
    """The prompt is read, or waits to be."""

    response: Response


class ItemAdded(ResponseEvent, frozen=True, kw_only=True, tag="response.output_item.added"):
    """An item begins."""

    output_index: int
    item: OutputItem


class ItemDone(ResponseEvent, frozen=True, kw_only=True, tag="response.output_item.done"):
    """An item is whole."""

    output_index: int
    item: OutputItem


class PartAdded(ResponseEvent, frozen=True, kw_only=True, tag="response.content_part.added"):
    """A message's text begins."""

    item_id: str
    output_index: int
    content_index: int = 0
    part: OutputText


class PartDone(ResponseEvent, frozen=True, kw_only=True, tag="response.content_part.done"):
    """A message's text is whole."""

    item_id: str
    output_index: int
    content_index: int = 0
    part: OutputText


class TextDelta(ResponseEvent, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """More of a message's text."""

    item_id: str
    output_index: int
    content_index: int = 0
    delta: str
    logprobs: list[ChatToken] = []


class TextDone(ResponseEvent, frozen=True, kw_only=True, tag="response.output_text.done"):
    """All of a message's text."""

    item_id: str
    output_index: int
    content_index: int = 0
    text: str
    logprobs: list[ChatToken] = []


class ArgumentsDelta(
    ResponseEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"
):
    """More of a call's arguments."""

    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(
    ResponseEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.done"
):
    """All of a call's arguments."""

    item_id: str
    output_index: int
    arguments: str


class Completed(ResponseEvent, frozen=True, kw_only=True, tag="response.completed"):
    """Last of all."""

    response: Response


class Incomplete(ResponseEvent, frozen=True, kw_only=True, tag="response.incomplete"):
    """Last of all, where the answer was cut short."""

    response: Response


class ResponseFailed(ResponseEvent, frozen=True, kw_only=True, tag="response.failed"):
    """Last of all, where the answer broke off."""

    response: Response


DELTAS = (TextDelta, ArgumentsDelta)  # what is padded, if the client asks for that
