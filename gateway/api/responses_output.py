"""An answer's text as the items of a response, and the events that tell of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gateway.api.choice_text import CallStart, Told
from gateway.api.openai_scores import ChatToken
from gateway.api.responses_events import (
    ArgumentsDelta,
    ArgumentsDone,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    ResponseEvent,
    TextDelta,
    TextDone,
)
from gateway.api.responses_replies import (
    ItemStatus,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputText,
)
from prefixcache.text.tools import CallArguments, Content


@dataclass(slots=True)
class _Open:
    """The item that is being written."""

    id: str
    call: CallStart | None = None  # None: a message
    pieces: list[str] = field(default_factory=list)
    scores: list[ChatToken] = field(default_factory=list)

    def item(self, status: ItemStatus, *, is_empty: bool = False) -> OutputItem:
        text = "" if is_empty else "".join(self.pieces)
        if self.call is not None:
            call_id, name = self.call.id, self.call.name
            return OutputCall(id=self.id, call_id=call_id, name=name, arguments=text, status=status)
        content = [] if is_empty else [self.part()]
        return OutputMessage(id=self.id, status=status, content=content)

    def part(self) -> OutputText:
        return OutputText(text="".join(self.pieces), logprobs=self.scores)


class Output:
    """The items of one answer, as they come.

    Scores belong to the text that comes with them or next; those of tokens that became a call
    have no place in a response.
    """

    def __init__(self, new_id: Callable[[str], str], number: Callable[[], int]) -> None:
        """Make it, empty; ids come from `new_id`, by prefix, and events are numbered."""
        self.items: list[OutputItem] = []
        self._new_id = new_id
        self._number = number
        self._open: _Open | None = None
        self._waiting: list[ChatToken] = []  # scores whose text is held back

    def push(self, told: Iterable[Told], scores: Sequence[ChatToken]) -> Iterator[ResponseEvent]:
        """Take what comes next, and yield what is to be told of it."""
        self._waiting += scores
        for piece in told:
            if isinstance(piece, Content):
                yield from self._text(piece.text)
            elif isinstance(piece, CallStart):
                yield from self._begin(_Open(self._new_id("fc"), piece))
                self._waiting = []
            else:
                yield from self._arguments(piece)
                self._waiting = []

    def finish(self, status: ItemStatus) -> Iterator[ResponseEvent]:
        """End the answer; one without anything in it is an empty message."""
        if self._open is None:
            yield from self._begin(_Open(self._new_id("msg")))
        assert self._open is not None  # begun above, at the latest
        if self._open.call is None:
            self._open.scores += self._waiting
        yield from self._close(status)

    def _text(self, text: str) -> Iterator[ResponseEvent]:
        if self._open is None or self._open.call is not None:
            yield from self._begin(_Open(self._new_id("msg")))
        assert self._open is not None  # begun above
        scores, self._waiting = self._waiting, []
        self._open.pieces.append(text)
        self._open.scores += scores
        yield TextDelta(
            sequence_number=self._number(),
            item_id=self._open.id,
            output_index=len(self.items),
            delta=text,
            logprobs=scores,
        )

    def _arguments(self, piece: CallArguments) -> Iterator[ResponseEvent]:
        assert self._open is not None  # a call begins before its arguments
        self._open.pieces.append(piece.text)
        yield ArgumentsDelta(
            sequence_number=self._number(),
            item_id=self._open.id,
            output_index=len(self.items),
            delta=piece.text,
        )

    def _begin(self, item: _Open) -> Iterator[ResponseEvent]:
        yield from self._close("completed")
        self._open = item
        index = len(self.items)
        yield ItemAdded(
            sequence_number=self._number(),
            output_index=index,
            item=item.item("in_progress", is_empty=True),
        )
        if item.call is None:
            yield PartAdded(
                sequence_number=self._number(),
                item_id=item.id,
                output_index=index,
                part=OutputText(text=""),
            )

    def _close(self, status: ItemStatus) -> Iterator[ResponseEvent]:
        if self._open is None:
            return
        opened, index = self._open, len(self.items)
        self._open = None
        yield from self._call_done(opened, index) if opened.call else self._text_done(opened, index)
        item = opened.item(status)
        self.items.append(item)
        yield ItemDone(sequence_number=self._number(), output_index=index, item=item)

    def _text_done(self, opened: _Open, index: int) -> Iterator[ResponseEvent]:
        part = opened.part()
        yield TextDone(
            sequence_number=self._number(),
            item_id=opened.id,
            output_index=index,
            text=part.text,
            logprobs=part.logprobs,
        )
        yield PartDone(
            sequence_number=self._number(), item_id=opened.id, output_index=index, part=part
        )

    def _call_done(self, opened: _Open, index: int) -> Iterator[ResponseEvent]:
        yield ArgumentsDone(
            sequence_number=self._number(),
            item_id=opened.id,
            output_index=index,
            arguments="".join(opened.pieces),
        )
