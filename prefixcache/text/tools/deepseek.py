"""Calls as DeepSeek's models write them, between marks of their own, the name before a JSON object.

Source: the chat templates of DeepSeek-V3 and R1, and of V3.1.
"""

from __future__ import annotations

from collections.abc import Collection

import regex

from prefixcache.text.tools.calls import ToolParser
from prefixcache.text.tools.headed import NAME, SPACE, HeadedParser, Heading

_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_MIDDLE = "<｜tool▁sep｜>"
_FENCE = "```"


def _heading(header: str, *endings: str) -> Heading:
    pattern = rf"(?:{_CALLS}{SPACE})?{_CALL}{SPACE}{header}{SPACE}(?={{)"
    return Heading((_CALLS, _CALL), regex.compile(pattern), (*endings, _CALL_END, _CALLS_END))


_FENCED = _heading(rf"function{_MIDDLE}{NAME}{SPACE}{_FENCE}(?:json)?", _FENCE)
_PLAIN = _heading(rf"{NAME}{_MIDDLE}")


class DeepSeekFormat:
    """V3 and R1: each call is `function`, a separator, the name, and an object in a JSON fence."""

    marks = (_CALLS, _CALLS_END, _CALL, _CALL_END, _MIDDLE)

    def parser(self, names: Collection[str], *, is_sure: bool) -> ToolParser:
        """See `ToolFormat`."""
        return HeadedParser(_FENCED, is_sure=is_sure)

    def call(self, name: str) -> tuple[str, str]:
        """See `ToolFormat`."""
        return f"{_CALL}function{_MIDDLE}{name}\n{_FENCE}json\n", f"\n{_FENCE}{_CALL_END}"

    def around(self) -> tuple[str, str, str]:
        """See `ToolFormat`."""
        return _CALLS, "\n", _CALLS_END

    def call_id(self, unique: str) -> str:
        """See `ToolFormat`."""
        return f"call_{unique[:24]}"


class DeepSeekPlainFormat(DeepSeekFormat):
    """V3.1: each call is the name, a separator and an object; nothing stands between two."""

    def parser(self, names: Collection[str], *, is_sure: bool) -> ToolParser:
        """See `ToolFormat`."""
        return HeadedParser(_PLAIN, is_sure=is_sure)

    def call(self, name: str) -> tuple[str, str]:
        """See `ToolFormat`."""
        return f"{_CALL}{name}{_MIDDLE}", _CALL_END

    def around(self) -> tuple[str, str, str]:
        """See `ToolFormat`."""
        return _CALLS, "", _CALLS_END
