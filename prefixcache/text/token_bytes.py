"""What single tokens stand for, as bytes."""

from __future__ import annotations

from prefixcache.text.detokenize import anchor_of, bytes_of_spelling, is_byte_token
from prefixcache.text.tokenizer import Tokenizer


class TokenBytes:
    """Looks up the bytes that a token adds to a text. Safe to use from many threads at once.

    The bytes of an output's tokens joined are its text in UTF-8, whatever the first token loses
    at the very start of a text. Added tokens, special ones too, stand for their spelling.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        kinds = [step["type"] for step in tokenizer.decoder_steps]
        self._is_byte_level = "ByteLevel" in kinds
        self._has_byte_tokens = "ByteFallback" in kinds
        self._anchor = [] if self._is_byte_level else anchor_of(tokenizer)
        self._anchor_text = tokenizer.decode(self._anchor, skip_special_tokens=False)

    def of(self, token_id: int) -> bytes:
        """Return the token's bytes, which may be part of a character; b"" for an unknown id."""
        spelling = self._tokenizer.spelling(token_id)
        if spelling is None:
            return b""
        if token_id in self._tokenizer.added_tokens:
            return spelling.encode()
        if self._is_byte_level:
            return bytes_of_spelling(spelling)
        if self._has_byte_tokens and is_byte_token(spelling):
            return bytes([int(spelling[1:-1], 16)])
        text = self._tokenizer.decode([*self._anchor, token_id], skip_special_tokens=False)
        return text[len(self._anchor_text) :].encode()

    def text(self, token_id: int) -> str:
        """Return the token's bytes as text; what is no UTF-8 by itself is U+FFFD."""
        return self.of(token_id).decode(errors="replace")
