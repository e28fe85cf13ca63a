"""The part of parsing that formats share: text, a mark, calls, text again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass

from prefixcache.text.tools.calls import CallBegin, Content, Piece
from prefixcache.text.tools.reader import CallReader


@dataclass(frozen=True, slots=True)
class Marks:
    """What stands around calls in a format."""

    begin: str
    end: str  # "" for none; it may be missing
    separators: str  # characters that mean nothing after the begin and between calls
    may_begin_bare: bool = False  # an answer that starts with an object is a call


class SteppingParser(ABC):
    """What `ToolParser`s share: text is held until something of it is certain.

    Neighbouring content comes out as one piece.
    """

    def __init__(self) -> None:
        self.held = ""  # text that may still begin calls
        self.n_calls = 0  # that were given out
        self._blank = ""  # white space that is content only if content follows

    def push(self, text: str) -> list[Piece]:
        """Take the next text; see `ToolParser`."""
        self.held += text
        pieces: list[Piece] = []
        while self.held and self.step(pieces):
            pass
        return self._joined(pieces)

    @abstractmethod
    def step(self, pieces: list[Piece]) -> bool:
        """Take something off the held text; False when more must come first."""

    def ended(self, left: list[Piece]) -> list[Piece]:
        """Return the last pieces of an answer; `left`: what became of the held text."""
        pieces = self._joined(left)
        if not self.n_calls and self._blank:  # it stood before no call
            pieces.append(Content(self._blank))
        return pieces

    def _joined(self, pieces: list[Piece]) -> list[Piece]:
        """Join neighbouring content; white space before or after calls is left out."""
        joined: list[Piece] = []
        for piece in pieces:
            if not isinstance(piece, Content):
                if isinstance(piece, CallBegin):
                    self._blank = ""
                joined.append(piece)
                continue
            text = self._blank + piece.text
            kept = text.rstrip()
            self._blank = text[len(kept) :]
            if joined and isinstance(last := joined[-1], Content):
                kept = last.text + kept
                joined.pop()
            if kept:
                joined.append(Content(kept))
        return joined


class MarkedParser(SteppingParser):
    """A `ToolParser` for calls written as JSON objects after a mark."""

    def __init__(self, marks: Marks, names: Collection[str], *, is_sure: bool) -> None:
        super().__init__()
        self._marks = marks
        self._names = frozenset(names) if marks.may_begin_bare else None
        self._is_sure = is_sure
        self._before: str | None = None  # what was read of a call's marks; None: none is awaited
        self._reader: CallReader | None = None
        self._is_within = False  # an object that comes now is a call
        self._is_at_start = True

    def finish(self) -> list[Piece]:
        """End the answer; see `ToolParser`. A call that broke off is content."""
        left = self.held
        if self._reader is not None:
            left = "" if self._reader.has_begun else f"{self._before}{self._reader.raw}"
        elif self._before is not None:
            left = self._before + self.held
        elif self._is_within:
            left = ""  # white space, or a part of the mark after a call
        if self._is_sure and self.n_calls:
            left = ""  # a part of the next call: nothing else may follow
        self.held, self._before, self._reader = "", None, None
        return self.ended([Content(left)])

    def step(self, pieces: list[Piece]) -> bool:
        """See `SteppingParser`."""
        if self._reader is not None:
            self._read(self._reader, pieces)
            return True
        return self._between(pieces) if self._is_within else self._outside(pieces)

    def _read(self, reader: CallReader, pieces: list[Piece]) -> None:
        found, self.held = reader.push(self.held)
        if found and not reader.has_begun:
            found = [Content(f"{self._before}{reader.raw}")]
        pieces += found
        if reader.is_over:
            self.n_calls += reader.has_begun
            self._is_within = reader.has_begun  # after what is no call comes text
            self._reader, self._before = None, None

    def _between(self, pieces: list[Piece]) -> bool:
        """After a mark or a call: another call, the mark of the end, or text after all."""
        rest = self.held.lstrip(self._marks.separators)
        end = self._marks.end
        if not rest:
            return False
        if rest[0] == "{":
            self._before = (self._before or "") + self.held[: len(self.held) - len(rest)]
            self.held = rest
            self._reader = CallReader(self.n_calls, self._names, is_sure=self._is_sure)
            return True
        if self._before is None and end:
            if rest.startswith(end):
                self.held = rest[len(end) :]
            elif end.startswith(rest):
                return False
        pieces.append(Content(self._before or ""))
        self._before, self._is_within = None, False
        return True

    def _outside(self, pieces: list[Piece]) -> bool:
        """Before calls, or after them: text, in which the mark may come."""
        if self._is_at_start and self._marks.may_begin_bare:
            text = self.held.lstrip()
            if not text:
                return False
            self._is_within = text[0] == "{"
        self._is_at_start = False
        if self._is_within:
            return True
        before, mark, after = self.held.partition(self._marks.begin)
        if mark:
            pieces.append(Content(before))
            self.held, self._before, self._is_within = after, mark, True
            return True
        safe = len(self.held) - overlap(self.held, self._marks.begin)
        pieces.append(Content(self.held[:safe]))
        self.held = self.held[safe:]
        return False


def overlap(text: str, mark: str) -> int:
    """Return how much of the end of `text` may be the beginning of `mark`."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)
