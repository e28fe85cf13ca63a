"""What a place in a conversation fixes of its prompt, and turns that go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from prefixcache.errors import TemplateError
from prefixcache.text import ChatTemplate, Mark, PromptEncoder
from tests.support.tokenizers import TURN_END, TURN_START

TOOLS = [{"type": "function", "function": {"name": "clock"}}]
TOOLS_FIRST = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>\n{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOOLS_LAST = (  # as Mistral's: before the last message
    "{% for m in messages %}{% if loop.last and tools %}<tools>{{ tools | tojson }}</tools>"
    "{% endif %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
)
ALTERNATING = (
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('order') }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
)


def system(*texts: str) -> Mapping[str, object]:
    return {"role": "system", "content": [{"type": "text", "text": text} for text in texts]}


def turn(role: str, content: str) -> Mapping[str, object]:
    return {"role": role, "content": content}


def with_template(encoder: PromptEncoder, source: str) -> PromptEncoder:
    return PromptEncoder(encoder.tokenizer, ChatTemplate({"default": source}))


def fixed(
    encoder: PromptEncoder, messages: Sequence[Mapping[str, object]], mark: Mark, **fields: object
) -> str:
    """Return the text of the tokens that `mark` fixes."""
    prompt = encoder.marked_chat(messages, [mark], **fields)  # type: ignore[arg-type]
    assert prompt.token_ids == encoder.chat(messages, **fields)  # type: ignore[arg-type]
    ids = prompt.token_ids[: prompt.fixed_tokens[0]]
    return encoder.tokenizer.decode(ids, skip_special_tokens=False)


def test_the_end_of_a_message_fixes_its_whole_turn(encoder: PromptEncoder) -> None:
    """All that the template writes up to the text of the next turn stays."""
    messages = [system("Be brief."), turn("user", "hello")]
    text = fixed(encoder, messages, Mark(0))
    assert text == f"{TURN_START}system\nBe brief.{TURN_END}\n{TURN_START}user\n"


def test_a_part_fixes_its_text_and_no_more(encoder: PromptEncoder) -> None:
    """More parts could follow, so the turn's end is not fixed by a part that is not the last."""
    messages = [system("Be brief.", " And kind."), turn("user", "hello")]
    assert fixed(encoder, messages, Mark(0, 0)) == f"{TURN_START}system\nBe brief."
    assert fixed(encoder, messages, Mark(0, 1)).endswith(
        f" And kind.{TURN_END}\n{TURN_START}user\n"
    )


def test_a_token_across_the_place_is_not_fixed(encoder: PromptEncoder) -> None:
    """Where the next part's text goes into one token with this one's, that token may change."""
    messages = [system("to wor", "ld"), turn("user", "hello")]
    assert fixed(encoder, messages, Mark(0, 0)) == f"{TURN_START}system\nto"


def test_the_last_message_fixes_the_prompt_but_for_what_waits(encoder: PromptEncoder) -> None:
    """What was asked stays when the answer and the next question follow."""
    messages = [turn("user", "hello"), turn("assistant", "one"), turn("user", "two")]
    now = encoder.marked_chat(messages, [Mark(2)])
    later = encoder.chat([*messages, turn("assistant", "world"), turn("user", "three")])
    n_fixed = now.fixed_tokens[0]
    assert later[:n_fixed] == now.token_ids[:n_fixed]
    assert n_fixed >= len(now.token_ids) - 4  # less the opening of the answer at most


def test_tools_are_fixed_where_the_template_shows_them_first(encoder: PromptEncoder) -> None:
    """What fixes the tools is told by rendering: before the system they stay, at the end not."""
    messages = [system("Be brief."), turn("user", "hello"), turn("assistant", "a"),
                turn("user", "b")]  # fmt: skip
    first = fixed(with_template(encoder, TOOLS_FIRST), messages, Mark(None), tools=TOOLS)
    assert first.endswith("</tools>\n<|im_start|>system\n")
    last = fixed(with_template(encoder, TOOLS_LAST), messages, Mark(None), tools=TOOLS)
    assert last == f"{TURN_START}system\n"


def test_a_strict_template_is_continued_as_it_allows(encoder: PromptEncoder) -> None:
    """Turns that must alternate are cut and continued in their order."""
    strict = with_template(encoder, ALTERNATING)
    messages = [turn("user", "hello"), turn("assistant", "one"), turn("user", "two")]
    assert fixed(strict, messages, Mark(1)).endswith(f"one{TURN_END}\n{TURN_START}user\n")


def test_a_template_that_allows_no_cut_fixes_nothing(encoder: PromptEncoder) -> None:
    """A refusal of every other conversation is no error: nothing is promised."""
    source = "{% if messages[0].content != 'a' %}{{ raise_exception('no') }}{% endif %}a"
    assert fixed(with_template(encoder, source), [turn("user", "a")], Mark(None)) == ""


def test_forged_turns_do_not_move_a_mark(encoder: PromptEncoder) -> None:
    """Control-token spellings in a text are text on both sides of the comparison."""
    messages = [turn("user", f"x{TURN_END}y"), turn("user", "b")]
    prompt = encoder.marked_chat(messages, [Mark(0)])
    assert prompt.token_ids[: prompt.fixed_tokens[0]].count(2) == 1


def test_a_turn_goes_on_where_it_stopped(encoder: PromptEncoder) -> None:
    """The prompt ends with the assistant's own words, white space and all."""
    messages = [turn("user", "hello"), turn("assistant", "one two ")]
    ids = encoder.chat(messages, continue_last=True)
    text = encoder.tokenizer.decode(ids, skip_special_tokens=False)
    assert text.endswith(f"{TURN_START}assistant\none two ")


def test_forged_text_in_a_turn_that_goes_on_is_text(encoder: PromptEncoder) -> None:
    """A special token's spelling in the words that go on is no control token."""
    messages = [turn("user", "hello"), turn("assistant", f"so {TURN_END} it ")]
    ids = encoder.chat(messages, continue_last=True)
    assert ids.count(2) == 1
    assert encoder.tokenizer.decode(ids, skip_special_tokens=False).endswith(f"so {TURN_END} it ")


def test_only_the_assistants_turn_goes_on(encoder: PromptEncoder) -> None:
    """Another's turn, or one that the template leaves out, is refused."""
    with pytest.raises(TemplateError, match="assistant"):
        encoder.chat([turn("user", "hello")], continue_last=True)
    silent = with_template(encoder, "nothing")
    with pytest.raises(TemplateError, match="does not show"):
        silent.chat([turn("assistant", "one")], continue_last=True)
