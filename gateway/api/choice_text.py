"""An answer's text taken apart, for every dialect: content and tool calls, as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from gateway.api.tool_use import JsonObject, ToolUse
from prefixcache.text.tools import CallArguments, CallBegin, Content, Piece


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins, under an id of its own; its arguments follow."""

    index: int  # of the call in the answer, from 0
    id: str
    name: str


Told = Content | CallStart | CallArguments


class ChoiceText:
    """Takes one choice's text apart as it comes."""

    def __init__(self, use: ToolUse, new_id: Callable[[], str]) -> None:
        self._use = use
        self._new_id = new_id
        self._parser = None
        if use.format is not None:
            self._parser = use.format.parser(use.names, is_sure=use.is_sure)
        self._n_calls = 0

    @property
    def has_calls(self) -> bool:
        """Whether a call was told."""
        return self._n_calls > 0

    @property
    def is_content(self) -> bool:
        """Whether all text is told as it comes: there can be no calls in it."""
        return self._parser is None

    def push(self, text: str) -> list[Told]:
        """Take more text and return what can be told now."""
        if self._parser is None:
            return [Content(text)] if text else []
        return self._told(self._parser.push(text))

    def finish(self) -> list[Told]:
        """Say that the text is over and return the rest."""
        return [] if self._parser is None else self._told(self._parser.finish())

    def _told(self, pieces: Iterable[Piece]) -> list[Told]:
        return [told for piece in pieces if (told := self._of(piece)) is not None]

    def _of(self, piece: Piece) -> Told | None:
        if isinstance(piece, Content):
            return piece
        if self._use.is_single and piece.index > 0:
            return None
        self._n_calls = piece.index + 1
        return piece if isinstance(piece, CallArguments) else self._begun(piece)

    def _begun(self, piece: CallBegin) -> CallStart:
        assert self._use.format is not None
        return CallStart(piece.index, self._use.format.call_id(self._new_id()), piece.name)


def arguments_of(text: str) -> JsonObject:
    """Return a call's arguments; those that were cut off, and so are no JSON, are none."""
    try:
        return msgspec.json.decode(text, type=JsonObject)
    except (msgspec.MsgspecError, RecursionError):
        return {}
