"""Reading one tool call, a JSON object, as its text comes."""

from __future__ import annotations

import json
import re

from prefixcache.text.tools.calls import CallArguments, CallBegin, Content, Piece

_HEADER = re.compile(
    r'\s*\{\s*"name"\s*:\s*(?P<name>"(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_OPENING, _CLOSING = "{[", "}]"


class JsonScanner:
    """Finds where a JSON object or array ends. It does not judge what is in between.

    Cost: O(1) per character.
    """

    def __init__(self) -> None:
        self.inner_end: int | None = None  # where the first value within it ended
        self._depth = 0
        self._in_string = self._is_escaped = False
        self._read = 0

    def push(self, text: str) -> int | None:
        """Take more of the value; return how much of `text` it was, or None if all and it goes on.

        White space before the value belongs to it.
        """
        for place, letter in enumerate(text):
            if self._feed(letter):
                self._read += place + 1
                return place + 1
            if letter in _CLOSING and self._depth == 1 and not self._in_string:
                self.inner_end = self.inner_end or self._read + place + 1
        self._read += len(text)
        return None

    def _feed(self, letter: str) -> bool:
        """Take one character; return whether the value ends with it."""
        if self._in_string:
            self._in_string = self._is_escaped or letter != '"'
            self._is_escaped = letter == "\\" and not self._is_escaped
            return False
        if letter == '"':
            self._in_string = True
        elif letter in _OPENING:
            self._depth += 1
        elif letter in _CLOSING:
            self._depth -= 1
            return self._depth <= 0
        return False


class CallReader:
    """One call: {"name": ..., "arguments": {...}}, where `parameters` is the same as arguments.

    It comes out when it is complete and well formed; or, when that is sure beforehand, piece by
    piece.
    """

    def __init__(self, index: int, names: frozenset[str] | None, *, is_sure: bool) -> None:
        """Begin the call `index`; `names` are those it may have, None for any."""
        self.raw = ""  # all that was read of it
        self.is_over = False
        self._index = index
        self._names = names
        self._is_sure = is_sure
        self._scanner = JsonScanner()
        self._told: int | None = None  # up to where the arguments were given out

    def push(self, text: str) -> tuple[list[Piece], str]:
        """Take more text; return what is certain now, and what follows the object once it ended.

        A call that is not well formed comes out as content.
        """
        end = self._scanner.push(text)
        self.is_over = end is not None
        self.raw += text if end is None else text[:end]
        rest = "" if end is None else text[end:]
        if self._is_sure:
            return self._told_so_far(), rest
        return (self._whole() if self.is_over else []), rest

    @property
    def has_begun(self) -> bool:
        """Whether some of the call was given out already."""
        return self._told is not None

    def _told_so_far(self) -> list[Piece]:
        pieces: list[Piece] = []
        if self._told is None:
            header = _HEADER.match(self.raw)
            name = None if header is None else _text(header["name"])
            if header is None or name is None or not self._is_known(name):
                return self._whole() if self.is_over else []
            self._told = header.end()
            pieces.append(CallBegin(self._index, name))
        end = self._scanner.inner_end or len(self.raw)
        if end > self._told:
            pieces.append(CallArguments(self._index, self.raw[self._told : end]))
            self._told = end
        return pieces

    def _whole(self) -> list[Piece]:
        call = _parsed(self.raw)
        if call is None or not self._is_known(call[0]):
            return [Content(self.raw)]
        name, arguments = call
        self._told = len(self.raw)
        return [CallBegin(self._index, name), CallArguments(self._index, arguments)]

    def _is_known(self, name: str) -> bool:
        return self._names is None or name in self._names


def _text(quoted: str) -> str | None:
    """Return a text written in JSON, or None when it is malformed, empty or not to be sent."""
    try:
        text = str(json.loads(quoted))
        text.encode()
    except ValueError:
        return None
    return text or None


def parsed_object(raw: str) -> str | None:
    """Return a JSON object as it is sent to clients, or None when `raw` is none."""
    call = _parsed(f'{{"name": "-", "arguments": {raw}}}')
    return None if call is None or not raw.lstrip().startswith("{") else call[1]


def _parsed(raw: str) -> tuple[str, str] | None:
    """Return name and arguments (a JSON object) of a call, or None when it is none."""
    try:
        value = json.loads(raw, parse_constant=_refuse)
        if not isinstance(value, dict):
            return None
        name, arguments = value.get("name"), value.get("arguments", value.get("parameters", {}))
        if isinstance(arguments, str):  # some models write the object as a text
            arguments = json.loads(arguments, parse_constant=_refuse)
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            return None
        written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        (name + written).encode()  # half a surrogate pair can be escaped, and not be sent
    except (ValueError, RecursionError):
        return None
    return name, written


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
