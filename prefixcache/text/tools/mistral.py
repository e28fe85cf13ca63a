"""Calls as Mistral models write them: [TOOL_CALLS] and a list of objects."""

from __future__ import annotations

import json
from collections.abc import Collection

from prefixcache.text.tools.calls import ToolParser
from prefixcache.text.tools.parsing import MarkedParser, Marks

_BEGIN = "[TOOL_CALLS]"
_MARKS = Marks(_BEGIN, "]", " \t\r\n[,")


class MistralFormat:
    """[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]."""

    marks = (_BEGIN,)

    def parser(self, names: Collection[str], *, is_sure: bool) -> ToolParser:
        """See `ToolFormat`."""
        return MarkedParser(_MARKS, names, is_sure=is_sure)

    def call(self, name: str) -> tuple[str, str]:
        """See `ToolFormat`."""
        return f'{{"name": {json.dumps(name)}, "arguments": ', "}"

    def around(self) -> tuple[str, str, str]:
        """See `ToolFormat`."""
        return f"{_BEGIN}[", ", ", "]"

    def call_id(self, unique: str) -> str:
        """See `ToolFormat`. Mistral's templates take nine letters and digits, and nothing else."""
        return unique[:9]
