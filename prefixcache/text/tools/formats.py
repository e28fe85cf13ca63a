"""Which format of tool calls a model was taught, told by its chat template."""

from __future__ import annotations

from collections.abc import Iterable

from prefixcache.text.tools.calls import ToolFormat
from prefixcache.text.tools.hermes import HermesFormat
from prefixcache.text.tools.llama import LlamaFormat
from prefixcache.text.tools.mistral import MistralFormat

# Formats that write no JSON objects between the same marks; they cannot be read yet.
_OTHERS = ("<function=", "<arg_key>", "[ARGS]", "<parameter=")


def fallback_format() -> ToolFormat:
    """Return the format of calls that are forced on a model which was taught none."""
    return HermesFormat()


def format_of(literals: Iterable[str]) -> ToolFormat | None:
    """Return the format that a template with these texts asks the model for.

    None: it speaks of no tools, or in a way that is not known here.
    """
    written = "\0".join(literals)
    if any(mark in written for mark in _OTHERS):
        return None
    if "[TOOL_CALLS]" in written:
        return MistralFormat()
    if "<tool_call>" in written:
        return HermesFormat()
    if "<|python_tag|>" in written or ('"name"' in written and '"parameters"' in written):
        return LlamaFormat()
    return None
