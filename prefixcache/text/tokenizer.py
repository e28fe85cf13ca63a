"""Text to token ids and back, by the rules of a model folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import tokenizers
from tokenizers import models

from prefixcache.errors import ModelError, TextError, TokenIdError
from prefixcache.text.definition import Definition
from prefixcache.text.folder import read_settings, special_tokens

TOKENIZER_FILE = "tokenizer.json"

_KEPT_SPELLINGS = 2**14  # so many are not asked for again: output looks one up for each token
_BETWEEN, _BETWEEN_ID = "\0between", 0  # the one word of a tokenizer that only finds added tokens


class AddedToken(NamedTuple):
    """A token that is found in the text before anything else is."""

    spelling: str
    is_special: bool  # left out of decoded text


class Located(NamedTuple):
    """Ids, and for each of them where its characters end in the text; the ends never fall."""

    ids: list[int]
    ends: list[int]


class Tokenizer:
    """A model's own tokenizer.

    `longest_spelling_characters` is how long the vocabulary's longest token is: n tokens say at
    most n times as many characters, unless a normalizer drops or joins some.

    Safe to use from many threads at once: what it tells stays the same after it was made, and the
    library beneath gives up the interpreter's lock while it encodes a batch (not in its `encode`
    for one text, which is why a text is a batch of one here).
    """

    def __init__(self, definition: bytes, special_tokens: Mapping[str, str] | None = None) -> None:
        """Build from `definition`, the contents of a tokenizer.json.

        Raises:
            ModelError: `definition` is malformed.
        """
        self._backend = _built(definition)
        self._spelling = lru_cache(maxsize=_KEPT_SPELLINGS)(self._backend.id_to_token)
        added = self._backend.get_added_tokens_decoder()
        self.added_tokens: Mapping[int, AddedToken] = MappingProxyType(
            {
                token_id: AddedToken(token.content, token.special)
                for token_id, token in added.items()
            }
        )
        self.special_ids = frozenset(
            i for i, token in self.added_tokens.items() if token.is_special
        )
        self.longest_spelling_characters = max(map(len, self._backend.get_vocab()), default=0)
        self.special_tokens: Mapping[str, str] = MappingProxyType(dict(special_tokens or {}))
        parts = msgspec.json.decode(definition, type=Definition)
        self.decoder_steps = parts.decoder_steps()
        self._first = self._without_added_tokens(parts)
        self._later = self._without_added_tokens(parts.later())
        self._glued = self._without_added_tokens(parts.glued())
        self._scanner = _scanner(self._backend)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read the tokenizer of `folder`: tokenizer.json and the names of its special tokens.

        Raises:
            ModelError: there is no tokenizer.json, or a file is malformed.
        """
        try:
            definition = (folder / TOKENIZER_FILE).read_bytes()
        except OSError as error:
            raise ModelError(f"{folder} has no readable {TOKENIZER_FILE}: {error}") from error
        return cls(definition, special_tokens(read_settings(folder)))

    @property
    def vocab_size(self) -> int:
        """How many token ids have a spelling, added tokens included."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`; spellings of added tokens in it become those tokens.

        Raises:
            TextError: `text` holds half of a surrogate pair.

        Cost: linear in the text.
        """
        texts = [_checked(text)]
        (encoding,) = self._backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        return list(encoding.ids)

    def locate(self, text: str) -> Located:
        """Return what `encode` does, without the tokens it adds by itself, and their places.

        White space at a token's end may count to the next token.
        """
        (encoding,) = self._backend.encode_batch([_checked(text)], add_special_tokens=False)
        return Located(list(encoding.ids), [end for _, end in encoding.offsets])

    def added_places(self, text: str) -> list[tuple[int, int]]:
        """Return where `encode` finds added tokens in `text`: (start, end), in order.

        Cost: linear in the text, with nothing kept for what lies between them.
        """
        (encoding,) = self._scanner.encode_batch([_checked(text)], add_special_tokens=False)
        places = zip(encoding.ids, encoding.offsets, strict=True)
        return [place for token_id, place in places if token_id != _BETWEEN_ID]

    def encode_as_text(self, texts: Sequence[str], *, is_first: bool) -> list[list[int]]:
        """Return each text's ids with no regard to added tokens: their spellings stay text.

        Args:
            texts: parts of a prompt.
            is_first: whether a prompt starts with them; some tokenizers put a space there.
        """
        encoder = self._first if is_first else self._later
        checked = [_checked(text) for text in texts]
        encodings = encoder.encode_batch_fast(checked, add_special_tokens=False)
        return [list(encoding.ids) for encoding in encodings]

    def encode_characters(self, text: str) -> list[int]:
        """Return ids that spell `text` one character at a time, with nothing put before it."""
        letters = [self._glued.encode(letter, add_special_tokens=False) for letter in text]
        return [token_id for letter in letters for token_id in letter.ids]

    def normalized(self, text: str) -> str:
        """Return `text` as the vocabulary sees it, before it is cut into words."""
        normalizer = self._backend.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(_checked(text)))

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; bytes that are no UTF-8 become U+FFFD, unknown ids nothing.

        Raises:
            TokenIdError: an id is no unsigned 32-bit integer.
        """
        try:
            return str(self._backend.decode(ids, skip_special_tokens=skip_special_tokens))
        except (OverflowError, TypeError) as error:
            raise TokenIdError(next(filter(_is_no_id, ids), ids)) from error

    def spelling(self, token_id: int) -> str | None:
        """Return how the vocabulary writes `token_id`, or None when it does not have it."""
        return self._spelling(token_id)

    def id_of(self, spelling: str) -> int | None:
        """Return the id that the vocabulary gives to `spelling`, if it has it."""
        return self._backend.token_to_id(spelling)

    def _without_added_tokens(self, parts: Definition) -> tokenizers.Tokenizer:
        """Return a tokenizer of `parts` that shares our vocabulary and knows no added tokens."""
        encoder = _built(parts.without_tokens())
        encoder.model = self._backend.model
        return encoder


def _built(definition: bytes) -> tokenizers.Tokenizer:
    try:
        backend = tokenizers.Tokenizer.from_buffer(definition)
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(f"{TOKENIZER_FILE} is malformed: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _scanner(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return a tokenizer that finds what `backend` does of added tokens, and nothing else.

    All that lies between two of them is one token, `_BETWEEN_ID`, whatever its length.
    """
    scanner = tokenizers.Tokenizer(models.WordLevel({_BETWEEN: _BETWEEN_ID}, _BETWEEN))
    if backend.normalizer is not None:
        scanner.normalizer = backend.normalizer
    scanner.add_tokens(list(backend.get_added_tokens_decoder().values()))
    return scanner


def _checked(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TextError(error.start) from error
    return text


def _is_no_id(value: object) -> bool:
    return not isinstance(value, int) or not 0 <= value < 2**32
