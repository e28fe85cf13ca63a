"""Keeping control tokens out of what users write.

A model's turn markers are single tokens. A tokenizer also makes them of text that merely spells
them, so that a message could end its own turn and forge the next one. Here such spellings are
broken up before the template runs, and put together again as plain text afterwards.
"""

from __future__ import annotations

import copy
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from prefixcache.errors import TemplateError
from prefixcache.text.tokenizer import Tokenizer

Message = Mapping[str, object]

# What `_escaped` can return, wherever it begins: Braille, and pairs of surrogates.
_ESCAPES = re.compile(r"(?=(\\u28[0-9a-f]{2}|\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}))")


class Guarded(NamedTuple):
    """A chat whose control-token spellings are broken up by `mark`, a character it has not."""

    messages: list[Message]
    tools: list[object] | None
    mark: str


class _Stretch(NamedTuple):
    """What lies between two added tokens and has marks, and where it is in the short prompt."""

    text: str  # without the marks
    is_first: bool  # the prompt starts with it
    start: int
    end: int


class ControlTokens:
    """What a tokenizer makes control tokens of, and how to write it as plain text instead.

    Control tokens are the special tokens and, of the other added tokens, those that the
    template writes by itself (<tool_call>, say). The latter stay tokens in messages of the
    assistant, whose own output they are. A spelling of one character is left alone.
    Design: prefixcache/design/0004-control-tokens.md.
    """

    def __init__(self, tokenizer: Tokenizer, literals: Iterable[str]) -> None:
        """Take the tokens of `tokenizer`; `literals` are the texts that the template writes."""
        self._tokenizer = tokenizer
        self._written = "\0".join(literals)
        self._spellings = {
            token_id: token.spelling
            for token_id, token in tokenizer.added_tokens.items()
            if len(token.spelling) > 1
            and (token.is_special or (token.spelling.strip() and token.spelling in self._written))
        }
        special = [self._spellings[i] for i in tokenizer.special_ids & self._spellings.keys()]
        self._for_assistant = _Spellings(tokenizer, special)
        self._for_others = _Spellings(tokenizer, self._spellings.values())

    def guarded(
        self, messages: Sequence[Message], tools: Sequence[object] | None
    ) -> Guarded | None:
        """Break up the spellings in `messages` and `tools`; None when there are none.

        Every text in them counts, names and keys too, but for the roles.

        Raises:
            TemplateError: the texts use every character that could serve as the mark.

        Cost: linear in the texts.
        """
        if not self._is_needed(messages, tools):
            return None
        mark = _mark([self._written, *_texts(messages), *_texts(tools)])
        return Guarded(
            [self._of(message).broken_message(message, mark) for message in messages],
            None if tools is None else [self._for_others.broken(tool, mark) for tool in tools],
            mark,
        )

    def beside(self, texts: Iterable[str]) -> ControlTokens:
        """Return the same for a template that writes `texts` as well: no mark is one of theirs."""
        other = copy.copy(self)
        other._written = "\0".join([self._written, *texts])
        return other

    def is_spelled_in(self, text: str) -> bool:
        """Whether `text`, written by the template, could become a control token."""
        return self._for_others.is_in(text)

    def encode(self, prompt: str, mark: str) -> list[int]:
        """Return the ids of a rendered prompt in which `mark` breaks up what must stay text.

        Control tokens come only from spellings that the template wrote. Text between added
        tokens without a mark gets the tokenizer's ordinary ids.

        Raises:
            TemplateError: the vocabulary has no other way to write a spelling.

        Cost: linear in the prompt; the marks, which may outnumber the rest, are never encoded.
        """
        short, stretches = self._shortened(prompt.replace(_escaped(mark), mark), mark)
        located = self._tokenizer.locate(short)
        ids: list[int] = []
        done = 0
        for stretch, text_ids in zip(stretches, self._text_ids(stretches), strict=True):
            ids += located.ids[done : bisect_right(located.ends, stretch.start)]
            ids += text_ids
            done = bisect_right(located.ends, stretch.end)
        return ids + located.ids[done:]

    def _is_needed(self, messages: Sequence[Message], tools: Sequence[object] | None) -> bool:
        return any(
            self._of(message).is_in(text) for message in messages for text in _texts(message)
        ) or any(self._for_others.is_in(text) for text in _texts(tools))

    def _of(self, message: Message) -> _Spellings:
        return self._for_assistant if message.get("role") == "assistant" else self._for_others

    def _shortened(self, prompt: str, mark: str) -> tuple[str, list[_Stretch]]:
        """Return `prompt` with one mark for each stretch that holds any, and those stretches.

        A stretch lies between two added tokens, or an end of the prompt and one.
        """
        parts: list[str] = []
        stretches: list[_Stretch] = []
        start = at = 0  # where the stretch starts in the prompt, and in what is left of it
        places = self._tokenizer.added_places(prompt)
        whole = [place for place in places if mark not in prompt[slice(*place)]]
        for begin, end in [*whole, (len(prompt), len(prompt))]:
            text = part = prompt[start:begin]
            if mark in text:
                part = mark
                stretches.append(_Stretch(text.replace(mark, ""), start == 0, at, at + 1))
            parts += [part, prompt[begin:end]]
            start, at = end, at + len(part) + end - begin
        return "".join(parts), stretches

    def _text_ids(self, stretches: Sequence[_Stretch]) -> list[list[int]]:
        """Return the ids of each stretch as plain text."""
        first = [stretch.text for stretch in stretches if stretch.is_first]
        later = [stretch.text for stretch in stretches if not stretch.is_first]
        encoded = self._tokenizer.encode_as_text(first, is_first=True)
        encoded += self._tokenizer.encode_as_text(later, is_first=False)
        made = self._spellings.keys() & set(chain.from_iterable(encoded))
        if not made:
            return encoded
        spelled = {token_id: self._spelled_out(token_id) for token_id in made}
        return [
            [part for token_id in ids for part in spelled.get(token_id, (token_id,))]
            for ids in encoded
        ]

    def _spelled_out(self, token_id: int) -> list[int]:
        """Return the ids of the characters of a token that the vocabulary made of text."""
        spelling = self._spellings[token_id]
        ids = self._tokenizer.encode_characters(spelling)
        if not self._spellings.keys().isdisjoint(ids):
            raise TemplateError(f"the tokenizer cannot write {spelling!r} as plain text")
        return ids


