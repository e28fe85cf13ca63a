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
from prefixcache.engine.loading import LoadedModel, load_model, longest_sequence_tokens
from prefixcache.errors import EngineError
from prefixcache.index import pack
from prefixcache.kv import KVStore
from prefixcache.tiers import BlockTier
from prefixcache.tiers.disk import DiskTier
from prefixcache.types import Failed, GenerationRequest, RequestId, SamplingParams, Started

_DISK_BYTES = 8 * 2**30
_FLUSH_SECONDS = 60.0
_LOOK_BYTES = 64 * 2**20  # of KV, to load the model with
_SPARE_TOKENS = 512  # of a pool, beyond the longest prompt
_POOL_PROMPTS = 4  # that the pool of the workload holds
_ROUNDS = 2  # of the workload, after one that fills
_FIRST_TOKEN = 1000  # ids below may have a meaning of their own

Report = Callable[[str], None]


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
    """A workload twice as large as the pool, asked in rounds after one that filled."""

    tiers: str
    host_bytes: int
    requests: int
    requests_per_second: float
    hit_rate: float  # of prompt tokens
    host_tokens: int
    disk_tokens: int


def load(config: EngineConfig, *, env: Mapping[str, str], report: Report) -> LoadedModel:
    """Load the model once for all that is measured, named as lasting tiers need it."""
    small = msgspec.structs.replace(config, kv_memory_bytes=_LOOK_BYTES, disk="not opened")
    keep_freed_memory(env)  # as the worker does
    return load_model(small, env=env, report=report)


def measure(
    loaded: LoadedModel,
    config: EngineConfig,
    lengths: Sequence[int],
    folder: Path,
    *,
    report: Report,
    remote: Callable[[], BlockTier] | None = None,
) -> Iterator[Row]:
    """Yield how long prompts take that are computed, and found on the device, host and disk.

    Each is computed once. `report` gets a line before whatever may take some time.

    Args:
        folder: for the disk tier; empty.
        remote: opens a tier on a server that is measured too; None: none is.
    """
    loaded = with_pool(loaded, config, max(lengths) + _SPARE_TOKENS)
    host_bytes = loaded.store.memory_bytes
    config = msgspec.structs.replace(
        config, tier_loading="always", host_memory_bytes=host_bytes + host_bytes // 4
    )
    makers: dict[str, Callable[[], BlockTier]] = {
        "disk": lambda: DiskTier(folder, max_bytes=_DISK_BYTES)
    }
    if remote is not None:
        makers["remote"] = remote
    prompts = [_prompt(loaded, n_tokens, seed=n_tokens) for n_tokens in lengths]
    yield from _measure_host(loaded, config, prompts, makers, report)
    config = msgspec.structs.replace(config, host_memory_bytes=0)
    for name, make in makers.items():
        engine = Engine(loaded, config, lasting={name: make()})
        _run(engine, "warm up", _prompt(loaded, 256, seed=2))
        for prompt, n_tokens in zip(prompts, lengths, strict=True):
            report(f"{n_tokens} tokens: from {name}")
            yield _run(engine, name, prompt)
        engine.close()


def measure_load(
    loaded: LoadedModel, config: EngineConfig, n_tokens: int, folder: Path, *, report: Report
) -> Iterator[Load]:
    """Yield what a pool does with twice its tokens of prompts: alone, with host, host and disk.

    They are asked one after another in rounds, so that each is asked again just after the pool has
    given it up. The host has room for all of them, and beside the disk for less than half.

    Args:
        n_tokens: of one prompt.
        folder: for the disk tier; empty.
    """
    loaded = with_pool(loaded, config, _POOL_PROMPTS * (n_tokens + 2 * config.block_size_tokens))
    prompts = [_prompt(loaded, n_tokens, seed=100 + n) for n in range(2 * _POOL_PROMPTS)]
    pool_bytes = loaded.store.memory_bytes
    for tiers, host_bytes in (
        ("none", 0),
        ("host", 5 * pool_bytes // 2),
        ("host+disk", pool_bytes),
    ):
        sized = msgspec.structs.replace(config, host_memory_bytes=host_bytes)
        has_disk = tiers == "host+disk"
        lasting = {"disk": DiskTier(folder, max_bytes=_DISK_BYTES)} if has_disk else {}
        engine = Engine(loaded, sized, lasting=lasting)
        yield _rounds(engine, prompts, tiers, host_bytes, report)
        engine.close()


def with_pool(loaded: LoadedModel, config: EngineConfig, n_tokens: int) -> LoadedModel:
    """Return the same model over a new pool of so many tokens, which bounds its prompts too."""
    n_blocks = -(-n_tokens // loaded.info.block_size_tokens)
    store = KVStore(loaded.store.layout, n_blocks, loaded.store.device)
    info = msgspec.structs.replace(
        loaded.info,
        pool_blocks=n_blocks,
        max_model_tokens=longest_sequence_tokens(loaded.model.model, config, n_blocks),
    )
    return dataclasses.replace(loaded, store=store, info=info)


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


def _measure_host(
    loaded: LoadedModel,
    config: EngineConfig,
    prompts: Sequence[bytes],
    makers: Mapping[str, Callable[[], BlockTier]],
    report: Report,
) -> Iterator[Row]:
    """Compute each prompt, find it on the device and in host memory, and have the tiers keep it."""
    engine = Engine(loaded, config, lasting={name: make() for name, make in makers.items()})
    _run(engine, "warm up", _prompt(loaded, 256, seed=1))
    for prompt in prompts:
        n_tokens = len(prompt) // 4
        report(f"{n_tokens} tokens: computed, then from device and host")
        yield _run(engine, "computed", prompt)
        if not engine.flush(_FLUSH_SECONDS):  # a write beside them would be in the figures below
            report(f"the tiers have not kept all of it after {_FLUSH_SECONDS:.0f} s")
        yield _run(engine, "device", prompt)
        engine.cache.evict(loaded.info.pool_blocks)
        yield _run(engine, "host", prompt)
        engine.cache.evict(loaded.info.pool_blocks)
    engine.close()


def _rounds(
    engine: Engine, prompts: Sequence[bytes], tiers: str, host_bytes: int, report: Report
) -> Load:
    report(f"workload of {len(prompts)} prompts, tiers {tiers}: filling")
    for prompt in prompts:
        _run(engine, tiers, prompt)
    engine.flush(_FLUSH_SECONDS)
    before = engine.stats()
    begin, rows = time.perf_counter(), list[Row]()
    for number in range(_ROUNDS):
        report(f"workload, tiers {tiers}: round {number + 1} of {_ROUNDS}")
        rows += [_run(engine, tiers, prompt) for prompt in prompts]
    seconds = time.perf_counter() - begin
    after = engine.stats()

    def tier_tokens(name: str) -> int:
        if name not in after.tiers:
            return 0
        return after.tiers[name].hit_tokens - before.tiers[name].hit_tokens

    return Load(
        tiers=tiers,
        host_bytes=host_bytes,
        requests=len(rows),
        requests_per_second=len(rows) / seconds,
        hit_rate=sum(row.cached_tokens for row in rows) / sum(row.prompt_tokens for row in rows),
        host_tokens=tier_tokens("host"),
        disk_tokens=tier_tokens("disk"),
    )


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
