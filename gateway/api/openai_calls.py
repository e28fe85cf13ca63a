"""An answer's text as OpenAI's deltas and messages: content and tool calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from gateway.api.openai_tools import ToolUse
from prefixcache.text.tools import CallArguments, CallBegin, Content, Piece


class FunctionDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of a call: its name comes first and once, its arguments in any number of pieces."""

    arguments: str
    name: str | None = None


class CallDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of the call `index`."""

    index: int
    function: FunctionDelta
    id: str | None = None
    type: str | None = None


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of the model's turn."""

    role: str | None = None
    content: str | None = None
    tool_calls: list[CallDelta] | None = None


class FunctionReply(msgspec.Struct, frozen=True):
    """The function of a whole call; its arguments are JSON, if nothing cut them short."""

    name: str
    arguments: str


class CallReply(msgspec.Struct, frozen=True):
    """A whole call."""

    id: str
    function: FunctionReply
    type: str = "function"


class ChatMessage(msgspec.Struct, frozen=True):
    """The model's turn."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    tool_calls: list[CallReply] | msgspec.UnsetType = msgspec.UNSET


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

    def push(self, text: str) -> list[ChatDelta]:
        """Take more text and return what can be told now."""
        if self._parser is None:
            return [ChatDelta(content=text)] if text else []
        return self._deltas(self._parser.push(text))

    def finish(self) -> list[ChatDelta]:
        """Say that the text is over and return the rest."""
        return [] if self._parser is None else self._deltas(self._parser.finish())

    def _deltas(self, pieces: Iterable[Piece]) -> list[ChatDelta]:
        return [delta for piece in pieces if (delta := self._delta(piece)) is not None]

    def _delta(self, piece: Piece) -> ChatDelta | None:
        if isinstance(piece, Content):
            return ChatDelta(content=piece.text)
        if self._use.is_single and piece.index > 0:
            return None
        self._n_calls = piece.index + 1
        if isinstance(piece, CallArguments):
            return _call(CallDelta(piece.index, FunctionDelta(piece.text)))
        return _call(self._begun(piece))

    def _begun(self, piece: CallBegin) -> CallDelta:
        assert self._use.format is not None
        call_id = self._use.format.call_id(self._new_id())
        return CallDelta(piece.index, FunctionDelta("", piece.name), call_id, "function")


def message_of(deltas: Iterable[ChatDelta]) -> ChatMessage:
    """Return the whole turn that `deltas` are the pieces of."""
    contents: list[str] = []
    calls: list[CallReply] = []
    for delta in deltas:
        contents.append(delta.content or "")
        for call in delta.tool_calls or ():
            if call.id is not None:
                calls.append(CallReply(call.id, FunctionReply(call.function.name or "", "")))
            else:
                calls[call.index] = _longer(calls[call.index], call.function.arguments)
    content = "".join(contents)
    if not calls:
        return ChatMessage(content)
    return ChatMessage(content or None, tool_calls=calls)


def _longer(call: CallReply, arguments: str) -> CallReply:
    function = FunctionReply(call.function.name, call.function.arguments + arguments)
    return CallReply(call.id, function)


def _call(delta: CallDelta) -> ChatDelta:
    return ChatDelta(tool_calls=[delta])
