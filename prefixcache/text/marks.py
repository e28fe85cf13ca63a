"""Places in a conversation, and how much of its prompt is fixed by what comes before them.

A template may show tools before or after the system's text, move things, or look ahead; only
rendering tells. So the conversation is cut at a place, something else is put behind, and what the
two prompts have in common at their start is what that place fixes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prefixcache.errors import TemplateError
from prefixcache.text.control import Message

Tools = Sequence[object] | None
Encode = Callable[[Sequence[Message], Tools], list[int]]

_OTHER = "\ue000"  # for private use: no text goes on with it
_NEXT_ROLES = {"user": "assistant", "tool": "assistant", "function": "assistant"}


@dataclass(frozen=True, slots=True)
class Mark:
    """A place right after something: a part of a message, a whole message, or the tools."""

    message_index: int | None  # None: after the tools, before all messages
    part_index: int | None = None  # None: after the whole message, its tool calls included


def fixed_tokens(
    ids: Sequence[int], messages: Sequence[Message], tools: Tools, mark: Mark, encode: Encode
) -> int:
    """Return how many of `ids` stay the same when what follows `mark` is something else.

    Args:
        ids: what `encode` makes of `messages` and `tools`.
        encode: makes a prompt of a conversation.

    Returns:
        0 also where the template refuses every conversation that is cut there.

    Cost: one prompt as long as what comes before the mark is encoded.
    """
    for other in _others(messages, mark):
        try:
            found = encode(other, tools)
        except TemplateError:
            continue
        return _common(ids, found)
    return 0


def _others(messages: Sequence[Message], mark: Mark) -> Iterator[list[Message]]:
    """Yield conversations that go on differently after `mark`, the likeliest first."""
    if mark.message_index is None:
        if messages[0].get("role") in ("system", "developer"):
            yield [_message("system"), _message("user")]
        yield [_message("user")]
        return
    index = mark.message_index
    before, message, after = messages[:index], messages[index], messages[index + 1 :]
    parts = message.get("content")
    if mark.part_index is not None and _has_more(message, mark.part_index):
        assert isinstance(parts, Sequence)
        kept = [*parts[: mark.part_index + 1], {"type": "text", "text": _OTHER}]
        message = {name: value for name, value in message.items() if name != "tool_calls"}
        yield from _continued([*before, {**message, "content": kept}], [])
    yield from _continued([*before, message], after[:1])


def _continued(messages: list[Message], following: Sequence[Message]) -> Iterator[list[Message]]:
    """Yield `messages` with a turn behind them as `following` has one, or as its kind would be."""
    if following:
        same = {name: value for name, value in following[0].items() if name != "tool_calls"}
        yield [*messages, {**same, "content": _OTHER}]
    role = _NEXT_ROLES.get(str(messages[-1].get("role")), "user")
    yield [*messages, _message(role)]
    yield [*messages, _message(role), _message("user")]
    yield messages


def _has_more(message: Message, part_index: int) -> bool:
    """Whether `message` goes on after that part."""
    parts = message.get("content")
    if isinstance(parts, str) or not isinstance(parts, Sequence):
        return False
    return part_index + 1 < len(parts) or bool(message.get("tool_calls"))


def _message(role: str) -> Mapping[str, object]:
    return {"role": role, "content": _OTHER}


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(left), len(right)))
