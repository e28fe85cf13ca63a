"""The command `prefixcache`."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, get_args

import click

from gateway.backends.base import Backend
from gateway.backends.echo import EchoBackend
from gateway.backends.local import LocalBackend
from gateway.config import GatewayConfig, Settings, parse_bytes
from gateway.errors import BadModelError, GatewayError
from gateway.lazy import Later, LazyGroup
from gateway.metrics import Metrics
from gateway.prompts_db import FILE_NAME as PROMPTS_FILE_NAME
from gateway.prompts_db import PromptsDb, PromptsFileError
from gateway.request_log import LogFormat, formatter_of
from gateway.server import StopSignals, serve
from gateway.settings import Sources
from gateway.state_files import state_path
from gateway.usage_db import UsageDb, UsageFileError, state_file
from prefixcache.config import (
    DType,
    EngineConfig,
    KVFormatName,
    PolicyName,
    SpeculationName,
    WeightsName,
)
from prefixcache.errors import ConfigError, ModelError, PrefixCacheError, TraceError

_log = logging.getLogger(__name__)
_BAD_INPUT = 2
_CANNOT_START = 1
_SPIN_COUNT = "1000"  # prefixcache/design/0005-short-spinning.md
_RENAMED = {
    "kv_memory": "kv_memory_bytes",
    "host_memory": "host_memory_bytes",
    "disk_size": "disk_bytes",
    "remote_ttl": "remote_ttl_seconds",
    "remote_value_size": "remote_value_bytes",
}
_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class BackendFactory:
    """Makes the backend that the flags ask for."""

    kind: str
    settings: Settings
    echo_seconds: float = 0.0  # of a token, when it only echoes
    echo_tokens: int = 2048  # that a prompt and its echo may have

    def __call__(self, metrics: Metrics) -> Backend:
        """Return the backend, not started."""
        server, engine = self.settings.server, self.settings.engine
        if self.kind == "echo":
            return EchoBackend(
                Path(engine.model or "."),
                max_model_tokens=self.echo_tokens,
                seconds_per_token=self.echo_seconds,
            )
        return LocalBackend(
            engine,
            silence_seconds=server.worker_start_seconds,
            hang_seconds=server.worker_silence_seconds,
            longest_step_seconds=server.worker_step_seconds,
            max_stream_bytes=server.max_stream_bytes,
            report=_say,
            on_restart=metrics.worker_restarts.inc,
        )


@dataclass(frozen=True, slots=True)
class Serving:
    """What one server is made of."""

    settings: Settings
    make_backend: BackendFactory
    usage_db: UsageDb
    prompts_db: PromptsDb
    read_again: Callable[[], Settings] | None  # None: there is no file that could have changed


def read_amount(
    context: click.Context, parameter: click.Parameter, amount: str | None
) -> int | None:
    """Return the bytes that a flag such as 512MiB or 2GiB says; bad input is a usage error."""
    try:
        return None if amount is None else parse_bytes(amount)
    except ConfigError as error:
        raise click.BadParameter(f"{error.value!r}: {error.reason}", context, parameter) from error


def read_adapters(
    context: click.Context, parameter: click.Parameter, given: Sequence[str]
) -> dict[str, str] | None:
    """Return the folders by name that flags such as formal=./adapters/formal say; None: none."""
    adapters: dict[str, str] = {}
    for text in given:
        name, is_pair, folder = text.partition("=")
        if not (name and is_pair and folder):
            raise click.BadParameter(f"{text!r} is not NAME=FOLDER", context, parameter)
        if name in adapters:
            raise click.BadParameter(f"{name!r} is given twice", context, parameter)
        adapters[name] = folder
    return adapters or None


@click.group(
    cls=LazyGroup,
    later={
        "bench": Later(
            "gateway.bench:bench", "Measure our own parts on this machine, and servers."
        ),
        "cache": Later(
            "gateway.cli_stored:cache", "Show, check or shrink a folder of cached blocks."
        ),
        "generate": Later("gateway.generate:generate", "Make up workloads, as traces to replay."),
        "invalidate": Later(
            "gateway.cli_cache:invalidate", "Make what a server has cached unmatchable."
        ),
        "plan": Later("gateway.plan:plan", "Tell what a model's KV needs and what fits where."),
        "prompts": Later(
            "gateway.cli_prompts:prompts", "Show, publish or retire prompts of a server."
        ),
        "replay": Later(
            "gateway.replay:replay_command", "Replay request traces and report hit rates."
        ),
        "tenants": Later(
            "gateway.cli_tenants:tenants", "Show a server's tenants, or make a key for one."
        ),
        "tree": Later("gateway.cli_cache:tree", "Show a server's trees of cached prefixes."),
        "usage": Later("gateway.cli_usage:usage", "Show what tenants have used, by day and model."),
    },
    epilog="Example: prefixcache serve --port 8000",
)
@click.version_option(package_name="prefixcache", message="prefixcache %(version)s")
def commands() -> None:
    """Serve a chat model and read each prompt prefix once."""


@commands.command(
    "serve",
    epilog="Example: prefixcache serve --model ./my-model --adapter formal=./formal",
)
@click.option("--model", help="Folder, .gguf file or hub name[@revision].  [default: a small one]")
@click.option("--host", help="Address to bind.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="0 picks a free one.  [default: 8000]")
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="TOML file with the tables [server], [engine], [tenants.NAME] and [admin]; flags and"
    " variables such as PREFIXCACHE_SERVER__PORT win over it.",
)
@click.option("--served-model-name", help="What clients call the model.  [default: its own name]")
@click.option(
    "--adapter",
    "adapters",
    metavar="NAME=FOLDER",
    multiple=True,
    callback=read_adapters,
    help="A LoRA adapter to serve as the model NAME, such as formal=./formal; may be repeated.",
)
@click.option(
    "--kv-memory",
    metavar="SIZE",
    callback=read_amount,
    help="Memory for cached state, such as 512MiB or 2GiB.",
)
@click.option(
    "--host-memory",
    metavar="SIZE",
    callback=read_amount,
    help="Host memory for state that leaves the device, such as 2GiB.  [default: none]",
)
@click.option("--disk", metavar="DIR", help="Folder where state outlives the server.")
@click.option(
    "--disk-size",
    metavar="SIZE",
    callback=read_amount,
    help="Most that the folder of --disk takes.  [default: 10GiB]",
)
@click.option("--remote", metavar="URL", help="A server of Redis or Valkey that keeps state.")
@click.option(
    "--remote-ttl",
    metavar="SECONDS",
    type=click.IntRange(min=1),
    help="What --remote has not been asked for so long is gone.  [default: 86400]",
)
@click.option(
    "--remote-value-size",
    metavar="SIZE",
    callback=read_amount,
    help="Most that one value of --remote takes.  [default: 1MiB]",
)
@click.option("--no-prefix-cache", is_flag=True, help="Look nothing up and keep nothing.")
@click.option(
    "--eviction-policy",
    type=click.Choice(get_args(PolicyName)),
    help="Which cached prefixes go when room is needed.  [default: lru]",
)
@click.option("--dtype", type=click.Choice(get_args(DType)), help="Number format.  [default: auto]")
@click.option(
    "--weights",
    type=click.Choice(get_args(WeightsName)),
    help="How weights are kept: fewer bits are faster, more are exact.  [default: auto: 16bit]",
)
@click.option(
    "--kv-format",
    type=click.Choice(get_args(KVFormatName)),
    help="How cached state is kept: fewer bits hold more of it.  [default: auto: as computed]",
)
@click.option("--kv-prune", metavar="FIRST+RECENT", help="Tokens to keep, as 4+1024: lossy.")
@click.option(
    "--speculation",
    type=click.Choice(get_args(SpeculationName)),
    help="Whether tokens are guessed and verified several in a step.  [default: auto]",
)
@click.option(
    "--invariant",
    is_flag=True,
    default=None,
    help="Give each request the same numbers whatever else runs or is cached; slower.",
)
@click.option("--device", help="Torch device, such as cpu or cuda.  [default: auto]")
@click.option("--threads", type=click.IntRange(min=1), help="Torch's CPU threads.")
@click.option(
    "--drain-seconds",
    type=click.FloatRange(min=0),
    help="How long running requests may go on after SIGTERM.  [default: 30]",
)
@click.option(
    "--record",
    "record_file",
    metavar="FILE",
    help="Record which prefixes came when, as salted digests, for `prefixcache replay FILE`.",
)
@click.option(
    "--log-format",
    type=click.Choice(get_args(LogFormat)),
    help="json: one object a line.  [default: text]",
)
@click.option(
    "--log-level", type=click.Choice(_LEVELS), default="info", show_default=True, help="Of the log."
)
@click.option("--until-stdin-ends", is_flag=True, hidden=True, help="Stop with our parent.")
@click.option("--backend", type=click.Choice(("local", "echo")), default="local", hidden=True)
@click.option("--echo-seconds", type=click.FloatRange(min=0), default=0.0, hidden=True)
@click.option("--echo-tokens", type=click.IntRange(min=2), default=2048, hidden=True)
def serve_command(
    *,
    config_file: Path | None,
    log_level: str,
    backend: str,
    echo_seconds: float,
    echo_tokens: int,
    until_stdin_ends: bool,
    **flags: object,
) -> None:
    """Serve a model over HTTP until SIGTERM.

    Prints one line on standard output when it answers: ready http://HOST:PORT
    """
    sources = _sources(config_file, flags)
    settings = sources.read()
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # not shown
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter_of(settings.server.log_format))
    logging.basicConfig(handlers=[handler], level=log_level.upper())
    serving = Serving(
        settings,
        BackendFactory(backend, settings, echo_seconds, echo_tokens),
        _usage_db(settings),
        _prompts_db(settings),
        None if config_file is None else sources.read,
    )
    _leave(asyncio.run(_serve(serving, follows_stdin=until_stdin_ends)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit: 2 and one line for bad input, 1 and one line for other trouble."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)  # read when torch is loaded, later
    try:
        code = commands.main(arguments, prog_name="prefixcache", standalone_mode=False)
    except click.ClickException as error:
        _quit(error.format_message(), _BAD_INPUT)
    except (ConfigError, BadModelError, ModelError, TraceError) as error:
        _quit(str(error), _BAD_INPUT)
    except (GatewayError, PrefixCacheError) as error:
        _quit(str(error), _CANNOT_START)
    except click.Abort:
        _quit("interrupted", _CANNOT_START)
    sys.exit(code)


async def _serve(serving: Serving, *, follows_stdin: bool) -> int:
    signals = StopSignals()
    signals.listen()
    if follows_stdin:
        signals.follow(sys.stdin.fileno())
    return await serve(
        serving.settings,
        serving.make_backend,
        announce=_announce,
        signals=signals,
        usage_db=serving.usage_db,
        prompts_db=serving.prompts_db,
        read_again=serving.read_again,
    )


def _announce(url: str) -> None:
    click.echo(f"ready {url}")


def _say(text: str) -> None:
    click.echo(text, err=True)


def _sources(config_file: Path | None, flags: dict[str, object]) -> Sources:
    """Return where the settings are read from: the flags that were given, and what they cover."""
    given = {name: value for name, value in flags.items() if value is not None}
    if given.pop("no_prefix_cache"):
        given["prefix_cache"] = False
    for flag, setting in _RENAMED.items():
        if flag in given:
            given[setting] = given.pop(flag)
    tables = {"server": GatewayConfig, "engine": EngineConfig}
    return Sources(
        file=config_file,
        env=os.environ,
        flags={
            table: {name: given[name] for name in kind.__struct_fields__ if name in given}
            for table, kind in tables.items()
        },
    )


def _usage_db(settings: Settings) -> UsageDb:
    """Open the tenants' accounts.

    Raises:
        ConfigError: the file that is set, or that a quota needs, cannot be used.
    """
    place = settings.server.usage_db
    if place == "off":
        return UsageDb.open(None)
    try:
        return UsageDb.open(state_file(os.environ) if place == "auto" else Path(place))
    except UsageFileError as error:
        has_quota = any(tenant.tokens_per_month for tenant in settings.tenants.values())
        if place != "auto" or has_quota:
            raise ConfigError("usage_db", place, str(error)) from error
        _log.warning("accounts of usage are kept in memory alone: %s", error)
        return UsageDb.open(None)


def _prompts_db(settings: Settings) -> PromptsDb:
    """Open what was published before. Raises ConfigError: the file that is set cannot be used."""
    place = settings.server.prompts_db
    if place == "off":
        return PromptsDb.open(None)
    try:
        is_auto = place == "auto"
        return PromptsDb.open(state_path(os.environ, PROMPTS_FILE_NAME) if is_auto else Path(place))
    except PromptsFileError as error:
        if not is_auto:
            raise ConfigError("prompts_db", place, str(error)) from error
        _log.warning("published prompts are kept in memory alone: %s", error)
        return PromptsDb.open(None)


def _leave(code: int) -> NoReturn:
    """End the process now: a prompt that is still being tokenized is not worth waiting for."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)  # the interpreter's own end waits for every thread


def _quit(reason: str, code: int) -> NoReturn:
    click.echo(f"prefixcache: {' '.join(reason.split())}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
