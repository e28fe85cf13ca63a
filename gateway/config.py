"""Settings of the gateway: one frozen object, read from TOML and flags and checked once."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec

from gateway.hosts import is_loopback
from prefixcache.config import EngineConfig
from prefixcache.errors import ConfigError

_UNITS = {
    "": 1,
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_AT_LEAST_ONE = (
    "max_body_bytes",
    "max_choices",
    "max_prompts",
    "max_messages",
    "max_stream_bytes",
    "encode_threads",
)
_AT_LEAST_ZERO = (
    "max_tools",
    "max_stop",
    "max_stop_token_ids",
    "max_cached_contents",
    "max_logit_bias",
    "max_encoding_requests",
    "drain_seconds",
)
_ABOVE_ZERO = (
    "idle_seconds",
    "body_seconds",
    "write_seconds",
    "worker_start_seconds",
    "worker_silence_seconds",
    "worker_step_seconds",
)
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the gateway listens and what it allows a client."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free one
    served_model_name: str | None = None  # None: the model's own name
    max_body_bytes: int = 8 * 2**20
    max_choices: int = 8  # the largest `n`
    max_prompts: int = 32  # prompts of one completions request
    max_messages: int = 2048  # of one conversation
    max_tools: int = 256
    order_tool_keys: bool = True  # tools that differ in key order alone share their prefix
    keep_billing_line: bool = False  # that a coding client puts before its system prompt
    max_stop: int = 4  # stop strings of one request
    max_stop_token_ids: int = 128
    max_cached_contents: int = 64  # that one tenant keeps under a name
    max_logit_bias: int = 1024  # tokens of one request that are biased
    max_stream_bytes: int = 2**20  # output that waits for one client before it is dropped
    idle_seconds: float = 75.0  # without a whole request head, new connections included
    body_seconds: float = 60.0  # for a request's whole body to arrive
    write_seconds: float = 30.0  # for a client to take what it is sent
    drain_seconds: float = 30.0  # for running requests to end once the server is told to stop
    worker_start_seconds: float = 600.0  # silence allowed while the model is loaded
    worker_silence_seconds: float = 30.0  # without a sign of life: a worker that serves hangs
    worker_step_seconds: float = 300.0  # a step that takes longer: it hangs as well
    encode_threads: int = 2  # for bodies, templates and tokenizing
    max_encoding_requests: int = 64  # that wait for such a thread

    def __post_init__(self) -> None:
        for setting in _AT_LEAST_ONE:
            _require(self, setting, lowest=1)
        for setting in _AT_LEAST_ZERO:
            _require(self, setting, lowest=0)
        for setting in _ABOVE_ZERO:
            if not getattr(self, setting) > 0:
                raise ConfigError(setting, getattr(self, setting), "must be above 0")
        if not 0 <= self.port <= 65535:
            raise ConfigError("port", self.port, "must be from 0 to 65535")
        if self.served_model_name == "":
            raise ConfigError("served_model_name", "", "must not be empty")
        if not is_loopback(self.host):
            raise ConfigError(
                "host",
                self.host,
                "no API keys are configured, so only a loopback address (127.0.0.1, ::1,"
                " localhost) may be bound",
            )


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a server is started with: the tables of a configuration file."""

    server: GatewayConfig = msgspec.field(default_factory=GatewayConfig)
    engine: EngineConfig = msgspec.field(default_factory=EngineConfig)


def load_config(path: Path) -> Settings:
    """Return the settings in a TOML file; what it leaves out has its default.

    Raises:
        ConfigError: the file cannot be read, or a setting is unknown, of the wrong type or
            out of range.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        return msgspec.convert(tables, Settings)
    except OSError as error:
        raise ConfigError("config", str(path), error.strerror or "cannot be read") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigError("config", str(path), str(error)) from error


def parse_bytes(amount: str) -> int:
    """Return the bytes that `amount` says, such as 512MiB, 2GiB, 1.5GB or 1048576.

    Raises:
        ConfigError: it is not an amount of at least one byte.
    """
    found = _AMOUNT.fullmatch(amount)
    unit = _UNITS.get(found[2].lower()) if found else None
    n_bytes = int(float(found[1]) * unit) if found and unit else 0
    if n_bytes < 1:
        raise ConfigError("size", amount, "use a number and a unit, such as 512MiB or 2GiB")
    return n_bytes


def _require(config: GatewayConfig, setting: str, *, lowest: int) -> None:
    if not getattr(config, setting) >= lowest:
        raise ConfigError(setting, getattr(config, setting), f"must be at least {lowest}")
