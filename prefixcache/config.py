"""Settings of one engine, built and checked once and then passed down."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from prefixcache.errors import ConfigError

PolicyName = Literal["lru", "cost-aware", "lfu", "fifo", "slru", "priority", "ttl"]
DType = Literal["auto", "float32", "bfloat16", "float16"]


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an engine loads and how much it may use."""

    model: str | None = None  # folder, .gguf file or hub name; None: the default chat model
    dtype: DType = "auto"  # auto: float32 on a CPU, the checkpoint's own on a GPU
    device: str = "auto"  # auto: cuda where there is one, else cpu
    threads: int | None = None  # torch's CPU threads; None: torch decides
    kv_memory_bytes: int | None = None  # None: a share of what is free at start
    block_size_tokens: int = 16
    max_model_tokens: int | None = None  # None: what the model was made for
    max_running_requests: int = 16
    max_waiting_requests: int = 256
    max_step_tokens: int = 2048  # most prompt tokens of one step
    step_seconds: float = 0.5  # prompts are cut so that a step takes about this long
    growth_blocks: int = 8  # a growing request takes consecutive blocks in such portions
    prefix_cache: bool = True  # False: nothing is looked up, nothing is kept
    token_exact_reuse: bool = True  # copy the shared tokens of a block that is left midway
    eviction_policy: PolicyName = "lru"  # which cached prefixes go when room is needed
    idle_ttl_seconds: float = 3600.0  # eviction_policy ttl: what is unused for so long goes
    max_grammar_bytes: int = 64 * 2**10  # of one request's schema, expression or grammar
    max_grammars: int = 64  # compiled ones that are kept
    grammar_seconds: float = 10.0  # for one to be compiled

    def __post_init__(self) -> None:
        for setting in (
            "block_size_tokens",
            "max_running_requests",
            "max_waiting_requests",
            "max_step_tokens",
            "max_grammar_bytes",
            "max_grammars",
        ):
            if getattr(self, setting) < 1:
                raise ConfigError(setting, getattr(self, setting), "must be at least 1")
        for setting in ("threads", "kv_memory_bytes", "max_model_tokens"):
            value = getattr(self, setting)
            if value is not None and value < 1:
                raise ConfigError(setting, value, "must be at least 1, or left out")
        if not self.step_seconds > 0:
            raise ConfigError("step_seconds", self.step_seconds, "must be above 0")
        for setting in ("idle_ttl_seconds", "grammar_seconds"):
            if not getattr(self, setting) > 0:
                raise ConfigError(setting, getattr(self, setting), "must be above 0")
        if self.eviction_policy not in get_args(PolicyName):
            choices = ", ".join(get_args(PolicyName))
            raise ConfigError("eviction_policy", self.eviction_policy, f"must be one of {choices}")
        if self.growth_blocks < 0:
            raise ConfigError("growth_blocks", self.growth_blocks, "must be at least 0")
