"""What the options of `prefixcache replay --against URL` say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import wraps
from typing import Any

import click
from click.core import ParameterSource

from gateway.replay_live import LiveOptions
from prefixcache.index.policies import PolicyOptions

_Function = Callable[..., None]

_ABOVE_0 = click.IntRange(min=1)
_REQUEST_SECONDS = 1800.0
_OPTIONS = {
    "against": click.option(
        "--against",
        metavar="URL",
        help="Send the trace to this OpenAI-compatible server, and compare what it has cached.",
    ),
    "at_a_time": click.option(
        "--concurrency",
        "at_a_time",
        type=_ABOVE_0,
        help="With --against: so many requests at a time.  [default: each at its time]",
    ),
    "key_env": click.option(
        "--api-key-env",
        "key_env",
        metavar="NAME",
        help="With --against: the variable that holds the server's key.",
    ),
    "limit": click.option(
        "--limit", type=_ABOVE_0, help="With --against: send so many requests, the first ones."
    ),
    "max_prompt_tokens": click.option(
        "--max-prompt-tokens", type=_ABOVE_0, help="With --against: leave longer prompts out."
    ),
    "server_block_tokens": click.option(
        "--server-block-tokens",
        type=_ABOVE_0,
        help="With --against: of its cache.  [default: what it tells, or 16]",
    ),
    "server_capacity_blocks": click.option(
        "--server-capacity-blocks",
        type=_ABOVE_0,
        help="With --against: of its cache.  [default: what it tells, or unlimited]",
    ),
    "request_seconds": click.option(
        "--request-seconds",
        type=click.FloatRange(min=0, min_open=True),
        default=_REQUEST_SECONDS,
        show_default=True,
        help="With --against: what takes longer has failed.",
    ),
}
_BOTH_WAYS = frozenset(  # what is of use with a server and without
    {
        "names",
        "format_name",
        "policies",
        "model",
        "trace_block_tokens",
        "time_unit",
        "encoder",
        "strict",
        "sort",
        "speed",
        "max_gap_seconds",
        "idle_ttl_seconds",
        "protected_share",
        "seed",
        "json_file",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFlags:
    """The options, as they were given."""

    against: str | None
    at_a_time: int | None
    key_env: str | None
    limit: int | None
    max_prompt_tokens: int | None
    server_block_tokens: int | None
    server_capacity_blocks: int | None
    request_seconds: float


def live_options(function: _Function) -> _Function:
    """Give a command the options of a replay against a server; it gets them as `live`.

    Options that do not go together are usage errors.
    """

    @wraps(function)
    def gathered(**options: Any) -> None:
        _check(click.get_current_context())
        live = LiveFlags(**{name: options.pop(name) for name in _OPTIONS})
        function(live=live, **options)

    decorated: _Function = gathered
    for option in reversed(_OPTIONS.values()):
        decorated = option(decorated)
    return decorated


def asked_of_server(
    live: LiveFlags,
    url: str,
    *,
    model: str | None,
    policy: str,
    policy_options: PolicyOptions,
    seed: int | None,
) -> LiveOptions:
    """Return what the options ask of a replay against the server at `url`.

    Args:
        seed: None: prompts that were never sent before.
    """
    return LiveOptions(
        model=model,
        policy=policy,
        policy_options=policy_options,
        seed=seed,
        **{**asdict(live), "against": url},
    )


def is_given(context: click.Context, name: str) -> bool:
    """Whether an option stands on the command line."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _check(context: click.Context) -> None:
    """Raise click.UsageError for an option that is of no use the way the trace is replayed."""
    is_live = context.params["against"] is not None
    useful = _BOTH_WAYS | _OPTIONS.keys() if is_live else context.params.keys() - _OPTIONS.keys()
    for parameter in context.command.params:
        if parameter.name not in useful and is_given(context, parameter.name or ""):
            how = "does not go with" if is_live else "goes with"
            raise click.UsageError(f"{parameter.opts[-1]} {how} --against")
    if is_live and len(context.params["names"]) != 1:
        raise click.UsageError("--against takes one trace")
    if is_live and len(context.params["policies"]) != 1:
        raise click.UsageError("--against takes one policy, the server's")
    if context.params["at_a_time"] and (
        is_given(context, "speed") or is_given(context, "max_gap_seconds")
    ):
        raise click.UsageError("--concurrency leaves no times to which --speed or --max-gap apply")
