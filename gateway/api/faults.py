"""Where a body is no JSON, or is nested without end: the field that an error names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

_MAX_READ_BYTES = 2**20  # a fault further on is told without its field
_DEEP = 200  # levels; nobody means more
_SHOWN_PARTS = 3  # of the way to what is nested too deeply
_SHOWN_BYTES = 20

_TOKEN = re.compile(
    rb'(?P<text>"[^"\\]*+(?:\\.[^"\\]*+)*+")|(?P<mark>[][{}:,])|(?P<bare>[^][{}:,"\s]++)|(?P<open>")',
    re.DOTALL,
)
_BARE = re.compile(rb"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")

Path = list[str | int]  # keys and indexes


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a body, and where."""

    field: str | None  # None: it is not within one
    reason: str | None  # None: the decoder's own is as good


def syntax_fault(body: bytes, at: int | None) -> Fault:
    """Return where `body` is no JSON; the decoder stopped at byte `at`, or None: at the end."""
    for token, path in _tokens(body):
        reason = _reason(token)
        if reason is not None or (at is not None and token.end() > at):
            return Fault(field_name(path), reason)
    return Fault(None, None)


def deep_field(body: bytes) -> str | None:
    """Return the field in which `body` is nested deeper than anybody means, if one is."""
    for _, path in _tokens(body):
        if len(path) > _DEEP:
            return field_name(path[:_SHOWN_PARTS])
    return None


def field_name(path: Path) -> str | None:
    """Return keys and indexes as one name: messages[0].content."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".") or None


def _tokens(body: bytes) -> Iterator[tuple[re.Match[bytes], Path]]:
    """Yield each token and where it stands. The path is one list, changed as it goes on."""
    path: Path = []
    is_key = False
    for token in _TOKEN.finditer(body, 0, _MAX_READ_BYTES):
        match token.group():
            case b"{":
                path.append("")
                is_key = True
            case b"[":
                path.append(0)
            case b"}" | b"]":
                del path[-1:]
                is_key = False
            case b",":
                is_key = _move_on(path)
            case b":":
                is_key = False
            case text if is_key:
                path[-1] = _key(text)
        yield token, path


def _move_on(path: Path) -> bool:
    """Go to the next item of a list; return whether a key comes next instead."""
    match path:
        case [*_, int(index)]:
            path[-1] = index + 1
            return False
    return bool(path)


def _key(text: bytes) -> str:
    return text.strip(b'"').decode("utf-8", "replace")


def _reason(token: re.Match[bytes]) -> str | None:
    """Return why a token is none of JSON's, or None when it is one."""
    text = token.group()
    if token["open"] is not None:
        return "a text without an end"
    if token["bare"] is not None and not _BARE.fullmatch(text):
        return f"{text[:_SHOWN_BYTES].decode('utf-8', 'replace')} is no JSON value"
    if token["text"] is None:
        return None
    try:
        str(json.loads(text)).encode()
    except ValueError:
        return "a text with half of a surrogate pair, or that is not UTF-8 or badly escaped"
    return None
