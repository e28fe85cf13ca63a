"""Short ways to write and play cache scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.cases.run_ops import ScriptRunner

Op = Mapping[str, Any]

P = [7, 7, 3, 9, 4, 1, 8, 2]  # two blocks of four


def run(name: str, tokens: list[int], out: list[int] | None = None, **more: Any) -> Op:
    return {"op": "run", "id": name, "tokens": tokens, "out": out or [90], **more}


def hold(name: str, tokens: list[int], **more: Any) -> Op:
    return {"op": "hold", "id": name, "tokens": tokens, **more}


def finish(name: str, out: list[int] | None = None, **more: Any) -> Op:
    return {"op": "finish", "id": name, "out": out or [90], **more}


def abort(name: str, **more: Any) -> Op:
    return {"op": "abort", "id": name, **more}


def evict(blocks: int) -> Op:
    return {"op": "evict", "blocks": blocks}


def cached(name: str, low: int, high: int | None = None) -> Op:
    return {"op": "expect", "id": name, "cached_tokens": [low, low if high is None else high]}


def matched(tokens: list[int], low: int, high: int | None = None, **more: Any) -> Op:
    high = low if high is None else high
    return {"op": "expect_match", "tokens": tokens, "cached_tokens": [low, high], **more}


def pool(**counts: int) -> Op:
    return {"op": "expect_pool", **counts}


def play(*ops: Op, block_size: int = 4, pool_blocks: int = 8) -> list[str]:
    script = {
        "format": "cache-ops/1",
        "block_size": block_size,
        "pool_blocks": pool_blocks,
        "ops": list(ops),
    }
    return ScriptRunner(json.loads(json.dumps(script))).differences()
