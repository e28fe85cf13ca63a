"""Chat templates render as transformers renders them, and fail with a message of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from prefixcache.errors import ModelError, TemplateError
from prefixcache.text import ChatTemplate
from tests.support.tokenizers import write_chat_tokenizer

Messages = Sequence[Mapping[str, object]]

CHAT: Messages = [
    {"role": "system", "content": "Be <b>brief</b> & kind."},
    {"role": "user", "content": "Hello\n"},
    {"role": "assistant", "content": "Hi", "tool_calls": [{"name": "f", "arguments": {"é": 1}}]},
]
TOOLS = [{"type": "function", "function": {"name": "look_up", "description": "it's <x> é"}}]

TEMPLATES = {
    "trims blocks": """{% for m in messages %}
    {% if m.role == 'user' %}
  user: {{ m.content }}
    {% endif %}
{% endfor %}
end""",
    "loop controls": "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}"
    "{{ m['content'] }}{% endfor %}",
    "tojson": "{{ messages | tojson }}{{ tools | tojson(indent=2) }}",
    "tojson options": "{{ messages | tojson(sort_keys=true, separators=(',', ':')) }}"
    "{{ tools | tojson(ensure_ascii=true) }}",
    "generation blocks": "{% for m in messages %}{% generation %}<{{ m.content }}>"
    "{% endgeneration %}{% endfor %}",
    "special tokens": "{{ bos_token }}|{{ eos_token }}|{{ missing_token }}",
    "other arguments": "{{ documents is none }}{{ add_generation_prompt }}{{ tools is none }}",
    "namespaces": "{% set ns = namespace(n=0) %}{% for m in messages %}"
    "{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}{{ messages[0].content.split('<b>')[1] }}",
}


@pytest.fixture(scope="module")
def theirs(chat_folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(chat_folder)


@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_templates_render_as_in_transformers(
    theirs: PreTrainedTokenizerFast, source: str, tools: list[object] | None
) -> None:
    """Every facility that transformers gives to templates works, to the character."""
    ours = ChatTemplate({"default": source}, special_tokens=theirs.special_tokens_map)
    expected = theirs.apply_chat_template(
        CHAT, tools=tools, chat_template=source, tokenize=False, add_generation_prompt=True
    )
    assert ours.render(CHAT, tools=tools) == expected


def test_the_clock_is_the_one_passed_in() -> None:
    """A template that asks for the date gets it from the caller's clock."""
    template = ChatTemplate(
        {"default": "{{ strftime_now('%d %b %Y') }}"}, now=lambda: datetime(2031, 2, 3)
    )
    assert template.render(CHAT) == "03 Feb 2031"


def test_a_refusal_is_the_templates_own_message() -> None:
    """What raise_exception says is the error's text, with nothing added."""
    template = ChatTemplate({"default": "{{ raise_exception('System must come first!') }}"})
    with pytest.raises(TemplateError) as caught:
        template.render(CHAT)
    assert str(caught.value) == "System must come first!"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[9].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 // 0 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% for i in range(999999999) %}{% endfor %}",
        "{{ 'x' | nofilter }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'x'.encode('nocodec') }}",
    ],
)
def test_whatever_fails_in_a_template_is_a_template_error(source: str) -> None:
    """A fault in the template, or an attempt to leave its sandbox, is no crash."""
    with pytest.raises(TemplateError):
        ChatTemplate({"default": source}).render(CHAT)


def test_a_malformed_template_is_refused_when_it_is_loaded() -> None:
    """Bad syntax is found at the start, not by the first chat."""
    with pytest.raises(TemplateError, match="not well formed"):
        ChatTemplate({"default": "{% for %}"})


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    """The folder loads, for plain completions; rendering names the files that are missing."""
    template = ChatTemplate.load(tmp_path)
    with pytest.raises(TemplateError, match=r"no chat template.*chat_template\.jinja"):
        template.render(CHAT)


def test_templates_come_from_the_file_before_the_config(tmp_path: Path) -> None:
    """chat_template.jinja wins; without it the config's text or its `default` is used."""
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "text"}))
    assert ChatTemplate.load(tmp_path).render(CHAT) == "text"
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    config.write_text(json.dumps({"chat_template": named}))
    assert ChatTemplate.load(tmp_path).render(CHAT) == "plain"
    assert ChatTemplate.load(tmp_path).render(CHAT, tools=TOOLS) == "tools"
    (tmp_path / "chat_template.jinja").write_text("file")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("more")
    assert ChatTemplate.load(tmp_path).render(CHAT) == "file"
    assert ChatTemplate.load(tmp_path).render(CHAT, tools=TOOLS) == "more"


@pytest.mark.parametrize("entry", [7, ["text"], [{"name": "default"}]])
def test_a_template_entry_of_another_form_is_refused(tmp_path: Path, entry: object) -> None:
    """A config whose template is neither text nor a list of named ones is an error."""
    write_chat_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": entry}))
    with pytest.raises(ModelError, match="chat_template"):
        ChatTemplate.load(tmp_path)
