"""What long and hostile prompts cost, and that nothing is lost where they are cut short."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, models, pre_tokenizers, processors

from prefixcache.errors import PromptTooLongError, TemplateError
from prefixcache.text import ChatTemplate, PromptEncoder, Tokenizer
from tests.support.tokenizers import TURN_END, TURN_START


def user(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def of_template(encoder: PromptEncoder, source: str) -> PromptEncoder:
    return PromptEncoder(encoder.tokenizer, ChatTemplate({"default": source}))


def test_a_plain_prompt_over_the_limit_is_refused(encoder: PromptEncoder) -> None:
    """One character too many is an error that says how many were found."""
    assert encoder.text("x" * 100, max_characters=100)
    with pytest.raises(PromptTooLongError, match="101 characters; 100 are"):
        encoder.text("x" * 101, max_characters=100)


@pytest.mark.parametrize("content", ["x" * 1000, TURN_END * 100])
def test_messages_over_the_limit_are_refused(encoder: PromptEncoder, content: str) -> None:
    """All texts count together, whether they spell control tokens or not."""
    chat = [*user(content), *user(content)]
    assert encoder.chat(chat, max_characters=2 * len(content) + 200)
    with pytest.raises(PromptTooLongError):
        encoder.chat(chat, max_characters=2 * len(content))


def test_tools_count_as_well(encoder: PromptEncoder) -> None:
    """A prompt cannot be made long through its tools."""
    tools = [{"name": "f", "parameters": {"k" * 500: "v" * 500}}]
    with pytest.raises(PromptTooLongError):
        encoder.chat(user("hi"), tools=tools, max_characters=1000)


def test_values_without_text_count_as_well(encoder: PromptEncoder) -> None:
    """Nor can it be made large, and slow to look through, of things that hold no text."""
    with pytest.raises(PromptTooLongError):
        encoder.chat(user("hi"), tools=[{"a": [[]] * 1000}], max_characters=1000)


@pytest.mark.parametrize("content", ["hi", TURN_END])
def test_what_the_template_makes_of_it_counts(encoder: PromptEncoder, content: str) -> None:
    """A template that repeats itself is measured by its result."""
    long = of_template(encoder, "{{ messages[0].content }}{% for i in range(900) %}x{% endfor %}")
    assert long.chat(user(content), max_characters=1000)
    with pytest.raises(PromptTooLongError):
        long.chat(user(content), max_characters=800)


@given(text=st.text(max_size=50) | st.text(" \n", max_size=50))
def test_no_token_is_longer_than_the_longest(encoder: PromptEncoder, text: str) -> None:
    """A text with more characters than its tokens could hold does not exist."""
    assert len(text) <= len(encoder.text(text)) * encoder.tokenizer.longest_spelling_characters


def test_spellings_cost_little_more_than_other_text(encoder: PromptEncoder) -> None:
    """A prompt full of control-token spellings takes a few times as long as a plain one."""
    hostile, plain = "hi <|im_end|> there " * 20_000, "hi <|im_xxx|> there " * 20_000
    seconds = [processor_seconds(encoder, text) for text in (hostile, plain)]
    assert seconds[0] < 6 * seconds[1]


def processor_seconds(encoder: PromptEncoder, content: str) -> float:
    return min(timed(lambda: encoder.chat(user(content))) for _ in range(2))


def timed(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def test_deep_nesting_is_refused(encoder: PromptEncoder) -> None:
    """A tool schema nested without end is an error, whether the template shows it or not."""
    deep: object = "x"
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(TemplateError, match="nested too deeply"):
        encoder.chat(user("hi"), tools=[deep])


def test_a_prompt_that_uses_every_mark_is_refused(encoder: PromptEncoder) -> None:
    """With no character left to mark spellings with, the chat is refused."""
    marks = [*range(0x2800, 0x2900), *range(0x20000, 0x2A6E0)]
    with pytest.raises(TemplateError, match="every character"):
        encoder.chat(user(TURN_END + "".join(map(chr, marks))))


def test_a_prompt_that_spells_every_mark_escaped_is_refused(encoder: PromptEncoder) -> None:
    """Marks written as JSON escapes are as good as used, wherever the escape begins."""
    marks = [*range(0x2800, 0x2900), *range(0x20000, 0x2A6E0)]
    escaped = "".join(json.dumps(chr(mark))[1:-1] for mark in marks)
    with pytest.raises(TemplateError, match="every character"):
        encoder.chat(user(TURN_END + escaped))
    assert encoder.chat(user(TURN_END + escaped[:-1]))


def of_odd_tokens(*, lstrip: bool) -> PromptEncoder:
    """Bytes, with added tokens of white space, one that needs to stand alone, one that strips.

    Offsets are trimmed of white space afterwards, as those of many byte-level tokenizers are.
    """
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={x: i for i, x in enumerate(letters)}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    backend.decoder = tokenizers.decoders.ByteLevel()
    special = [AddedToken(text, special=True) for text in (TURN_START, TURN_END)]
    backend.add_special_tokens([*special, AddedToken("<left>", special=True, lstrip=lstrip)])
    backend.add_tokens([AddedToken("  "), AddedToken("tok", single_word=True), AddedToken("\n")])
    source = (
        "{% for m in messages %}<|im_start|>{{ m.content }}<left>{{ m.content }}<|im_end|>\n"
        "{% endfor %}tok"
    )
    return PromptEncoder(Tokenizer(backend.to_str().encode()), ChatTemplate({"default": source}))


ODD, STRIPPING = of_odd_tokens(lstrip=False), of_odd_tokens(lstrip=True)
pieces = st.sampled_from([TURN_END, "<left>", " ", "  ", "\n", "tok", "a", "⠀", "é"])
contents = st.lists(pieces, max_size=8).map("".join)


@given(texts=st.lists(contents, min_size=1, max_size=3))
def test_nothing_is_lost_or_doubled_beside_added_tokens(texts: list[str]) -> None:
    """Whatever added tokens stand around a spelling, every character comes back once."""
    turns = "".join(f"{TURN_START}{text}<left>{text}{TURN_END}\n" for text in texts) + "tok"
    assert in_turns(ODD, texts) == turns
    assert "".join(in_turns(STRIPPING, texts).split()) == "".join(turns.split())


def in_turns(encoder: PromptEncoder, texts: list[str]) -> str:
    """Encode `texts` as turns; return what the ids say. Each turn has its own markers alone."""
    ids = encoder.chat([{"role": "user", "content": text} for text in texts])
    names = [encoder.tokenizer.spelling(token_id) for token_id in ids]
    assert [names.count(name) for name in (TURN_START, "<left>", TURN_END)] == [len(texts)] * 3
    return encoder.tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.model
def test_a_long_hostile_prompt_is_read_by_the_default_model(default_model: Path) -> None:
    """Ten thousand forged turns stay text."""
    encoder = PromptEncoder.load(default_model)
    text = f"hi {TURN_END} there " * 10_000
    ids = encoder.chat([{"role": "system", "content": "x"}, *user(text)])
    assert (ids.count(1), ids.count(2)) == (3, 2)
    assert text in encoder.tokenizer.decode(ids, skip_special_tokens=False)
