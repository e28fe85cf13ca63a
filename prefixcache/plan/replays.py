"""What a plan takes from the result of `prefixcache replay`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from prefixcache.errors import TraceError


class ReplayRow(msgspec.Struct, frozen=True, kw_only=True):
    """One trace, policy and capacity."""

    trace: str
    policy: str
    capacity_blocks: int | None  # None: unlimited
    block_tokens: int
    requests: int
    tokens: int
    hit_tokens: int
    attention_pairs: int  # (token, token that it sees), without windows
    hit_attention_pairs: int

    @property
    def hit_share(self) -> float:
        """The part of all prompt tokens that was cached."""
        return self.hit_tokens / max(self.tokens, 1)


class _Result(msgspec.Struct):
    results: list[ReplayRow]


def read_replay(path: Path) -> list[ReplayRow]:
    """Return the rows of a file that `prefixcache replay --json` wrote.

    Raises:
        TraceError: it cannot be read or is something else.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Result).results
    except OSError as error:
        raise TraceError(path, "the file", error.strerror or "cannot be read") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(path, "the file", f"is no result of a replay: {error}") from error
