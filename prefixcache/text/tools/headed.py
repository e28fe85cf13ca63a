"""Reading calls whose name stands in front of their arguments, a JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import regex

from prefixcache.text.tools.calls import CallArguments, CallBegin, Content, Piece
from prefixcache.text.tools.parsing import SteppingParser, overlap
from prefixcache.text.tools.reader import JsonScanner, parsed_object

NAME = r"(?P<name>[^\s\[\]{}｜]{1,128})"  # what may be a function's name in a header
SPACE = r"\s{0,8}"


@dataclass(frozen=True, slots=True)
class Heading:
    """How a call is written in a format."""

    begins: tuple[str, ...]  # a header begins with one of these
    header: regex.Pattern[str]  # up to the arguments, with the group `name`; of bounded length
    endings: tuple[str, ...] = ()  # what stands after the arguments, in order; each may be missing


class HeadedParser(SteppingParser):
    """A `ToolParser` for calls that a header announces."""

    def __init__(self, heading: Heading, *, is_sure: bool) -> None:
        super().__init__()
        self._heading = heading
        self._is_sure = is_sure
        self._header: regex.Match[str] | None = None  # of the call that is being read
        self._raw = ""  # its arguments so far
        self._scanner = JsonScanner()
        self._endings: Sequence[str] = ()  # what may still stand after the last call

    def finish(self) -> list[Piece]:
        """End the answer; see `ToolParser`. A call that broke off is content."""
        left = self.held if self._header is None else f"{self._header.group()}{self._raw}"
        if self._is_sure and (self._header is not None or self.n_calls):
            left = ""  # told already, or a part of the next call
        elif self._endings:
            left = ""  # a part of what stands after a call
        return self.ended([Content(left)])

    def step(self, pieces: list[Piece]) -> bool:
        """See `SteppingParser`."""
        if self._header is not None:
            return self._read(self._header["name"], pieces)
        if self._endings:
            return self._end()
        return self._outside(pieces)

    def _outside(self, pieces: list[Piece]) -> bool:
        """Text, in which a header may come."""
        held = self.held
        places = [place for mark in self._heading.begins if (place := held.find(mark)) >= 0]
        if not places:
            safe = len(held) - max(overlap(held, mark) for mark in self._heading.begins)
            pieces.append(Content(held[:safe]))
            self.held = held[safe:]
            return False
        pieces.append(Content(held[: min(places)]))
        self.held = held[min(places) :]
        return self._begin(pieces)

    def _begin(self, pieces: list[Piece]) -> bool:
        """Take a call's header, or its mark as content if none can follow."""
        found = self._heading.header.match(self.held, partial=True)
        if found is not None and found.partial:
            return False
        if found is None:
            mark = next(mark for mark in self._heading.begins if self.held.startswith(mark))
            pieces.append(Content(mark))
            self.held = self.held.removeprefix(mark)
            return True
        self._header = found
        self.held = self.held[found.end() :]
        self._raw, self._scanner = "", JsonScanner()
        if self._is_sure:
            pieces.append(CallBegin(self.n_calls, found["name"]))
        return True

    def _read(self, name: str, pieces: list[Piece]) -> bool:
        """Take more of a call's arguments."""
        end = self._scanner.push(self.held)
        taken = self.held if end is None else self.held[:end]
        self.held = self.held[len(taken) :]
        self._raw += taken
        if self._is_sure:
            pieces.append(CallArguments(self.n_calls, taken))
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
        return [CallBegin(self.n_calls - 1, name), CallArguments(self.n_calls - 1, arguments)]

    def _called(self) -> None:
        self.n_calls += 1
        self._endings = self._heading.endings

    def _end(self) -> bool:
        """Take what stands after a call, as far as it is there."""
        rest = self.held.lstrip()
        for index, ending in enumerate(self._endings):
            if rest.startswith(ending):
                self.held = rest.removeprefix(ending)
                self._endings = self._endings[index + 1 :]
                return True
            if ending.startswith(rest):
                return False
        self._endings = ()
        return True
