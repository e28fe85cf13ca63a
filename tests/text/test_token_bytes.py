"""The bytes of single tokens add up to the text of all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from prefixcache.text import TokenBytes, Tokenizer
from tests.support.tokenizers import write_chat_tokenizer, write_piece_tokenizer

TEXT = "hello wörld 🦊 the question\n\n"


def byte_level(folder: Path) -> Tokenizer:
    write_chat_tokenizer(folder)
    return Tokenizer.load(folder)


def pieces(folder: Path) -> Tokenizer:
    write_piece_tokenizer(folder, [b"hello", b" w", b"\xc3", b"the"])
    return Tokenizer.load(folder)


def byte_fallback(_: Path) -> Tokenizer:
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "h", "e", "▁", "▁the", "l", "o"]
    vocabulary = {word: index for index, word in enumerate(words)}
    backend = Backend(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return Tokenizer(json.dumps(json.loads(backend.to_str())).encode())


@pytest.mark.parametrize("make", [byte_level, pieces, byte_fallback])
def test_bytes_of_tokens_are_the_texts(make: object, tmp_path: Path) -> None:
    """Joined in order, the tokens' bytes are the text in UTF-8, cut characters included."""
    assert callable(make)
    tokenizer = make(tmp_path)
    found = TokenBytes(tokenizer)
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    assert b"".join(map(found.of, ids)).decode() == TEXT


def test_a_space_before_a_word_belongs_to_its_token(tmp_path: Path) -> None:
    """A token that begins with a space keeps it, though a text's first token may lose it."""
    tokenizer = byte_fallback(tmp_path)
    token = tokenizer.id_of("▁the")
    assert token is not None
    assert TokenBytes(tokenizer).of(token) == b" the"


def test_added_and_unknown_tokens(tmp_path: Path) -> None:
    """A special token stands for its spelling, an id without a token for nothing."""
    found = TokenBytes(byte_level(tmp_path))
    assert found.text(2) == "<|im_end|>"
    assert found.of(10**6) == b""
