"""Time to first token by where a prompt's KV lies, and a workload that is larger than the pool."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from prefixcache.config import EngineConfig
from prefixcache.engine import Engine
from prefixcache.engine.allocator import keep_freed_memory
from prefixcache.engine.loading import LoadedModel, load_model
from prefixcache.errors import EngineError
from prefixcache.index import pack
from prefixcache.tiers import BlockTier
from prefixcache.tiers.disk import DiskTier
from prefixcache.types import Failed, GenerationRequest, RequestId, SamplingParams, Started

_DISK_BYTES = 8 * 2**30
_FLUSH_SECONDS = 60.0
_LOOK_BYTES = 64 * 2**20
_ROUNDS = 3  # of the workload
_FIRST_TOKEN = 1000  # ids below may have a meaning of their own


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt that was read in one way."""

    source: str
    prompt_tokens: int
    cached_tokens: int
    seconds: float  # to its first token
    cpu_seconds: float  # of the process, all threads


@dataclass(frozen=True, slots=True)
class Load:
    """A workload twice as large as the pool, asked in rounds."""

    tiers: str
    requests: int
    requests_per_second: float
    hit_rate: float  # of prompt tokens
    host_tokens: int


def bytes_per_token(
    config: EngineConfig, *, env: Mapping[str, str], report: Callable[[str], None]
) -> int:
    """Return what a token's KV takes with the model of `config`. Cost: it is loaded."""
    small = msgspec.structs.replace(config, kv_memory_bytes=_LOOK_BYTES)
    return load_model(small, env=env, report=report).info.kv_bytes_per_token


def measure(
    config: EngineConfig,
    lengths: Sequence[int],
    folder: Path,
    *,
    env: Mapping[str, str],
    report: Callable[[str], None],
    remote: Callable[[], BlockTier] | None = None,
) -> Iterator[Row]:
    """Yield how long prompts take that are computed, and found on the device, host and disk.

    Args:
        folder: for the disk tier; empty.
        remote: opens a tier on a server that is measured too; None: none is.
    """
    keep_freed_memory(env)  # as the worker does
    config = msgspec.structs.replace(config, disk=str(folder), tier_loading="always")
    loaded = load_model(config, env=env, report=report)
    prompts = [_prompt(loaded, n_tokens, seed=n_tokens) for n_tokens in lengths]
    makers: dict[str, Callable[[], BlockTier]] = {
        "disk": lambda: DiskTier(folder, max_bytes=_DISK_BYTES)
    }
    if remote is not None:
        makers["remote"] = remote
    engine = Engine(loaded, config, lasting={name: make() for name, make in makers.items()})
    _run(engine, "warm up", _prompt(loaded, 256, seed=1))
    for prompt in prompts:
        yield _run(engine, "computed", prompt)
        yield _run(engine, "device", prompt)
        engine.cache.evict(loaded.info.pool_blocks)
        yield _run(engine, "host", prompt)
        engine.flush(_FLUSH_SECONDS)
        engine.cache.evict(loaded.info.pool_blocks)
    engine.close()
    small = msgspec.structs.replace(config, host_memory_bytes=0)
    for name, make in makers.items():
        engine = Engine(loaded, small, lasting={name: make()})
        _run(engine, "warm up", _prompt(loaded, 256, seed=2))
        for prompt in prompts:
            yield _run(engine, name, prompt)
        engine.close()


def measure_load(
    config: EngineConfig,
    n_tokens: int,
    *,
    env: Mapping[str, str],
    report: Callable[[str], None],
) -> Iterator[Load]:
    """Yield what a pool does with twice its tokens of prompts, without and with a host tier.

    `n_tokens`: of one prompt. They are asked one after another, so that all of it is asked again
    just after it was given up.
    """
    loaded = load_model(config, env=env, report=report)
    info = loaded.info
    n_prompts = max(2 * info.pool_blocks * info.block_size_tokens // n_tokens, 2)
    prompts = [_prompt(loaded, n_tokens, seed=100 + number) for number in range(n_prompts)]
    memory_bytes = 3 * n_prompts * n_tokens * info.kv_bytes_per_token // 2
    for tiers, host_bytes in (("none", 0), ("host", memory_bytes)):
        engine = Engine(loaded, msgspec.structs.replace(config, host_memory_bytes=host_bytes))
        begin = time.perf_counter()
        rows = [_run(engine, tiers, prompt) for _ in range(_ROUNDS) for prompt in prompts]
        seconds = time.perf_counter() - begin
        stats = engine.stats()
        host = stats.tiers.get("host")
        yield Load(
            tiers=tiers,
            requests=len(rows),
            requests_per_second=len(rows) / seconds,
            hit_rate=stats.cached_tokens_total / stats.prompt_tokens_total,
            host_tokens=0 if host is None else host.hit_tokens,
        )
        engine.close()


def as_data(rows: Sequence[Row | Load]) -> list[dict[str, object]]:
    """Return rows ready for JSON."""
    return [dataclasses.asdict(row) for row in rows]


def as_table(rows: Sequence[Row], loads: Sequence[Load]) -> str:
    """Return rows as lines of text under headings."""
    lines = [f"{'source':<10}{'tokens':>8}{'cached':>8}{'seconds':>10}{'cpu':>10}"]
    lines += [
        f"{row.source:<10}{row.prompt_tokens:>8}{row.cached_tokens:>8}"
        f"{row.seconds:>10.3f}{row.cpu_seconds:>10.3f}"
        for row in rows
    ]
    lines += ["", f"{'tiers':<10}{'requests':>9}{'a second':>10}{'hit rate':>10}"]
    lines += [
        f"{load.tiers:<10}{load.requests:>9}{load.requests_per_second:>10.2f}{load.hit_rate:>10.1%}"
        for load in loads
    ]
    return "\n".join(lines)


def _prompt(loaded: LoadedModel, n_tokens: int, *, seed: int) -> bytes:
    most = loaded.info.vocab_size
    first = min(_FIRST_TOKEN, most // 2)
    return pack(np.random.default_rng(seed).integers(first, most, n_tokens).tolist())


def _run(engine: Engine, source: str, prompt: bytes) -> Row:
    """Serve a prompt alone, to its first token."""
    begin, cpu_begin = time.perf_counter(), time.process_time()
    sampling = SamplingParams(max_tokens=1, ignore_eos=True)
    engine.submit(
        GenerationRequest(request_id=RequestId(source), token_ids=prompt, sampling=sampling)
    )
    started: Started | None = None
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, Failed):
                raise EngineError(f"a prompt of the measurement failed: {event.message}")
            started = event if isinstance(event, Started) else started
    assert started is not None, "whoever has finished was started"
    return Row(
        source=source,
        prompt_tokens=started.prompt_tokens,
        cached_tokens=started.cached_tokens,
        seconds=time.perf_counter() - begin,
        cpu_seconds=time.process_time() - cpu_begin,
    )
