"""Calls as newer Mistral models write them: [TOOL_CALLS]name[ARGS]{...}, one after another."""

from __future__ import annotations

import re
from collections.abc import Collection

from prefixcache.text.tools.calls import CallArguments, CallBegin, Content, Piece, ToolParser
from prefixcache.text.tools.parsing import Joining, overlap
from prefixcache.text.tools.reader import JsonScanner, parsed_object

_BEGIN, _MIDDLE = "[TOOL_CALLS]", "[ARGS]"
_MAX_NAME = 128  # characters
_HEADER = re.compile(
    rf"{re.escape(_BEGIN)} ?(?P<name>[^\s\[\]{{}}]{{1,{_MAX_NAME}}}){re.escape(_MIDDLE)} ?(?={{)"
)
_MAX_HEADER = len(_BEGIN) + _MAX_NAME + len(_MIDDLE) + 2


class MistralArgsFormat:
    """[TOOL_CALLS], a name, [ARGS] and a JSON object; any number of them."""

    marks = (_BEGIN, _MIDDLE)

    def parser(self, names: Collection[str], *, is_sure: bool) -> ToolParser:
        """See `ToolFormat`."""
        return _NamedParser(is_sure=is_sure)

    def call(self, name: str) -> tuple[str, str]:
        """See `ToolFormat`."""
        return f"{_BEGIN}{name}{_MIDDLE}", ""

    def around(self) -> tuple[str, str, str]:
        """See `ToolFormat`."""
        return "", "", ""

    def call_id(self, unique: str) -> str:
        """See `ToolFormat`. Mistral's templates take nine letters and digits, and nothing else."""
        return unique[:9]


class _NamedParser(Joining):
    """A `ToolParser` for calls whose name stands before their arguments."""

    def __init__(self, *, is_sure: bool) -> None:
        super().__init__()
        self._is_sure = is_sure
        self._held = ""
        self._header: re.Match[str] | None = None  # of the call that is being read
        self._raw = ""  # its arguments so far
        self._scanner = JsonScanner()
        self._n_calls = 0

    def push(self, text: str) -> list[Piece]:
        """Take the next text; see `ToolParser`."""
        self._held += text
        pieces: list[Piece] = []
        while self._held and self._step(pieces):
            pass
        return self.joined(pieces)

    def finish(self) -> list[Piece]:
        """End the answer; see `ToolParser`. A call that broke off is content."""
        left = self._held if self._header is None else f"{self._header.group()}{self._raw}"
        if self._is_sure and (self._header is not None or self._n_calls):
            left = ""  # told already, or a part of the next call
        pieces = self.joined([Content(left)])
        return pieces if self._n_calls else [*pieces, *self.last_blank()]

    def _step(self, pieces: list[Piece]) -> bool:
        """Take something off the held text; False when more must come first."""
        if self._header is not None:
            return self._read(self._header["name"], pieces)
        before, mark, after = self._held.partition(_BEGIN)
        if not mark:
            safe = len(self._held) - overlap(self._held, _BEGIN)
            pieces.append(Content(self._held[:safe]))
            self._held = self._held[safe:]
            return False
        pieces.append(Content(before))
        self._held = mark + after
        return self._begin(after, pieces)

    def _begin(self, after: str, pieces: list[Piece]) -> bool:
        """Take a call's header, or its mark as content if none can follow."""
        self._header = _HEADER.match(self._held)
        if self._header is not None:
            self._held = self._held[self._header.end() :]
            self._raw, self._scanner = "", JsonScanner()
            if self._is_sure:
                pieces.append(CallBegin(self._n_calls, self._header["name"]))
            return True
        if len(self._held) < _MAX_HEADER and not {"{", "\n"} & set(after):
            return False
        pieces.append(Content(_BEGIN))
        self._held = after
        return True

    def _read(self, name: str, pieces: list[Piece]) -> bool:
        """Take more of a call's arguments."""
        end = self._scanner.push(self._held)
        taken = self._held if end is None else self._held[:end]
        self._held = self._held[len(taken) :]
        self._raw += taken
        if self._is_sure:
            pieces.append(CallArguments(self._n_calls, taken))
        if end is None:
            return False
        if self._is_sure:
            self._n_calls += 1
        else:
            pieces += self._whole(name)
        self._header = None
        return True

    def _whole(self, name: str) -> list[Piece]:
        arguments = parsed_object(self._raw)
        if arguments is None:
            assert self._header is not None
            return [Content(f"{self._header.group()}{self._raw}")]
        self._n_calls += 1
        return [CallBegin(self._n_calls - 1, name), CallArguments(self._n_calls - 1, arguments)]
