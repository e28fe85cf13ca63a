"""A grammar under which an answer is tool calls and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from prefixcache.text.tokenizer import Tokenizer
from prefixcache.text.tools.calls import ToolFormat
from prefixcache.types import JSON_WHITE_SPACE, Grammar, GrammarKind


def forced_calls(
    tools: Mapping[str, Mapping[str, object]],
    tool_format: ToolFormat,
    tokenizer: Tokenizer,
    *,
    may_be_many: bool,
    strict: Sequence[str] = (),
    otherwise: Grammar | None = None,
) -> Grammar:
    """Return a grammar of one call or more.

    Args:
        tools: by name, the JSON schema of its arguments.
        tool_format: how the model writes calls.
        tokenizer: some marks are special tokens of it.
        may_be_many: whether several calls may come.
        strict: the tools whose schema must be followed to the letter; of others, keywords that
            cannot be enforced are passed over.
        otherwise: a JSON schema that the answer may follow instead of calling.
    """
    before, between, after = (_written(text, tokenizer) for text in tool_format.around())
    several = f" ({between} call)*" if may_be_many else ""
    lines = [
        "start: calls" if otherwise is None else "start: calls | answer",
        f"calls: {before} call{several} {after}",
        "call: " + " | ".join(f"call{index}" for index in range(len(tools))),
    ]
    for index, (name, schema) in enumerate(tools.items()):
        head, tail = (_written(text, tokenizer) for text in tool_format.call(name))
        lines.append(f"call{index}: {head} arguments{index} {tail}")
        lines.append(f"arguments{index}: %json {_schema(schema, is_strict=name in strict)}")
    if otherwise is not None:
        schema = json.loads(otherwise.text)
        if not isinstance(schema, dict):  # true and false are schemas too
            schema = {} if schema else {"anyOf": []}
        lines.append(f"answer: %json {_schema(schema, is_strict=not otherwise.is_lenient)}")
    return Grammar(GrammarKind.LARK, "\n".join(lines))


def _schema(schema: Mapping[str, object], *, is_strict: bool) -> str:
    options = {"whitespace_pattern": JSON_WHITE_SPACE, "lenient": not is_strict}
    return json.dumps({**schema, "x-guidance": options})


def _written(text: str, tokenizer: Tokenizer) -> str:
    """Return `text` in Lark's notation: quoted, but for the special tokens in it."""
    specials = {
        token.spelling: token_id
        for token_id, token in tokenizer.added_tokens.items()
        if token.is_special and token.spelling and token.spelling in text
    }
    for spelling, token_id in specials.items():
        before, _, after = text.partition(spelling)
        parts = (_written(before, tokenizer), f"<[{token_id}]>", _written(after, tokenizer))
        return " ".join(part for part in parts if part)
    return json.dumps(text) if text else ""
