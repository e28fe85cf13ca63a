"""The trace formats by name, and which one a file is in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType

from prefixcache.errors import ConfigError, TraceError
from prefixcache.traces.files import read_head
from prefixcache.traces.formats.blocks import read_mooncake, read_qwen
from prefixcache.traces.formats.chats import read_agent_log, read_chat_log, read_sharegpt
from prefixcache.traces.formats.tables import (
    AZURE_COLUMNS,
    BURSTGPT_COLUMNS,
    read_azure,
    read_burstgpt,
)
from prefixcache.traces.formats.weka import read_weka
from prefixcache.traces.reading import Reading
from prefixcache.traces.recorder import RECORDING, read_recording
from prefixcache.traces.records import TraceRequest

_KEY = re.compile(rb'(?<!\\)"(\w+)"\s*:')


class Merge(Enum):
    """How the files of one trace go together."""

    BY_TIME = "by time"  # each is in order, and they share a clock
    TOGETHER = "together"  # all begin at one moment
    IN_TURN = "in turn"  # there are no times


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """What a format is called, and how its files are read."""

    name: str
    read: Callable[[Path, Reading], Iterator[TraceRequest]]
    time_unit: str  # of its timestamps: s, ms or us
    partial_block: str  # what becomes of a last block that is not full
    merge: Merge = Merge.BY_TIME
    has_own_ids: bool = True  # equal ids of two files are different prefixes
    has_partial_ids: bool = False
    has_prefix_ids: bool = True  # an id stands for all before it too; else for its block alone
    has_text: bool = False


_WITH_ID = "has an id of its own and counts with the tokens that are in it"
_WITHOUT = "has no id: its tokens count, and are never hit"
_ALL = (
    TraceFormat("mooncake", read_mooncake, "ms", _WITH_ID, has_partial_ids=True),
    TraceFormat(
        "qwen-bailian", read_qwen, "s", _WITH_ID, has_partial_ids=True, has_prefix_ids=False
    ),
    TraceFormat("weka", read_weka, "s", _WITHOUT, Merge.TOGETHER),
    TraceFormat("lmcache-agent", read_agent_log, "us", _WITHOUT, has_own_ids=False, has_text=True),
    TraceFormat("burstgpt", read_burstgpt, "s", _WITH_ID, has_partial_ids=True),
    TraceFormat("azure", read_azure, "s", _WITH_ID, has_partial_ids=True),
    TraceFormat("openai-chat", read_chat_log, "s", _WITHOUT, has_own_ids=False, has_text=True),
    TraceFormat(
        "sharegpt", read_sharegpt, "s", _WITHOUT, Merge.IN_TURN, has_own_ids=False, has_text=True
    ),
    TraceFormat("recording", read_recording, "s", _WITHOUT, has_own_ids=False),
)
FORMATS: Mapping[str, TraceFormat] = MappingProxyType({format.name: format for format in _ALL})
_SHORT = {
    "qwen": "qwen-bailian",
    "bailian": "qwen-bailian",
    "lmcache": "lmcache-agent",
    "openai": "openai-chat",
    "chat": "openai-chat",
    "gateway": "recording",
}


def format_named(name: str) -> TraceFormat:
    """Return a format by its name or a short form of it. Raises ConfigError: there is none."""
    found = FORMATS.get(_SHORT.get(name, name))
    if found is None:
        raise ConfigError("format", name, f"must be one of {', '.join(FORMATS)}")
    return found


def format_of(path: Path) -> TraceFormat:
    """Return the format that a file is in, by what it begins with.

    Raises:
        TraceError: it cannot be read, or is in none of them.
    """
    head = read_head(path)
    name = _by_keys(head) or _by_columns(head)
    if name is None:
        reason = f"its format is not known; name one of {', '.join(FORMATS)}"
        raise TraceError(path, "its beginning", reason if head else "the file is empty")
    return FORMATS[name]


def _by_keys(head: bytes) -> str | None:
    if not head.lstrip().startswith((b"{", b"[")):
        return None
    keys = {key.decode() for key in _KEY.findall(head)}
    marks = {
        "recording": RECORDING.encode() in head.split(b"\n", 1)[0] and "version" in keys,
        "qwen-bailian": {"chat_id", "input_length"} <= keys,
        "mooncake": "input_length" in keys,
        "weka": {"block_size", "requests"} <= keys,
        "sharegpt": "conversations" in keys,
        "openai-chat": "messages" in keys,
        "lmcache-agent": {"timestamp", "input"} <= keys,
    }
    return next((name for name, is_it in marks.items() if is_it), None)


def _by_columns(head: bytes) -> str | None:
    line = head.split(b"\n", 1)[0].decode(errors="replace")
    names = {name.strip() for name in line.split(",")}
    if {AZURE_COLUMNS.timestamp, AZURE_COLUMNS.input} <= names:
        return "azure"
    return "burstgpt" if {BURSTGPT_COLUMNS.timestamp, BURSTGPT_COLUMNS.input} <= names else None
