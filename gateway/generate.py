"""The commands under `prefixcache generate`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gateway.replay_run import written
from prefixcache.traces import Agentic, Arrivals, MultiTurn, SharedPrefix, Workload, mooncake_line
from prefixcache.traces.arrivals import ARRIVALS
from prefixcache.traces.generate import DEFAULT_BLOCK_TOKENS

_Function = Callable[..., None]
_Option = Callable[[_Function], _Function]


@click.group(
    "generate",
    epilog="Example: prefixcache generate multi-turn --requests 1000 -o talk.jsonl",
)
def generate() -> None:
    """Make up workloads, as traces to replay. The same seed gives the same file."""


def _number(name: str, default: float, help: str) -> _Option:
    return click.option(name, type=type(default), default=default, show_default=True, help=help)


_COMMON: tuple[_Option, ...] = (
    click.option("--requests", type=int, default=1000, show_default=True, help="How many."),
    click.option("--seed", type=int, default=0, show_default=True),
    _number("--block-tokens", DEFAULT_BLOCK_TOKENS, "Tokens that an id stands for."),
    click.option(
        "--arrivals",
        "process",
        type=click.Choice(tuple(ARRIVALS)),
        default="poisson",
        show_default=True,
        help="How requests, or the beginnings of conversations, are spread over time.",
    ),
    _number("--per-second", 1.0, "Of those, on average."),
    _number("--burst", 8, "Of those, at one moment, for bursts."),
    _number("--spread", 0.0, "By which share lengths vary, up and down."),
    click.option(
        "--output",
        "-o",
        "file",
        type=click.Path(path_type=Path),
        required=True,
        metavar="FILE",
        help="Where the trace goes.",
    ),
)


def _with(*options: _Option) -> _Option:
    """Return a decorator that gives a command these options and those that all have."""

    def decorate(function: _Function) -> _Function:
        for option in reversed((*options, *_COMMON)):
            function = option(function)
        return function

    return decorate


@generate.command(
    "shared-prefix",
    epilog="Example: prefixcache generate shared-prefix --prefixes 4 --skew 1 -o shared.jsonl",
)
@_with(
    _number("--prefixes", 10, "How many there are."),
    _number("--prefix-tokens", 2048, "Of each prefix."),
    _number("--own-tokens", 256, "After the prefix."),
    _number("--output-tokens", 128, "Of an answer."),
    _number("--skew", 0.0, "Prefix n is chosen in proportion to 1 / n to this power."),
)
def shared_prefix(**options: Any) -> None:
    """Requests that begin with one of some prefixes."""
    _write(SharedPrefix, options)


@generate.command(
    "multi-turn",
    epilog="Example: prefixcache generate multi-turn --turns 8 --per-second 0.2 -o talk.jsonl",
)
@_with(
    _number("--turns", 5, "Of a conversation."),
    _number("--system-tokens", 1024, "Which all conversations begin with."),
    _number("--user-tokens", 128, "Of a message."),
    _number("--output-tokens", 256, "Of an answer, which the next turn has in its prompt."),
    _number("--think-seconds", 20.0, "From a turn to the next, on average."),
)
def multi_turn(**options: Any) -> None:
    """Conversations: each turn has all that was said before."""
    _write(MultiTurn, options)


@generate.command(
    "agentic",
    epilog="Example: prefixcache generate agentic --steps 20 --branches 3 -o agents.jsonl",
)
@_with(
    _number("--steps", 12, "Of an agent."),
    _number("--shared-tokens", 4096, "Instructions and tools, which all agents begin with."),
    _number("--task-tokens", 512, "Of an agent's task."),
    _number("--output-tokens", 128, "Of an answer."),
    _number("--result-tokens", 1024, "Of a tool's result."),
    _number("--branches", 1, "Requests of a step, at one moment."),
    _number("--branch-tokens", 64, "Which tell those apart."),
    _number("--tool-seconds", 3.0, "From a step to the next, on average."),
)
def agentic(**options: Any) -> None:
    """Agents that call tools: each step has the ones before and a tool's result."""
    _write(Agentic, options)


def _write(kind: Callable[..., Workload], options: dict[str, Any]) -> None:
    file: Path = options.pop("file")
    arrivals = Arrivals(
        process=options.pop("process"),
        per_second=options.pop("per_second"),
        burst=options.pop("burst"),
    )
    workload = kind(arrivals=arrivals, **options)

    def write() -> None:
        with file.open("wb") as lines:
            lines.writelines(mooncake_line(request) for request in workload.generate())

    written(file, write)
    if workload.block_tokens != DEFAULT_BLOCK_TOKENS:
        hint = f"--format mooncake --trace-block-tokens {workload.block_tokens}"
        click.echo(f"{file} has other blocks than its format: replay it with {hint}", err=True)
