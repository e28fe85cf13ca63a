"""Streamed text equals decoded text, whatever the vocabulary and the ids."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models

from prefixcache.text import IncrementalDetokenizer, OutputText, Tokenizer
from tests.support.tokenizers import write_chat_tokenizer, write_piece_tokenizer


def streamed(tokenizer: Tokenizer, ids: Iterable[int], *, skip: bool = True) -> list[str]:
    """Return the text of each id and, last, what the end released."""
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
    return [*(detokenizer.push([token_id]) for token_id in ids), detokenizer.finish()]


def of_pieces(folder: Path, pieces: Sequence[bytes]) -> Tokenizer:
    write_piece_tokenizer(folder, pieces)
    return Tokenizer.load(folder)


def made(
    model: models.Model, decoder: decoders.Decoder | None, specials: Sequence[str] = ()
) -> Tokenizer:
    backend = tokenizers.Tokenizer(model)
    backend.decoder = decoder
    backend.add_special_tokens([AddedToken(name, special=True) for name in specials])
    return Tokenizer(backend.to_str().encode())


def byte_level(tmp_path: Path) -> Tokenizer:
    write_chat_tokenizer(tmp_path)
    return Tokenizer.load(tmp_path)


LETTERS = [*"abcxyz,.!0é終", "▁", "▁▁", "▁a", "▁bc", "x▁", "▁終"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def sentencepiece(_: Path) -> Tokenizer:
    """Metaspace with byte fallback, its pieces fused and the first space stripped."""
    names = ["<unk>", *BYTES, *LETTERS]
    model = models.BPE(
        vocab={name: i for i, name in enumerate(names)},
        merges=[],
        unk_token="<unk>",
        byte_fallback=True,
    )
    chain = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return made(model, chain, ["<s>", "</s>"])


def metaspace(_: Path) -> Tokenizer:
    """A unigram vocabulary whose decoder is Metaspace alone."""
    return made(
        models.Unigram([(name, -1.0) for name in LETTERS], None, False), decoders.Metaspace()
    )


def wordpiece(_: Path) -> Tokenizer:
    """Words and their continuations, with white space cleaned up at each token."""
    names = ["[UNK]", "a", "bc", "##d", "##ef", ",", ".", "n't", "'s"]
    model = models.WordPiece(vocab={n: i for i, n in enumerate(names)}, unk_token="[UNK]")
    return made(model, decoders.WordPiece(cleanup=True), ["[SEP]"])


def word_ends(_: Path) -> Tokenizer:
    """A decoder under which a token's text depends on whether another one follows."""
    names = ["a", "b</w>", "c</w>"]
    model = models.BPE(vocab={n: i for i, n in enumerate(names)}, merges=[])
    return made(model, decoders.BPEDecoder(), ["<end>"])


def no_decoder(_: Path) -> Tokenizer:
    """A vocabulary of words with no decoder at all: they are joined by spaces."""
    return made(models.WordLevel({"a": 0, "bc": 1, "é": 2}, "a"), None, ["<end>"])


KINDS = [byte_level, sentencepiece, metaspace, wordpiece, word_ends, no_decoder]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("skip", [True, False])
def test_joined_stream_equals_full_decode(
    kind: Callable[[Path], Tokenizer], skip: bool, tmp_path: Path
) -> None:
    """For 1,000 random sequences, special and unknown ids among them, no space goes astray."""
    tokenizer = kind(tmp_path)
    assert_streams_equal_decode(tokenizer, skip=skip, rng=random.Random(7))


@pytest.mark.model
def test_joined_stream_equals_full_decode_for_the_default_model(default_model: Path) -> None:
    """The default model's answers stream as they decode, runs of spaces included."""
    tokenizer = Tokenizer.load(default_model)
    for skip in (True, False):
        assert_streams_equal_decode(tokenizer, skip=skip, rng=random.Random(7))


def assert_streams_equal_decode(tokenizer: Tokenizer, *, skip: bool, rng: random.Random) -> None:
    spaces = [i for i in range(tokenizer.vocab_size) if is_blank(tokenizer.spelling(i))]
    frequent = [*spaces, *tokenizer.special_ids]
    for _ in range(1000):
        ids = [
            rng.choice(frequent) if frequent and rng.random() < 0.3 else any_id(tokenizer, rng)
            for _ in range(rng.randrange(24))
        ]
        expected = tokenizer.decode(ids, skip_special_tokens=skip)
        assert "".join(streamed(tokenizer, ids, skip=skip)) == expected, ids


def is_blank(spelling: str | None) -> bool:
    return not (spelling or "x").strip("▁ĠĊ ")


def any_id(tokenizer: Tokenizer, rng: random.Random) -> int:
    return rng.randrange(tokenizer.vocab_size + 3)  # the last three are unknown


