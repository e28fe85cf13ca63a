"""Token ids to text as they come, never half a character.

The library's own `DecodeStream` does not serve: it holds bytes that are no UTF-8 until good
text follows, raises when the text before them changes, and cannot be told that the end came.
"""

from __future__ import annotations

import codecs
import string
from collections.abc import Iterable
from functools import lru_cache
from types import MappingProxyType
from typing import Protocol

from prefixcache.text.definition import Step
from prefixcache.text.tokenizer import Tokenizer

_KEPT_SPELLINGS = 2**15  # the bytes of so many are not worked out again


class IncrementalDetokenizer:
    """Turns a stream of ids into a stream of text.

    The pieces joined equal `tokenizer.decode` of all ids. Bytes that are no UTF-8 become
    U+FFFD and never raise; unknown ids are nothing. Not for use by two threads at once.

    Held back: with a byte-level vocabulary, at most the 3 bytes of an unfinished character;
    with byte fallback (<0xE2>), a run of such tokens until another token ends it, for one bad
    byte turns its whole run into U+FFFD; with a decoder that we do not know, everything.

    Cost: O(1) per token; nothing is decoded twice.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        shown_ids: Iterable[int] = (),
    ) -> None:
        """Begin a text. `shown_ids`: special tokens that are not skipped all the same."""
        specials = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._skipped = specials.difference(shown_ids)
        self._stream = _stream(tokenizer)

    def push(self, ids: Iterable[int]) -> str:
        """Take the next ids and return the text that they complete."""
        text = ""
        for token_id in ids:  # most often one, for which a list would cost more than the rest
            if token_id not in self._skipped:
                text += self._stream.push(token_id)
        return text

    def finish(self) -> str:
        """Say that the ids are over and return the rest; an unfinished character is U+FFFD."""
        return self._stream.finish()


class _Stream(Protocol):
    """One way to decode as ids come. Special ids to be skipped never reach it."""

    def push(self, token_id: int) -> str:
        """Take one id and return the text that it completes."""

    def finish(self) -> str:
        """Return what is left."""


class _ByteStream:
    """For vocabularies whose spellings stand for bytes, one letter each."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_between = True  # the decoder holds no part of a character

    def push(self, token_id: int) -> str:
        spelling = self._tokenizer.spelling(token_id)
        if spelling is None:
            return ""
        if self._is_between and (plain := ascii_of_spelling(spelling)) is not None:
            return plain  # what most tokens are
        data = bytes_of_spelling(spelling)
        text = self._decoder.decode(data)
        self._is_between = not self._decoder.getstate()[0]
        return text

    def finish(self) -> str:
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        self._is_between = True
        return text


class _RunStream:
    """For decoders under which a token's text depends on no other, but for two things.

    The first token of a text may lose its leading space: so an anchor, a token that is plain
    text, goes before all that is not first. Byte tokens are decoded by the run: they are kept
    until the run ends.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._anchor = anchor_of(tokenizer)
        self._holds_all = not self._anchor or not all(map(_is_local, tokenizer.decoder_steps))
        self._has_bytes = any(s["type"] == "ByteFallback" for s in tokenizer.decoder_steps)
        self._has_started = False  # some text came out
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        spelling = self._tokenizer.spelling(token_id)
        if spelling is None:
            return ""
        self._pending.append(token_id)
        is_byte = self._has_bytes and is_byte_token(spelling)
        return "" if self._holds_all or is_byte else self._flush()

    def finish(self) -> str:
        text = self._flush()
        self._pending.clear()
        return text

    def _flush(self) -> str:
        before = self._anchor if self._has_started else []
        text = self._decoded(before + self._pending)[len(self._decoded(before)) :]
        if text:
            self._has_started = True
        if self._has_started:
            self._pending.clear()
        return text

    def _decoded(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)


def _stream(tokenizer: Tokenizer) -> _Stream:
    kinds = [step["type"] for step in tokenizer.decoder_steps if step["type"] != "Fuse"]
    return _ByteStream(tokenizer) if kinds == ["ByteLevel"] else _RunStream(tokenizer)


@lru_cache(maxsize=_KEPT_SPELLINGS)
def bytes_of_spelling(spelling: str) -> bytes:
    """Return the bytes of a token; one with a letter that stands for no byte is its own text."""
    try:
        return bytes([_BYTE_OF[letter] for letter in spelling])
    except KeyError:
        return spelling.encode()


@lru_cache(maxsize=_KEPT_SPELLINGS)
def ascii_of_spelling(spelling: str) -> str | None:
    """Return the text of a token whose bytes are ASCII, whatever stands beside it."""
    data = bytes_of_spelling(spelling)
    return data.decode("ascii") if data.isascii() else None


def _byte_alphabet() -> dict[str, int]:
    """Return which byte each letter of a byte-level vocabulary stands for.

    A printable byte stands for itself; the others have, in order, the letters from U+0100.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


_BYTE_OF = MappingProxyType(_byte_alphabet())


def is_byte_token(spelling: str) -> bool:
    """Whether `spelling` is how byte fallback writes a single byte, such as <0xE2>."""
    return len(spelling) == 6 and spelling.startswith("<0x") and spelling.endswith(">")


def _is_local(step: Step) -> bool:
    """Whether `step` gives a token the same text whatever other tokens come after it."""
    if step["type"] == "Strip":
        return step.get("stop") == 0
    return step["type"] in {"Replace", "ByteFallback", "Fuse", "Metaspace", "WordPiece"}


def anchor_of(tokenizer: Tokenizer) -> list[int]:
    """Return a token that is one plain letter, alone in a list; none when there is none."""
    for letter in string.ascii_letters + string.digits:
        token_id = tokenizer.id_of(letter)
        if token_id is not None and tokenizer.decode([token_id]) == letter:
            return [token_id]
    return []
