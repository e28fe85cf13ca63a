"""Grammars that an answer has to follow, compiled and held against it token by token.

The automata are llguidance's. Design: prefixcache/design/0013-grammars.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import any_to_lark
from torch import Tensor

from prefixcache.errors import GrammarError
from prefixcache.text import TokenBytes, Tokenizer
from prefixcache.types import JSON_WHITE_SPACE, Grammar, GrammarKind

_ERROR_CHARACTERS = 400
WORD_BITS = 32  # of the words that a mask is written in

# Its errors reach clients: no state in them. Its lexers work within the engine's steps and are
# kept with their grammars; with its own limits one takes a second and 80 MB, or 250,000 states.
_MAX_LEXER_STATES = 50_000
_LIMITS = LLParserLimits(
    initial_lexer_fuel=200_000, max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False
)

# What a compiled grammar was seen to take, in bytes; its lexer grows as answers follow it.
_BASE_BYTES = 512 * 2**10
_TEXT_BYTES = 400  # for each byte of its text
_TOKEN_BYTES = 2048  # for each token that was held against it
_STATE_BYTES = 440  # for each state, of which there is a limit


class GrammarVocabulary:
    """A model's tokens as the library wants them. Making one takes some 0.2 s."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """Spell out the tokens of `tokenizer`; `vocab_size` is the number of a row's logits.

        Raises:
            GrammarError: the library cannot work with this vocabulary.
        """
        spelled = TokenBytes(tokenizer)
        # The library wants an end in every case. Without one, what ends an answer is its grammar,
        # and the end is a token that the model does not have.
        ends = list(eos_token_ids) or [max(vocab_size, tokenizer.vocab_size)]
        size = max(vocab_size, tokenizer.vocab_size, *(end + 1 for end in ends))
        tokens = _Tokens(tokenizer, [spelled.of(token) for token in range(size)])
        self.n_words = -(-size // WORD_BITS)
        try:
            self.tokens = LLTokenizer(TokenizerWrapper(tokens), n_vocab=size, eos_token=ends)
        except Exception as error:  # the edge to the library
            raise GrammarError(f"the model's vocabulary cannot follow grammars: {error}") from error


class _Tokens:
    """What the library asks of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, tokens: list[bytes]) -> None:
        self.eos_token_id = 0  # unread: the ends are given
        self.bos_token_id = None
        self.tokens = tokens
        self.special_token_ids = sorted(tokenizer.special_ids)
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode_as_text([text], is_first=False)[0]


@dataclass(slots=True)
class _Use:
    """How large a compiled grammar is, which all its matchers share."""

    text_bytes: int
    n_tokens: int = 0  # held against it, by all of them


class Matcher:
    """How far one answer has come along its grammar. For one thread."""

    def __init__(self, inner: LLMatcher, n_words: int, use: _Use) -> None:
        self._inner = inner
        self.n_words = n_words  # of a mask
        self._use = use

    @classmethod
    def of(cls, grammar: Grammar, vocabulary: GrammarVocabulary) -> Matcher:
        """Compile `grammar`: milliseconds as a rule, seconds at worst. Gives up the GIL.

        Raises:
            GrammarError: it is malformed, uses what is not supported, or is too large.
        """
        try:
            inner = LLMatcher(vocabulary.tokens, _source(grammar), log_level=0, limits=_LIMITS)
        except Exception as error:  # the edge to the library
            raise GrammarError(_shown(str(error))) from error
        if inner.is_error():
            raise GrammarError(_shown(inner.get_error()))
        return cls(inner, vocabulary.n_words, _Use(len(grammar.text.encode())))

    @property
    def is_complete(self) -> bool:
        """Whether the answer has reached the grammar's end: no token may follow."""
        return self._inner.is_stopped() and not self._inner.is_error()

    @property
    def error(self) -> str | None:
        """Why it cannot go on: a limit of the library was hit."""
        return _shown(self._inner.get_error()) if self._inner.is_error() else None

    @property
    def estimated_bytes(self) -> int:
        """About how much memory the grammar takes by now, all its matchers together."""
        grown = min(_TOKEN_BYTES * self._use.n_tokens, _STATE_BYTES * _MAX_LEXER_STATES)
        return _BASE_BYTES + _TEXT_BYTES * self._use.text_bytes + grown

    def copy(self) -> Matcher:
        """Return a matcher that stands where this one does and goes its own way. Cheap."""
        return Matcher(self._inner.deep_copy(), self.n_words, self._use)

    def allow(self, mask: Tensor) -> None:
        """Write into `mask`, int32 [n_words] on the host, a bit for each token that may come.

        None may where there is an `error`.
        """
        if not self._inner.is_error():
            self._inner.unsafe_compute_mask_ptr(mask.data_ptr(), mask.numel() * mask.element_size())
            if self._inner.is_error():
                mask.zero_()  # the library has written that the answer may end, half as it is

    def advance(self, token: int) -> None:
        """Take the answer's next token, one that was allowed."""
        self._inner.consume_token(token)
        self._use.n_tokens += 1


def _shown(error: str) -> str:
    """Return an error of the library as clients may see it: it repeats the whole grammar."""
    text = error.replace("<non-verbose/>", "").strip()
    if text == "NoExtensionBias":
        return "it allows no text that could follow"
    return text if len(text) <= _ERROR_CHARACTERS else text[:_ERROR_CHARACTERS] + " ..."


def _source(grammar: Grammar) -> str:
    """Return `grammar` in the library's own form. Raises what the library does."""
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            options = {"whitespace_pattern": JSON_WHITE_SPACE, "lenient": grammar.is_lenient}
            return str(LLMatcher.grammar_from_json_schema(grammar.text, overrides=options))  # type: ignore[arg-type]
        case GrammarKind.REGEX:
            return str(LLMatcher.grammar_from_regex(grammar.text))
        case GrammarKind.CHOICE:
            lines = " | ".join(json.dumps(text) for text in json.loads(grammar.text))
            return str(LLMatcher.grammar_from_lark(f"start: {lines}"))
        case GrammarKind.LARK:
            return str(LLMatcher.grammar_from_lark(grammar.text))
        case GrammarKind.EBNF:
            return str(LLMatcher.grammar_from_lark(any_to_lark(grammar.text)))
