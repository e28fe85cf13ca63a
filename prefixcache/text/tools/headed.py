"""Reading calls whose name stands in front of their arguments, a JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import regex

from prefixcache.text.tools.calls import CallArguments, CallBegin, Content, Piece
from prefixcache.text.tools.parsing import Joining, overlap
from prefixcache.text.tools.reader import JsonScanner, parsed_object

NAME = r"(?P<name>[^\s\[\]{}｜]{1,128})"  # what may be a function's name in a header
SPACE = r"\s{0,8}"


@dataclass(frozen=True, slots=True)
class Heading:
    """How a call is written in a format."""

    begins: tuple[str, ...]  # a header begins with one of these
    header: regex.Pattern[str]  # up to the arguments, with the group `name`; of bounded length
    endings: tuple[str, ...] = ()  # what stands after the arguments, in order; each may be missing


class HeadedParser(Joining):
    """A `ToolParser` for calls that a header announces."""

    def __init__(self, heading: Heading, *, is_sure: bool) -> None:
        super().__init__()
        self._heading = heading
        self._is_sure = is_sure
        self._held = ""
        self._header: regex.Match[str] | None = None  # of the call that is being read
        self._raw = ""  # its arguments so far
        self._scanner = JsonScanner()
        self._endings: Sequence[str] = ()  # what may still stand after the last call
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
        elif self._endings:
            left = ""  # a part of what stands after a call
        pieces = self.joined([Content(left)])
        return pieces if self._n_calls else [*pieces, *self.last_blank()]

    def _step(self, pieces: list[Piece]) -> bool:
        """Take something off the held text; False when more must come first."""
        if self._header is not None:
            return self._read(self._header["name"], pieces)
        if self._endings:
            return self._end()
        return self._outside(pieces)

    def _outside(self, pieces: list[Piece]) -> bool:
        """Text, in which a header may come."""
        held = self._held
        places = [place for mark in self._heading.begins if (place := held.find(mark)) >= 0]
        if not places:
            safe = len(held) - max(overlap(held, mark) for mark in self._heading.begins)
            pieces.append(Content(held[:safe]))
            self._held = held[safe:]
            return False
        pieces.append(Content(held[: min(places)]))
        self._held = held[min(places) :]
        return self._begin(pieces)

    def _begin(self, pieces: list[Piece]) -> bool:
        """Take a call's header, or its mark as content if none can follow."""
        found = self._heading.header.match(self._held, partial=True)
        if found is not None and found.partial:
            return False
        if found is None:
            mark = next(mark for mark in self._heading.begins if self._held.startswith(mark))
            pieces.append(Content(mark))
            self._held = self._held.removeprefix(mark)
            return True
        self._header = found
        self._held = self._held[found.end() :]
        self._raw, self._scanner = "", JsonScanner()
        if self._is_sure:
            pieces.append(CallBegin(self._n_calls, found["name"]))
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
            self._called()
        else:
            pieces += self._whole(name)
        self._header = None
        return True

    def _whole(self, name: str) -> list[Piece]:
        arguments = parsed_object(self._raw)
        if arguments is None:
            assert self._header is not None
            return [Content(f"{self._header.group()}{self._raw}")]
        self._called()
        return [CallBegin(self._n_calls - 1, name), CallArguments(self._n_calls - 1, arguments)]

    def _called(self) -> None:
        self._n_calls += 1
        self._endings = self._heading.endings

    def _end(self) -> bool:
        """Take what stands after a call, as far as it is there."""
        rest = self._held.lstrip()
        for index, ending in enumerate(self._endings):
            if rest.startswith(ending):
                self._held = rest.removeprefix(ending)
                self._endings = self._endings[index + 1 :]
                return True
            if ending.startswith(rest):
                return False
        self._endings = ()
        return True
