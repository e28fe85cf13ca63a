"""Settings of the gateway: frozen objects, checked as they are made."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from gateway.hosts import is_loopback
from gateway.request_log import LogFormat
from gateway.tenants import DEFAULT_TENANT, TenantConfig, check_hashes
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
    "trend_samples",
    "record_file_bytes",
)
_AT_LEAST_ZERO = (
    "max_tools",
    "max_stop",
    "max_stop_token_ids",
    "max_cached_contents",
    "max_published_prompts",
    "max_logit_bias",
    "max_encoding_requests",
    "max_tenant_labels",
    "max_kept_bytes",
    "max_kept_tenant_bytes",
    "max_own_answers_bytes",
    "max_own_answers_tenant_bytes",
    "drain_seconds",
)
_ABOVE_ZERO = (
    "kept_response_seconds",
    "own_answer_seconds",
    "trend_seconds",
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
    max_kept_bytes: int = 256 * 2**20  # responses that are kept to be looked up; 0: none
    max_kept_tenant_bytes: int = 32 * 2**20  # of one tenant
    kept_response_seconds: float = 24 * 3600.0  # how long
    own_answers: bool = True  # an answer that comes back is read in the tokens it was said in
    max_own_answers_bytes: int = 128 * 2**20  # for that
    max_own_answers_tenant_bytes: int = 16 * 2**20  # of one tenant
    own_answer_seconds: float = 3600.0  # how long
    idle_seconds: float = 75.0  # without a whole request head, new connections included
    body_seconds: float = 60.0  # for a request's whole body to arrive
    write_seconds: float = 30.0  # for a client to take what it is sent
    drain_seconds: float = 30.0  # for running requests to end once the server is told to stop
    worker_start_seconds: float = 600.0  # silence allowed while the model is loaded
    worker_silence_seconds: float = 30.0  # without a sign of life: a worker that serves hangs
    worker_step_seconds: float = 300.0  # a step that takes longer: it hangs as well
    encode_threads: int = 2  # for bodies, templates and tokenizing
    max_encoding_requests: int = 64  # that wait for such a thread
    usage_db: str = "auto"  # a file; auto: in the state directory; off: in memory alone
    prompts_db: str = "auto"  # the same for published prompts
    max_published_prompts: int = 256  # names
    adapter_folders: tuple[str, ...] = ()  # adapters in these can be loaded by the admin's routes
    log_format: LogFormat = "text"  # json: an object a line
    otlp_endpoint: str | None = None  # a collector's URL for traces; None: nothing is traced
    record_file: str | None = None  # what requests came, for replays; None: nothing is recorded
    record_file_bytes: int = 256 * 2**20  # a longer one is put aside
    record_text: bool = False  # of prompts as well, in a file beside it
    tls_certificate: str | None = None  # PEM, with its chain; None: plain HTTP
    tls_key: str | None = None  # PEM, without a password
    trend_seconds: float = 5.0  # between two samples of what the dashboard shows over time
    trend_samples: int = 720  # that are kept of it
    max_tenant_labels: int = 50  # tenants with metrics of their own; the rest are one, "other"

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
        for setting in ("usage_db", "prompts_db"):
            if not getattr(self, setting):
                raise ConfigError(setting, "", "must be a file, auto or off")
        if (self.tls_certificate is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_certificate"
            raise ConfigError(missing, None, "tls_certificate and tls_key go together")
        if self.record_text and self.record_file is None:
            raise ConfigError("record_text", True, "needs a record_file")


class AdminConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may use the admin routes and read the metrics."""

    key_hashes: tuple[str, ...] = ()  # as `prefixcache tenants new-key` prints them


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a server is started with: the tables of a configuration file."""

    server: GatewayConfig = msgspec.field(default_factory=GatewayConfig)
    engine: EngineConfig = msgspec.field(default_factory=EngineConfig)
    tenants: dict[str, TenantConfig] = {}
    admin: AdminConfig = AdminConfig()

    def __post_init__(self) -> None:
        check_hashes("admin.key_hashes", self.admin.key_hashes)
        for name, tenant in self.tenants.items():
            tenant.check(name)
        require_keys_of_their_own(self)
        if not self.has_keys:
            self._check_open()

    @property
    def has_keys(self) -> bool:
        """Whether any key is configured, so that every request must bring one."""
        return any(True for _ in key_hashes(self))

    def _check_open(self) -> None:
        """Refuse what a server without keys cannot keep to: other hosts, other tenants."""
        require_loopback(self.server.host)
        for name in self.tenants:
            if name != DEFAULT_TENANT.name:
                reason = (
                    "no API keys are configured, so nobody could be this tenant; give it"
                    " key_hashes (`prefixcache tenants new-key`)"
                )
                raise ConfigError("tenants", name, reason)


def key_hashes(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield every hash and the table that it stands in."""
    yield from ((text, "admin") for text in settings.admin.key_hashes)
    for name, tenant in settings.tenants.items():
        yield from ((text, f"tenants.{name}") for text in tenant.key_hashes)


def require_keys_of_their_own(settings: Settings) -> None:
    """Raise ConfigError where one key would name two."""
    owners: dict[str, str] = {}
    for text, table in key_hashes(settings):
        if owners.setdefault(text.lower(), table) != table:
            reason = f"{owners[text.lower()]} has the same key; each needs its own"
            raise ConfigError(f"{table}.key_hashes", "...", reason)


def require_loopback(host: str) -> None:
    """Raise ConfigError where others could reach `host`, of a server without keys."""
    if not is_loopback(host):
        raise ConfigError(
            "host",
            host,
            "no API keys are configured, so only a loopback address (127.0.0.1, ::1,"
            " localhost) may be bound",
        )


def read_tables(path: Path) -> dict[str, object]:
    """Return what a TOML file holds. Raises ConfigError when it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("config", str(path), error.strerror or "cannot be read") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("config", str(path), str(error)) from error


def settings_of(tables: Mapping[str, object], source: str) -> Settings:
    """Return the settings in `tables`; what they leave out has its default.

    Raises:
        ConfigError: a setting is unknown, of the wrong type or out of range.
    """
    try:
        return msgspec.convert(tables, Settings)
    except msgspec.ValidationError as error:
        raise ConfigError("config", source, str(error)) from error


def load_config(path: Path) -> Settings:
    """Return the settings in a TOML file alone. Raises ConfigError, as those above."""
    return settings_of(read_tables(path), str(path))


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
