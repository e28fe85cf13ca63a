"""Calls as Qwen3-Coder writes them: <tool_call><function=name><parameter=key>value ..."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping

from prefixcache.text.tools.calls import CallArguments, CallBegin, Content, Piece, ToolParser
from prefixcache.text.tools.hermes import HermesFormat
from prefixcache.text.tools.parsing import SteppingParser, overlap
from prefixcache.text.tools.reader import parsed_object

_BEGIN, _END = "<tool_call>", "</tool_call>"
_CALL = re.compile(r"\s*<function=(?P<name>[^>\s]+)>(?P<body>.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(
    r"\s*<parameter=(?P<key>[^>\n]+)>\n?(?P<value>(?:(?!<parameter=|</parameter>).)*?)\n?</parameter>\s*",
    re.DOTALL,
)


class QwenFormat(HermesFormat):
    """<tool_call>, a function with a tag for each parameter, </tool_call>; any number of them.

    Calls that are forced are JSON between the same marks, as Hermes's: their arguments can be held
    to a schema, which texts between tags cannot.
    """

    def parser(self, names: Collection[str], *, is_sure: bool) -> ToolParser:
        """See `ToolFormat`. Where `names` maps to schemas, they tell texts from other values."""
        if is_sure:
            return super().parser(names, is_sure=True)
        return _TagParser(names if isinstance(names, Mapping) else {})


class _TagParser(SteppingParser):
    """A `ToolParser` for calls that are complete when their last tag has come."""

    def __init__(self, schemas: Mapping[str, object]) -> None:
        super().__init__()
        self._schemas = schemas

    def finish(self) -> list[Piece]:
        """End the answer; see `ToolParser`. Only the last mark of a call may be missing."""
        left: list[Piece] = [Content(self.held)]
        if self.held.startswith(_BEGIN):
            left = self._call(self.held.removeprefix(_BEGIN), self.held)
        return self.ended(left)

    def step(self, pieces: list[Piece]) -> bool:
        """See `SteppingParser`."""
        before, mark, after = self.held.partition(_BEGIN)
        if not mark:
            safe = len(self.held) - overlap(self.held, _BEGIN)
            pieces.append(Content(self.held[:safe]))
            self.held = self.held[safe:]
            return False
        pieces.append(Content(before))
        self.held = mark + after
        inner, end, rest = after.partition(_END)
        if not end:
            return False
        pieces += self._call(inner, mark + inner + end)
        self.held = rest
        return True

    def _call(self, inner: str, raw: str) -> list[Piece]:
        """Return the call between two marks, or `raw` as content where it is none."""
        found = _CALL.fullmatch(inner)
        arguments = None if found is None else self._arguments(found["name"], found["body"])
        if found is None or arguments is None:
            return [Content(raw)]
        self.n_calls += 1
        begin = CallBegin(self.n_calls - 1, found["name"])
        return [begin, CallArguments(self.n_calls - 1, arguments)]

    def _arguments(self, name: str, body: str) -> str | None:
        values: dict[str, object] = {}
        place = 0
        while place < len(body):
            found = _PARAMETER.match(body, place)
            if found is None:
                return None if body[place:].strip() else json.dumps(values)
            values[found["key"]] = self._value(name, found["key"], found["value"])
            place = found.end()
        return parsed_object(json.dumps(values, ensure_ascii=False))

    def _value(self, name: str, key: str, text: str) -> object:
        """Return what `text` means: JSON where the schema has no text there, or says nothing."""
        if _is_text(self._schemas.get(name), key):
            return text
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text


def _is_text(schema: object, key: str) -> bool:
    match schema:
        case {"properties": {**properties}}:
            kind = properties.get(key)
            return isinstance(kind, Mapping) and kind.get("type") == "string"
    return False
