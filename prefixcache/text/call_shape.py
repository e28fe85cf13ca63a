"""How a template takes the calls of earlier turns: their arguments, and the content beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prefixcache.errors import TemplateError
from prefixcache.text.template import ChatTemplate

_NAME, _VALUE = "earlier", "argued"  # what a template must write to have shown a call


@dataclass(frozen=True, slots=True)
class CallShape:
    """The form in which a template wants a turn that calls tools."""

    arguments_are_text: bool = False  # JSON text that it writes as it is; else an object
    content_is_none: bool = False  # where there is no content; else it is ""

    def shaped(self, fields: dict[str, object]) -> dict[str, object]:
        """Return a message in that form; one without calls stays what it is."""
        calls = fields.get("tool_calls")
        if not isinstance(calls, Sequence) or isinstance(calls, str) or not calls:
            return fields
        if self.arguments_are_text:
            fields = {**fields, "tool_calls": [_with_text(call) for call in calls]}
        if self.content_is_none and not fields.get("content"):
            fields = {**fields, "content": None}
        return fields


_SHAPES = tuple(CallShape(text, none) for none in (False, True) for text in (False, True))


def call_shape(template: ChatTemplate) -> CallShape:
    """Return the first form that `template` shows a call in; the plain one where it shows none.

    Some write arguments as JSON and some join them as text, and some look at calls only where there
    is no content: what a template does not expect it refuses, or leaves out without a word.

    Cost: a few short prompts are rendered.
    """
    return next((shape for shape in _SHAPES if _is_shown(template, shape)), CallShape())


def _is_shown(template: ChatTemplate, shape: CallShape) -> bool:
    call = {"name": _NAME, "arguments": {"a": _VALUE}}
    calls = [{"id": "c12345678", "type": "function", "function": call}]
    turn: dict[str, object] = {"role": "assistant", "content": "", "tool_calls": calls}
    try:
        messages: list[Mapping[str, object]] = [
            {"role": "user", "content": "-"},
            shape.shaped(turn),
        ]
        prompt = template.render(messages, add_generation_prompt=False)
    except TemplateError:
        return False
    return _NAME in prompt and _VALUE in prompt


def _with_text(call: object) -> object:
    match call:
        case Mapping() as fields:
            match fields.get("function"):
                case {"arguments": Mapping() as arguments, **rest}:
                    written = json.dumps(dict(arguments), ensure_ascii=False)
                    return {**fields, "function": {**rest, "arguments": written}}
    return call
