"""Calls as newer Mistral models write them: [TOOL_CALLS]name[ARGS]{...}, one after another."""

from __future__ import annotations

from collections.abc import Collection

import regex

from prefixcache.text.tools.calls import ToolParser
from prefixcache.text.tools.headed import NAME, HeadedParser, Heading

_BEGIN, _MIDDLE = "[TOOL_CALLS]", "[ARGS]"
_HEADING = Heading(
    begins=(_BEGIN,),
    header=regex.compile(rf"{regex.escape(_BEGIN)} ?{NAME}{regex.escape(_MIDDLE)} ?(?={{)"),
)


class MistralArgsFormat:
    """[TOOL_CALLS], a name, [ARGS] and a JSON object; any number of them."""

    marks = (_BEGIN, _MIDDLE)

    def parser(self, names: Collection[str], *, is_sure: bool) -> ToolParser:
        """See `ToolFormat`."""
        return HeadedParser(_HEADING, is_sure=is_sure)

    def call(self, name: str) -> tuple[str, str]:
        """See `ToolFormat`."""
        return f"{_BEGIN}{name}{_MIDDLE}", ""

    def around(self) -> tuple[str, str, str]:
        """See `ToolFormat`."""
        return "", "", ""

    def call_id(self, unique: str) -> str:
        """See `ToolFormat`. Mistral's templates take nine letters and digits, and nothing else."""
        return unique[:9]