@given(st.lists(st.integers(0, 255), max_size=16))
def test_any_bytes_stream_as_they_decode(data: list[int]) -> None:
    """Every sequence of byte tokens, valid UTF-8 or not, streams as it decodes."""
    assert "".join(streamed(BYTEWISE, data)) == BYTEWISE.decode(data)
    assert "".join(streamed(FALLBACK, data)) == FALLBACK.decode(data)


def bytewise() -> Tokenizer:
    """A byte-level vocabulary in which id n is byte n."""
    letters = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in letters]
    vocabulary = {chr(byte): byte for byte in letters}
    vocabulary |= {chr(0x100 + index): byte for index, byte in enumerate(others)}
    return made(
        models.BPE(vocab=vocabulary, merges=[]), decoders.ByteLevel(), ["<end>", "<the end é>"]
    )


def fallback() -> Tokenizer:
    """A byte-fallback vocabulary in which id n is byte n."""
    vocabulary = {name: byte for byte, name in enumerate([*BYTES, "a"])}
    chain = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return made(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True), chain)


BYTEWISE = bytewise()
FALLBACK = fallback()


def test_half_a_character_is_never_shown() -> None:
    """A character appears with its last byte, and not before."""
    assert streamed(BYTEWISE, "é🙂!".encode()) == ["", "é", "", "", "", "🙂", "!", ""]


def test_an_unfinished_character_becomes_a_mark_at_the_end() -> None:
    """When the ids end inside a character, the end shows one replacement mark."""
    assert streamed(BYTEWISE, "a🙂".encode()[:-1]) == ["a", "", "", "", "\ufffd"]


def test_invalid_bytes_become_marks_at_once_and_harm_nothing_after(tmp_path: Path) -> None:
    """Bytes that no character starts with are marked when they come; good text goes on."""
    bad = [b"\xfe", b"\xc1\xbf", b"\xed\xbf\xbf", b"\xf8\x88\x80\x80\x80"]
    tokenizer = of_pieces(tmp_path, [b"fine", *bad])
    shown = streamed(tokenizer, [0, 1, 2, 3, 4, 0])
    assert shown == ["fine", "\ufffd", "\ufffd" * 2, "\ufffd" * 3, "\ufffd" * 5, "fine", ""]


def test_a_run_of_fallback_bytes_comes_with_the_token_that_ends_it() -> None:
    """Byte tokens wait for their run to end, since one bad byte spoils the whole run."""
    letter = 256
    assert streamed(FALLBACK, [0xC3, 0xA9, letter]) == ["", "", "éa", ""]
    assert streamed(FALLBACK, [0xC3, 0xA9, 0xFF, letter]) == ["", "", "", "\ufffd" * 3 + "a", ""]


def test_text_of_a_token_comes_with_the_token(tmp_path: Path) -> None:
    """Sentencepiece tokens are shown at once, not one late."""
    tokenizer = sentencepiece(tmp_path)
    ids = [tokenizer.id_of(name) or 0 for name in ("▁bc", "▁▁", "終", "▁a")]
    assert streamed(tokenizer, ids) == ["bc", "  ", "終", " a", ""]


def test_skipped_special_tokens_do_not_end_a_character() -> None:
    """A special token between the bytes of a character leaves no trace when it is skipped."""
    end = BYTEWISE.id_of("<end>")
    assert end is not None
    assert "".join(streamed(BYTEWISE, [0xC3, end, 0xA9])) == "é"
    assert "".join(streamed(BYTEWISE, [0xC3, end, 0xA9], skip=False)) == "\ufffd<end>\ufffd"


def test_added_tokens_that_are_no_byte_letters_are_their_own_text() -> None:
    """An added token with a space in it streams as it decodes."""
    token_id = BYTEWISE.id_of("<the end é>")
    assert token_id is not None
    assert "".join(streamed(BYTEWISE, [0x41, token_id], skip=False)) == "A<the end é>"


def test_output_ends_at_a_stop_string_across_tokens(tmp_path: Path) -> None:
    """The answer is the text before the stop string, though tokens and stop overlap."""
    tokenizer = of_pieces(tmp_path, [b"All is w", b"ell", b" t", b"hat ends"])
    output = OutputText(tokenizer, stop=["ell that"])
    assert [output.push([token_id]) for token_id in range(4)] == ["All is w", "", "", ""]
    assert (output.finish(), output.stopped) == ("", "ell that")


def test_output_counts_a_stop_that_the_end_completes(tmp_path: Path) -> None:
    """The mark of an unfinished last character is text like any other, to stop strings too."""
    tokenizer = of_pieces(tmp_path, [b"ok", b"\xf0\x9f"])
    output = OutputText(tokenizer, stop=["k\ufffd"])
    assert output.push([0, 1]) + output.finish() == "o"
    assert output.stopped == "k\ufffd"


def test_output_without_stops_is_all_the_text(tmp_path: Path) -> None:
    """Nothing is held when there is nothing to look for."""
    output = OutputText(of_pieces(tmp_path, [b"so", b" on"]))
    assert output.push([0, 1]) == "so on"
    assert (output.finish(), output.stopped) == ("", None)
