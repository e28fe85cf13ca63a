"""A model folder's tokenizer: ids and text, as transformers has them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from prefixcache.errors import ModelError, TextError, TokenIdError
from prefixcache.text import Tokenizer
from tests.support.tokenizers import CHAT_SPECIALS, TURN_END, TURN_START, write_chat_tokenizer

texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40)


@pytest.fixture(scope="module")
def theirs(chat_folder: Path) -> AutoTokenizer:
    return AutoTokenizer.from_pretrained(chat_folder)


@given(text=texts | st.sampled_from([TURN_END, " hello  world", "\n\n", "the user<|im_start|>"]))
def test_ids_and_text_equal_transformers(
    chat_tokenizer: Tokenizer, theirs: AutoTokenizer, text: str
) -> None:
    """Encoding and decoding are what transformers does with the same folder."""
    ids = chat_tokenizer.encode(text)
    assert ids == theirs.encode(text)
    assert chat_tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert chat_tokenizer.decode(ids, skip_special_tokens=False) == text


def test_special_tokens_have_ids_and_names(chat_tokenizer: Tokenizer) -> None:
    """Special tokens are known by id, and those that the folder names by name."""
    assert chat_tokenizer.special_ids == {0, 1, 2}
    assert [chat_tokenizer.spelling(i) for i in range(3)] == list(CHAT_SPECIALS)
    assert chat_tokenizer.special_tokens["bos_token"] == TURN_START
    assert chat_tokenizer.special_tokens["eos_token"] == TURN_END


def test_special_tokens_may_be_objects_and_come_from_either_file(tmp_path: Path) -> None:
    """A token may be text or an object with `content`; tokenizer_config wins over the map."""
    write_chat_tokenizer(tmp_path)
    config = {"bos_token": {"content": "<one>"}, "model_max_length": 8, "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    named = {"bos_token": "<other>", "eos_token": {"content": "<two>"}, "pad_token": None}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(named))
    found = dict(Tokenizer.load(tmp_path).special_tokens)
    assert found == {"bos_token": "<one>", "eos_token": "<two>"}


def test_vocab_size_counts_every_id(chat_tokenizer: Tokenizer) -> None:
    """The last id has a spelling and the next one has none."""
    assert chat_tokenizer.spelling(chat_tokenizer.vocab_size - 1) is not None
    assert chat_tokenizer.spelling(chat_tokenizer.vocab_size) is None


def test_saved_truncation_and_padding_are_not_applied(tmp_path: Path) -> None:
    """A tokenizer saved by a training script that cuts and pads still reads whole prompts."""
    write_chat_tokenizer(tmp_path)
    saved = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    saved.enable_truncation(4)
    saved.enable_padding(length=8)
    saved.save(str(tmp_path / "tokenizer.json"))
    assert len(Tokenizer.load(tmp_path).encode("abcdefghijkl")) == 12
    assert len(Tokenizer.load(tmp_path).encode("a")) == 1


def test_half_a_surrogate_pair_is_a_clear_error(chat_tokenizer: Tokenizer) -> None:
    """Text that is no Unicode is refused with the place of the fault."""
    with pytest.raises(TextError, match="character 2") as caught:
        chat_tokenizer.encode("ab\ud83d")
    assert caught.value.position == 2


@pytest.mark.parametrize("bad", [-1, 2**32, "1"])
def test_what_is_no_token_id_is_a_clear_error(chat_tokenizer: Tokenizer, bad: object) -> None:
    """The error carries the one id that is at fault."""
    with pytest.raises(TokenIdError) as caught:
        chat_tokenizer.decode([3, bad, 4])  # type: ignore[list-item]
    assert caught.value.found == bad


def test_a_folder_without_a_tokenizer_is_a_clear_error(tmp_path: Path) -> None:
    """A missing tokenizer.json, or one that is none, is an error that names it."""
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 1}')
    with pytest.raises(ModelError, match="malformed"):
        Tokenizer.load(tmp_path)
    write_chat_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json"):
        Tokenizer.load(tmp_path)


def test_many_threads_may_use_one_tokenizer(chat_tokenizer: Tokenizer) -> None:
    """Encoding and decoding in eight threads at once gives each its own right answer."""
    lines = [f"hello world {number} {'x' * (number % 17)} and the user" for number in range(400)]

    def round_trip(line: str) -> str:
        return chat_tokenizer.decode(chat_tokenizer.encode(line))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(round_trip, lines)) == lines
