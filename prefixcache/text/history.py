"""Prompts that go on from what a model has said itself, in the tokens that it said it in.

A text can be written in tokens in more than one way, and a model does not always choose the one
that a tokenizer would. An answer that comes back as text is then read as other tokens than were
generated, and nothing that was computed for them serves. What is known here of a prompt's
start is its text, to the letter, and the tokens that this text was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class KnownStart(NamedTuple):
    """How a prompt begins: a text, and the tokens that it was when it was said."""

    text: str
    token_ids: Sequence[int]


class History(Protocol):
    """Remembers texts that prompts may begin with.

    The caller promises that `places` are where added tokens begin in `text`, in order: there, and
    only there, a text can be cut so that both parts have the tokens that they have together.
    """

    def longest(self, text: str, places: Sequence[int], mark: str | None) -> KnownStart | None:
        """Return the longest known text that `text` has before one of `places`.

        Args:
            text: a rendered prompt.
            places: where it may be cut.
            mark: a character that breaks up what must stay text in it, and is no text of its own.
        """
