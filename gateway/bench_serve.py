"""The command `prefixcache bench serve`."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import click

from gateway.bench import each, one_of, save
from gateway.client.own_server import own_server, run_to_the_end
from gateway.client.report import as_data, as_table
from gateway.client.scenarios import QUICK_SIZES, SCENARIOS, Sizes, scenarios
from gateway.client.sitting import Run, rows, sit
from gateway.client.targets import Address, Target, make_target

_OWN = "own"
_REQUEST_SECONDS = 1800.0
_SEEDS = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What the command line asks for."""

    addresses: tuple[Address, ...]
    own_options: tuple[str, ...] | None  # None: no server of our own
    model: str | None
    names: tuple[str, ...]
    sizes: Sizes
    repeats: int
    warm_ups: int
    seed: int


def _read_prefixes(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> tuple[int, ...]:
    parts = [] if text is None else [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"{text!r} is no list of numbers of tokens")
    return tuple(dict.fromkeys(map(int, parts)))


def read_pairs(
    _context: click.Context, _parameter: click.Parameter, pairs: Sequence[str]
) -> dict[str, str]:
    """Return what flags such as NAME=VALUE say; anything else is a usage error."""
    split = [pair.partition("=") for pair in pairs]
    found = {name: value for name, _, value in split}
    if len(found) < len(pairs) or not all(name and value for name, value in found.items()):
        raise click.BadParameter("give each as NAME=VALUE, no name twice")
    return found


def _read_options(_context: click.Context, _parameter: click.Parameter, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}") from error


@click.command(
    "serve",
    epilog="Example: prefixcache bench serve --own --url other=http://127.0.0.1:8001",
)
@click.argument("one_url", metavar="[URL]", required=False)
@click.option("--own", "is_own", is_flag=True, help="Start a server of ours, measure and stop it.")
@click.option("--own-options", callback=_read_options, default="", help="Its flags, in quotes.")
@click.option(
    "--url",
    "urls",
    metavar="NAME=URL",
    multiple=True,
    callback=read_pairs,
    help="A server to compare; may be given several times.",
)
@click.option(
    "--pid",
    "pids",
    metavar="NAME=PID",
    multiple=True,
    callback=read_pairs,
    help="The process that must have that server's port, itself or by one it started.",
)
@click.option("--model", help="What the servers call the model.  [default: the only one they have]")
@click.option(
    "--scenario",
    "names",
    metavar="NAME,...",
    callback=each(one_of(SCENARIOS)),
    default=",".join(SCENARIOS),
    show_default=True,
)
@click.option(
    "--prefix",
    "prefixes",
    metavar="TOKENS,...",
    callback=_read_prefixes,
    help="Lengths of the prompts of cold and cached.  [default: 1024,4096]",
)
@click.option("--quick", is_flag=True, help="Small sizes, to see that all works.")
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--warm-ups", type=click.IntRange(min=0), default=1, show_default=True)
@click.option("--seed", type=int, help="Sends the same prompts again.  [default: fresh ones]")
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path),
    help="Write the result here, after each turn.",
)
def serve(
    one_url: str | None,
    is_own: bool,
    own_options: list[str],
    urls: dict[str, str],
    pids: dict[str, str],
    prefixes: tuple[int, ...],
    quick: bool,
    seed: int | None,
    json_file: Path | None,
    model: str | None,
    names: tuple[str, ...],
    repeats: int,
    warm_ups: int,
) -> None:
    """Measure OpenAI-compatible servers from outside, in turns and with the same fresh prompts.

    Scenarios: cold and cached (seconds to the first token), decode (one stream), shared (streams
    on one cached prompt), tenants (requests over several prompts) and repeat (a request again).
    Figures are medians; those of further servers are followed by their ratio to the first one.
    """
    sizes = QUICK_SIZES if quick else Sizes()
    asked = _Asked(
        addresses=_addresses(one_url, urls, pids),
        own_options=tuple(own_options) if is_own else None,
        model=model,
        names=tuple(dict.fromkeys(names)),
        sizes=replace(sizes, prefixes=prefixes or sizes.prefixes),
        repeats=repeats,
        warm_ups=warm_ups,
        seed=secrets.randbelow(_SEEDS) if seed is None else seed,
    )
    _check(asked, own_options)
    click.echo(run_to_the_end(_measured(asked, json_file)))


async def _measured(asked: _Asked, json_file: Path | None) -> str:
    """Return the table of a sitting; its data are in `json_file` after every turn."""
    async with _targets(asked) as targets:
        servers = [target.address.name for target in targets]

        def keep(runs: Sequence[Run]) -> None:
            if json_file is not None:
                medians = rows(runs, servers)
                save(json_file, as_data(targets, medians, runs, asked.sizes, asked.seed))

        runs = await sit(
            targets,
            scenarios(asked.names, asked.sizes),
            asked.sizes,
            repeats=asked.repeats,
            warm_ups=asked.warm_ups,
            seed=asked.seed,
            report=_say,
            on_turn=keep,
        )
        return as_table(rows(runs, servers), servers)


@asynccontextmanager
async def _targets(asked: _Asked) -> AsyncIterator[list[Target]]:
    """Give all servers, identified; ours is started first and stopped in the end."""
    if asked.own_options is None:
        async with _identified(asked, asked.addresses) as targets:
            yield targets
        return
    async with own_server(asked.own_options) as own:
        addresses = (Address(_OWN, own.url, own.pid), *asked.addresses)
        async with _identified(asked, addresses) as targets:
            yield targets


@asynccontextmanager
async def _identified(asked: _Asked, addresses: Sequence[Address]) -> AsyncIterator[list[Target]]:
    timeout = aiohttp.ClientTimeout(total=_REQUEST_SECONDS)
    connector = aiohttp.TCPConnector(force_close=True)  # some servers drop connections that idle
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        targets = []
        for address in addresses:
            targets.append(await make_target(session, address, model=asked.model))
            _say(f"{address.name}: {address.url} is {targets[-1].identity}")
        yield targets


def _addresses(
    one_url: str | None, urls: dict[str, str], pids: dict[str, str]
) -> tuple[Address, ...]:
    """Return where the servers are. Raises click.BadParameter for what is no address."""
    found = {**({urlsplit(one_url).netloc: one_url} if one_url else {}), **urls}
    unknown = [name for name in pids if name not in found]
    if unknown:
        raise click.BadParameter(f"--pid names {unknown[0]!r}, which no --url does")
    return tuple(
        Address(name, read_base(url), _pid(pids[name]) if name in pids else None)
        for name, url in found.items()
    )


def read_base(url: str) -> str:
    """Return a server's address without /v1. Raises click.BadParameter for what is none."""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise click.BadParameter(f"{url!r} is no address such as http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1")


def _pid(text: str) -> int:
    if not text.isdecimal():
        raise click.BadParameter(f"{text!r} is no process id")
    return int(text)


def _check(asked: _Asked, own_options: Sequence[str]) -> None:
    if asked.own_options is None and own_options:
        raise click.UsageError("--own-options go with --own")
    if asked.own_options is None and not asked.addresses:
        raise click.UsageError("say what to measure: a URL, --url NAME=URL or --own")
    if asked.own_options is not None and any(each.name == _OWN for each in asked.addresses):
        raise click.UsageError(f"{_OWN!r} is the name of the server that --own starts")


def _say(line: str) -> None:
    click.echo(line, err=True)
