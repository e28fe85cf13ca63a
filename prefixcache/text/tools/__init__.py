"""Tool calls in a model's own words: finding the format, parsing answers, forcing calls."""

from prefixcache.text.tools.calls import (
    CallArguments,
    CallBegin,
    Content,
    Piece,
    ToolFormat,
    ToolParser,
)
from prefixcache.text.tools.canonical import canonical
from prefixcache.text.tools.forcing import forced_calls
from prefixcache.text.tools.formats import fallback_format, format_of

__all__ = [
    "CallArguments",
    "CallBegin",
    "Content",
    "Piece",
    "ToolFormat",
    "ToolParser",
    "canonical",
    "fallback_format",
    "forced_calls",
    "format_of",
]
