"""Calls as Llama 3 models write them: an answer that is a JSON object."""

from __future__ import annotations

import json
from collections.abc import Collection

from prefixcache.text.tools.calls import ToolParser
from prefixcache.text.tools.parsing import MarkedParser, Marks

_PYTHON = "<|python_tag|>"
_MARKS = Marks(_PYTHON, "", " \t\r\n;,", may_begin_bare=True)


class LlamaFormat:
    """{"name": ..., "parameters": {...}}, bare or after <|python_tag|>; several after ";"."""

    marks = (_PYTHON,)

    def parser(self, names: Collection[str], *, is_sure: bool) -> ToolParser:
        """See `ToolFormat`."""
        return MarkedParser(_MARKS, names, is_sure=is_sure)

    def call(self, name: str) -> tuple[str, str]:
        """See `ToolFormat`."""
        return f'{{"name": {json.dumps(name)}, "parameters": ', "}"

    def around(self) -> tuple[str, str, str]:
        """See `ToolFormat`."""
        return "", "; ", ""

    def call_id(self, unique: str) -> str:
        """See `ToolFormat`."""
        return f"call_{unique[:24]}"
