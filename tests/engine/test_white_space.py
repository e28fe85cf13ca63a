"""What may stand between the parts of a JSON answer: what models write by habit, and no more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from prefixcache.engine.grammar import WORD_BITS, GrammarVocabulary, Matcher
from prefixcache.text import Tokenizer
from prefixcache.text.tools import fallback_format, forced_calls
from prefixcache.types import Grammar, GrammarKind
from tests.support.tokenizers import write_chat_tokenizer

VALUE = {"a": "x", "b": [1, 2]}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"const": "x"}, "b": {"type": "array", "items": {"enum": [1, 2]}}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
COMPACT = json.dumps(VALUE, separators=(",", ":"))
HABITS = {
    "compact": COMPACT,
    "blanks": json.dumps(VALUE),
    "blanks everywhere": '{ "a" : "x" , "b" : [ 1 , 2 ] }',
    "two a level": json.dumps(VALUE, indent=2),
    "four a level": json.dumps(VALUE, indent=4),
    "tabs": json.dumps(VALUE, indent="\t"),
    "carriage returns": json.dumps(VALUE, indent=2).replace("\n", "\r\n"),
    "deep": json.dumps(VALUE, indent=32 // 2),
}
LOOPS = {
    "blanks": '{"a":  ',
    "new lines": "{\n\n",
    "tabs": '{"a":\t\t',
    "long indentation": "{\n" + 33 * " ",
    "a blank, then a new line": "{ \n",
    "after the end": COMPACT + " ",
}


class Texts:
    """Tells whether a grammar allows a text, character by character."""

    def __init__(self, folder: Path) -> None:
        write_chat_tokenizer(folder)
        self.tokenizer = Tokenizer.load(folder)
        self._vocabulary = GrammarVocabulary(self.tokenizer, 320, [2])

    def n_allowed(self, grammar: Grammar, text: str) -> int:
        """Return how many characters of `text` an answer may begin with."""
        matcher = Matcher.of(grammar, self._vocabulary)
        mask = torch.zeros(matcher.n_words, dtype=torch.int32)
        for place, character in enumerate(text):
            (token,) = self.tokenizer.encode_as_text([character], is_first=False)[0]
            matcher.allow(mask)
            if not int(mask[token // WORD_BITS]) >> token % WORD_BITS & 1:
                return place
            matcher.advance(token)
        return len(text)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Texts:
    return Texts(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(params=["schema", "call"])
def bound(request: pytest.FixtureRequest, texts: Texts) -> tuple[Grammar, str]:
    """A grammar that asks for a value of SCHEMA, and what comes before the value."""
    if request.param == "schema":
        return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)), ""
    form = fallback_format()
    grammar = forced_calls({"f": SCHEMA}, form, texts.tokenizer, may_be_many=False)
    return grammar, form.around()[0] + form.call("f")[0]


@pytest.mark.parametrize("habit", HABITS)
def test_models_write_json_as_they_are_used_to(
    texts: Texts, bound: tuple[Grammar, str], habit: str
) -> None:
    """One blank, or a new line and its indentation, may stand between any two parts."""
    grammar, before = bound
    text = before + HABITS[habit]
    assert texts.n_allowed(grammar, text) == len(text)


@pytest.mark.parametrize("loop", LOOPS)
def test_white_space_cannot_go_on(texts: Texts, bound: tuple[Grammar, str], loop: str) -> None:
    """A model that has got stuck in blanks or new lines is made to go on with its answer."""
    grammar, before = bound
    text = before + LOOPS[loop]
    assert texts.n_allowed(grammar, text) == len(text) - 1