class _Spellings:
    """Some control tokens' spellings, to be found in text and broken up."""

    def __init__(self, tokenizer: Tokenizer, spellings: Collection[str]) -> None:
        longest_first = sorted(spellings, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._starts = {spelling[:n] for spelling in spellings for n in range(1, len(spelling))}
        self._longest = max(map(len, self._starts), default=0)
        self._first_letters = frozenset(spelling[0] for spelling in spellings)
        self._tokenizer = tokenizer

    def is_in(self, text: str) -> bool:
        """Whether `text` spells one, or would after normalizing or with other text behind it."""
        return bool(self._any.search(text)) or self._ends_open(text) or self._is_hidden_in(text)

    def broken(self, value: object, mark: str) -> object:
        """Return `value` with the spellings in all its texts and keys broken up."""
        return _mapped(value, lambda text: self._broken(text, mark))

    def broken_message(self, message: Message, mark: str) -> Message:
        """Return `message` with its spellings broken up. Its role and field names stay."""
        return {
            field: value if field == "role" else self.broken(value, mark)
            for field, value in message.items()
        }

    def _broken(self, text: str, mark: str) -> str:
        if self._is_hidden_in(text):
            return mark.join(text) + mark
        if self._ends_open(text):
            kept = text.rstrip()
            text = kept + mark + text[len(kept) :]
        return self._any.sub(lambda found: mark.join(found[0]) + mark, text)

    def _ends_open(self, text: str) -> bool:
        """Whether `text`, trimmed, ends with the start of a spelling."""
        tail = text.rstrip()[-self._longest :] if self._longest else ""
        if self._first_letters.isdisjoint(tail):  # of nearly every text
            return False
        return any(tail[start:] in self._starts for start in range(len(tail)))

    def _is_hidden_in(self, text: str) -> bool:
        """Whether normalizing `text` brings out more spellings (from full-width letters, say)."""
        if self._tokenizer.normalized(text) == text and not self._any.search(text):
            return False  # as nearly every text
        rest = self._any.sub(" ", text)
        normal = self._tokenizer.normalized(rest)
        return normal != rest and bool(self._any.search(normal))


def _texts(value: object) -> Iterator[str]:
    """Yield every string in a JSON-like value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, Mapping)):  # by its type first: to ask an ABC takes longer
        yield from chain.from_iterable(map(_texts, chain(value.keys(), value.values())))
    elif isinstance(value, (list, Sequence)):
        yield from chain.from_iterable(map(_texts, value))


def _mapped(value: object, change: Callable[[str], str]) -> object:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(key, change): _mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, Sequence):
        return [_mapped(inner, change) for inner in value]
    return value


def _mark(texts: Sequence[str]) -> str:
    """Return a character that is in none of `texts`, plain or escaped: a Braille or a rare Han one.

    It is printable, so that a template that shows a value as JSON or Python does not escape it.
    """
    used = set().union(*texts, *map(_ESCAPES.findall, texts))
    for code in chain(range(0x2800, 0x2900), range(0x20000, 0x2A6E0)):
        mark = chr(code)
        if mark not in used and _escaped(mark) not in used:
            return mark
    raise TemplateError("the messages use every character that could mark spellings in them")


def _escaped(mark: str) -> str:
    """Return `mark` as a template writes it that asks for JSON in ASCII."""
    return json.dumps(mark)[1:-1]
