"""Calls as Hermes and Qwen models write them: <tool_call>{...}</tool_call>."""

from __future__ import annotations

import json
from collections.abc import Collection

from prefixcache.text.tools.calls import ToolParser
from prefixcache.text.tools.parsing import MarkedParser, Marks

_BEGIN, _END = "<tool_call>", "</tool_call>"
_MARKS = Marks(_BEGIN, _END, " \t\r\n")


class HermesFormat:
    """<tool_call>, a JSON object with name and arguments, </tool_call>; any number of them."""

    marks = (_BEGIN, _END)

    def parser(self, names: Collection[str], *, is_sure: bool) -> ToolParser:
        """See `ToolFormat`."""
        return MarkedParser(_MARKS, names, is_sure=is_sure)

    def call(self, name: str) -> tuple[str, str]:
        """See `ToolFormat`."""
        return f'{_BEGIN}\n{{"name": {json.dumps(name)}, "arguments": ', f"}}\n{_END}"

    def around(self) -> tuple[str, str, str]:
        """See `ToolFormat`."""
        return "", "\n", ""

    def call_id(self, unique: str) -> str:
        """See `ToolFormat`."""
        return f"call_{unique[:24]}"
