"""Small real tokenizers for tests: built in milliseconds, read by our code and by transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
CHAT_SPECIALS = (END_OF_TEXT, TURN_START, TURN_END)  # ids 0, 1 and 2

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
JOINED = "{% for message in messages %}{{ message['content'] }}{% endfor %}"

WORDS = (
    " the",
    " and",
    "user",
    "assistant",
    "system",
    " hello",
    " world",
    " alpha",
    " one",
    " two",
    " three",
    " question",
    " answer",
    "  ",
    "\n\n",
)  # each one token


def write_chat_tokenizer(folder: Path) -> None:
    """Write a byte-level BPE tokenizer of 317 ids with a ChatML template into `folder`.

    Ids 0 to 2 are `CHAT_SPECIALS`, 3 to 258 the 256 bytes, the rest merges. A turn ends with
    id 2. `folder` is made when it is missing.
    """
    letters = [_byte_letters()[byte] for byte in range(256)]
    merges = _merges(WORDS)
    names = [*CHAT_SPECIALS, *letters, *dict.fromkeys(left + right for left, right in merges)]
    vocabulary = {name: token_id for token_id, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in CHAT_SPECIALS])
    named = {"bos_token": TURN_START, "eos_token": TURN_END, "unk_token": END_OF_TEXT}
    _write(folder, tokenizer, named, CHATML)


def write_piece_tokenizer(folder: Path, pieces: Sequence[bytes]) -> None:
    """Write a tokenizer in which each of `pieces`, valid UTF-8 or not, is one token.

    The distinct pieces have the ids 0, 1, 2... in order of first appearance; the bytes that
    are no piece follow, so that every text can be encoded, and then `END_OF_TEXT`. Encoding
    takes as few tokens as it can. The template joins the contents and adds nothing.
    """
    distinct = list(dict.fromkeys([*pieces, *(bytes([byte]) for byte in range(256))]))
    letters = _byte_letters()
    vocabulary = [("".join(letters[byte] for byte in piece), -1.0) for piece in distinct]
    tokenizer = Tokenizer(models.Unigram(vocabulary, None, False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])
    _write(folder, tokenizer, {"eos_token": END_OF_TEXT}, JOINED)


def _write(folder: Path, tokenizer: Tokenizer, named: dict[str, str], template: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _byte_letters() -> dict[int, str]:
    """Return the printable letter that byte-level tokenizers write for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    return letters | {byte: chr(0x100 + index) for index, byte in enumerate(others)}


def _merges(words: Sequence[str]) -> list[tuple[str, str]]:
    """Return merges that grow each word from left to right."""
    letters = _byte_letters()
    found: dict[tuple[str, str], None] = {}
    for word in words:
        spelled = [letters[byte] for byte in word.encode()]
        for end in range(1, len(spelled)):
            found["".join(spelled[:end]), spelled[end]] = None
    return list(found)
