"""Settings of one engine, built and checked once and then passed down."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, get_args

import msgspec

from prefixcache.errors import ConfigError
from prefixcache.types import MAX_GRAMMAR_BYTES

PolicyName = Literal["lru", "cost-aware", "learned", "lfu", "fifo", "slru", "priority", "ttl"]
AdmissionOrderName = Literal["cache-aware", "fcfs"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
KVFormatName = Literal["auto", "float32", "bfloat16", "float16", "fp8", "int8", "int4"]
WeightsName = Literal["auto", "float32", "16bit", "int8"]
SpeculationName = Literal["auto", "off"]
CompactionName = Literal["auto", "off"]
LoadingName = Literal["auto", "always", "never"]

_PRUNING = re.compile(r"([1-9][0-9]{0,8})\+([1-9][0-9]{0,8})", re.ASCII)

DEFAULT_IDLE_TTL_SECONDS = 3600.0
MAX_ADAPTER_NAME = 128  # characters
MIN_REMOTE_VALUE_BYTES = 1 << 10
MAX_REMOTE_VALUE_BYTES = 1 << 28  # a server's own limit is 512 MiB


class Pruning(NamedTuple):
    """What is left of a prompt: its first tokens, and those up to each token that looks back."""

    lead_tokens: int
    window_tokens: int  # a token's own included

    @classmethod
    def read(cls, text: str) -> Pruning:
        """Return what a setting says, such as 4+1024.

        Raises:
            ConfigError: it is something else.
        """
        found = _PRUNING.fullmatch(text)
        if found is None:
            reason = "must be two numbers from 1 on, such as 4+1024: first tokens and recent ones"
            raise ConfigError("kv_prune", text, reason)
        return cls(int(found[1]), int(found[2]))


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an engine loads and how much it may use."""

    model: str | None = None  # folder, .gguf file, hub name[@revision]; None: the default model
    adapters: dict[str, str] = {}  # LoRA adapters to begin with: folders by name
    dtype: DType = "auto"  # auto: float32 on a CPU, the checkpoint's own on a GPU
    weights: WeightsName = "auto"  # what products read; auto: 16bit on a CPU, dtype on a GPU
    kv_format: KVFormatName = "auto"  # how keys and values are kept; auto: in dtype
    kv_prune: str | None = None  # 4+1024: 4 first and 1024 recent tokens are seen; None: all
    invariant: bool = False  # a request's logits do not depend on others or the cache, bit for bit
    device: str = "auto"  # auto: cuda where there is one, else cpu
    threads: int | None = None  # torch's CPU threads; None: torch decides
    kv_memory_bytes: int | None = None  # None: a share of what is free at start
    host_memory_bytes: int = 0  # for what leaves the device; 0: it is forgotten
    disk: str | None = None  # a folder where KV outlives the process; None: none
    disk_bytes: int = 10 * 2**30  # of that folder
    remote: str | None = None  # URL of a server that keeps KV; None: none
    remote_ttl_seconds: int = 86_400  # what was neither written nor read for so long is gone
    remote_value_bytes: int = 2**20  # the most in one value; larger blocks are cut in pieces
    tier_loading: LoadingName = "auto"  # auto: where that is faster than computing, as measured
    block_size_tokens: int = 16
    max_model_tokens: int | None = None  # None: what the model was made for
    max_running_requests: int = 16
    max_waiting_requests: int = 256
    admission_order: AdmissionOrderName = "cache-aware"  # among one tenant's of one priority
    max_overtakes: int = 16  # that a waiting request lets pass before it is the next
    max_queue_seconds: float | None = None  # a request not admitted by then fails; None: it waits
    max_step_tokens: int = 2048  # most tokens of one step, and so most requests in it
    step_seconds: float = 0.5  # prompts are cut so that a step takes about this long
    speculation: SpeculationName = "auto"  # auto: draft tokens where that is faster
    max_draft_tokens: int = 15  # of one request in one step; 16 rows are read in one piece
    growth_blocks: int = 8  # a growing request takes consecutive blocks in such portions
    compaction: CompactionName = "off"  # auto: bring long prefixes together while nothing runs
    prefix_cache: bool = True  # False: nothing is looked up, nothing is kept
    token_exact_reuse: bool = True  # copy the shared tokens of a block that is left midway
    eviction_policy: PolicyName = "lru"  # which cached prefixes go when room is needed
    # eviction_policy ttl: what is unused for so long goes
    idle_ttl_seconds: float = DEFAULT_IDLE_TTL_SECONDS
    max_grammar_bytes: int = MAX_GRAMMAR_BYTES  # of one request's schema, expression or grammar
    max_grammars: int = 64  # compiled ones that are kept
    max_grammars_bytes: int = 256 * 2**20  # estimated, of those; the latest used stay
    grammar_seconds: float = 10.0  # for one to be compiled

    def __post_init__(self) -> None:
        for setting in (
            "block_size_tokens",
            "max_running_requests",
            "max_waiting_requests",
            "max_step_tokens",
            "max_grammar_bytes",
            "max_grammars",
            "max_grammars_bytes",
            "max_draft_tokens",
            "disk_bytes",
            "remote_ttl_seconds",
        ):
            if getattr(self, setting) < 1:
                raise ConfigError(setting, getattr(self, setting), "must be at least 1")
        for setting in ("threads", "kv_memory_bytes", "max_model_tokens"):
            value = getattr(self, setting)
            if value is not None and value < 1:
                raise ConfigError(setting, value, "must be at least 1, or left out")
        for setting in ("step_seconds", "idle_ttl_seconds", "max_queue_seconds", "grammar_seconds"):
            value = getattr(self, setting)
            if value is not None and not value > 0:
                raise ConfigError(setting, value, "must be above 0")
        for setting in ("growth_blocks", "max_overtakes", "host_memory_bytes"):
            if getattr(self, setting) < 0:
                raise ConfigError(setting, getattr(self, setting), "must be at least 0")
        if not MIN_REMOTE_VALUE_BYTES <= self.remote_value_bytes <= MAX_REMOTE_VALUE_BYTES:
            reason = f"must be from {MIN_REMOTE_VALUE_BYTES} to {MAX_REMOTE_VALUE_BYTES}"
            raise ConfigError("remote_value_bytes", self.remote_value_bytes, reason)
        if self.max_model_tokens == 1:
            raise ConfigError("max_model_tokens", 1, "must be at least 2: a prompt and an answer")
        if self.kv_prune is not None and Pruning.read(self.kv_prune) and self.invariant:
            reason = "invariant mode reads cached state in whole segments: leave out one of the two"
            raise ConfigError("kv_prune", self.kv_prune, reason)
        for name in self.adapters:
            require_adapter_name(name)
        self._require_choice("eviction_policy", get_args(PolicyName))
        self._require_choice("admission_order", get_args(AdmissionOrderName))
        self._require_choice("kv_format", get_args(KVFormatName))
        self._require_choice("weights", get_args(WeightsName))
        self._require_choice("speculation", get_args(SpeculationName))
        self._require_choice("compaction", get_args(CompactionName))
        self._require_choice("tier_loading", get_args(LoadingName))

    @property
    def pruning(self) -> Pruning | None:
        """What `kv_prune` says; None: nothing is dropped."""
        return None if self.kv_prune is None else Pruning.read(self.kv_prune)

    @property
    def has_lasting_tiers(self) -> bool:
        """Whether KV is kept where it outlives the process."""
        return self.prefix_cache and (self.disk is not None or self.remote is not None)

    def _require_choice(self, setting: str, choices: tuple[str, ...]) -> None:
        if getattr(self, setting) not in choices:
            reason = f"must be one of {', '.join(choices)}"
            raise ConfigError(setting, getattr(self, setting), reason)


def require_adapter_name(name: str) -> None:
    """Raise ConfigError where `name` cannot be what requests call an adapter."""
    if not (name.isprintable() and name.strip() == name and 0 < len(name) <= MAX_ADAPTER_NAME):
        reason = f"a name is 1 to {MAX_ADAPTER_NAME} printable characters, without space around it"
        raise ConfigError("adapters", name[: MAX_ADAPTER_NAME + 1], reason)
