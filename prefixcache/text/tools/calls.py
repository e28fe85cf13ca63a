"""What an answer with tool calls is made of, and what every format promises."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    """Text that is no tool call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call begins; its arguments follow."""

    index: int  # of the call in the answer, from 0
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments; all of them joined are a JSON object."""

    index: int
    text: str


Piece = Content | CallBegin | CallArguments


class ToolParser(Protocol):
    """Takes one answer's text apart as it comes.

    The caller pushes the text in order and finishes once. The parser promises that its pieces do
    not depend on how the text was cut, that what is no well-formed call comes out as content in
    full, and that it holds back no more than may still become a call.
    """

    def push(self, text: str) -> list[Piece]:
        """Take the next text and return what is certain now."""

    def finish(self) -> list[Piece]:
        """Say that the answer is over and return the rest."""


class ToolFormat(Protocol):
    """How a model writes tool calls."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts by which it is recognised; where they are special tokens, they must be shown."""

    def parser(self, names: Collection[str], *, is_sure: bool) -> ToolParser:
        """Return a parser for one answer.

        Args:
            names: of the tools; where nothing else marks a call, only they make one. A mapping
                to the schemas of their arguments tells formats without types what is text.
            is_sure: every call is well formed, so arguments need not wait for their end.
        """

    def call(self, name: str) -> tuple[str, str]:
        """Return what the model writes before and after the arguments of a call of `name`."""

    def around(self) -> tuple[str, str, str]:
        """Return what it writes before the first call, between two, and after the last one."""

    def call_id(self, unique: str) -> str:
        """Return an id for a call, as the model's template takes it, from a fresh text."""
