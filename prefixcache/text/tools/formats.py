"""Which format of tool calls a model was taught, told by its chat template."""

from __future__ import annotations

from collections.abc import Iterable

from prefixcache.text.tools.calls import ToolFormat
from prefixcache.text.tools.deepseek import DeepSeekFormat, DeepSeekPlainFormat
from prefixcache.text.tools.hermes import HermesFormat
from prefixcache.text.tools.llama import LlamaFormat
from prefixcache.text.tools.mistral import MistralFormat
from prefixcache.text.tools.named import MistralArgsFormat
from prefixcache.text.tools.qwen import QwenFormat

# All of these texts stand in a template, and the format, where it is known; the first that fits.
_FORMATS: tuple[tuple[tuple[str, ...], type[ToolFormat] | None], ...] = (
    (("｜DSML｜",), None),  # DeepSeek's from V3.2 on
    (("<｜tool▁sep｜>", "```json"), DeepSeekFormat),
    (("<｜tool▁sep｜>",), DeepSeekPlainFormat),
    (("<arg_key>",), None),
    (("[CALL_ID]",), None),
    (("<tool_call>", "<function=", "<parameter="), QwenFormat),
    (("<function=",), None),
    (("<parameter=",), None),
    (("[TOOL_CALLS]", "[ARGS]"), MistralArgsFormat),
    (("[ARGS]",), None),
    (("[TOOL_CALLS]",), MistralFormat),
    (("<tool_call>",), HermesFormat),
    (("<|python_tag|>",), LlamaFormat),
    (('"name"', '"parameters"'), LlamaFormat),
)


def fallback_format() -> ToolFormat:
    """Return the format of calls that are forced on a model which was taught none."""
    return HermesFormat()


def format_of(literals: Iterable[str]) -> ToolFormat | None:
    """Return the format that a template with these texts asks the model for.

    None: it speaks of no tools, or in a way that is not known here.
    """
    written = "\0".join(literals)
    for texts, found in _FORMATS:
        if all(text in written for text in texts):
            return None if found is None else found()
    return None
