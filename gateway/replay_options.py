"""What the options of `prefixcache replay` say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

import click

from gateway.bench import each
from gateway.config import parse_bytes
from prefixcache.errors import ConfigError, ModelError, TemplateError
from prefixcache.index.policies import PolicyOptions
from prefixcache.text import PromptEncoder
from prefixcache.traces.capacity import Capacity, parse_capacity
from prefixcache.traces.running import MEASURED, RunningTimes
from prefixcache.traces.runs import ReplayPlan
from prefixcache.traces.whatif import WhatIf

BYTES_PER_TOKEN = "kv_bytes_per_token"  # noqa: S105 (the parameter that sizes in bytes need)

_WARM_UP = re.compile(r"([0-9]+)(%?)")


def read_capacities(context: click.Context, _: click.Parameter, text: str) -> tuple[Capacity, ...]:
    """Return the capacities of a list with commas; anything that is none is a usage error."""
    return tuple(_capacity(part.strip(), context) for part in text.split(","))


def read_capacity(context: click.Context, _: click.Parameter, text: str | None) -> Capacity | None:
    """Return a capacity, None where nothing is said."""
    return None if text is None else _capacity(text, context)


def read_block_tokens(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[int | None, ...]:
    """Return block sizes; None, for the trace's own, where nothing is said."""
    return (None,) if text is None else each(_above_0)(context, parameter, text)


def read_encoder(
    context: click.Context, parameter: click.Parameter, folder: Path | None
) -> PromptEncoder | None:
    """Return the tokenizer and template of a model folder."""
    try:
        return None if folder is None else PromptEncoder.load(folder)
    except (ModelError, TemplateError) as error:
        raise click.BadParameter(str(error), context, parameter) from error


def read_warm_up(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, bool]:
    """Return an amount, and whether it is a share in percent rather than so many requests."""
    found = _WARM_UP.fullmatch(text)
    if not found or (found[2] and int(found[1]) >= 100):
        reason = f"{text!r} is neither a number of requests nor a share below 100%"
        raise click.BadParameter(reason, context, parameter)
    return int(found[1]), bool(found[2])


def read_running(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> RunningTimes | None:
    """Return how long requests run; None where nothing is said."""
    if text is None or text == MEASURED:
        return None if text is None else RunningTimes(None)
    try:
        return RunningTimes(float(text))
    except (ValueError, ConfigError) as error:
        reason = f"{text!r} is neither seconds nor {MEASURED!r}"
        raise click.BadParameter(reason, context, parameter) from error


def replay_plan(
    *,
    policies: Sequence[str],
    capacities: Sequence[Capacity],
    block_tokens: Sequence[int | None],
    policy_options: PolicyOptions,
    tenants: str,
    tiers: Mapping[str, Capacity | None],
    n_replicas: int,
    routing: str,
    seed: int,
    running: RunningTimes | None,
) -> ReplayPlan:
    """Return what the options ask of the index. Raises ConfigError where two do not go together."""
    what_if = WhatIf(
        is_isolated=tenants == "isolated",
        tiers={name: size for name, size in tiers.items() if size is not None},
        n_replicas=n_replicas,
        routing=routing,
        seed=seed,
        running=running,
    )
    return ReplayPlan(
        policies=policies,
        capacities=capacities,
        block_tokens=block_tokens,
        options=policy_options,
        what_if=what_if,
    )


def _capacity(text: str, context: click.Context) -> Capacity:
    """Return a capacity. Bytes count by the model, or its bytes a token, that was read before."""
    try:
        if not text.lower().endswith("b"):
            return parse_capacity(text)
        n_bytes = parse_bytes(text)
    except ConfigError as error:
        raise click.BadParameter(f"{error.value!r}: {error.reason}") from error
    per_token = context.params.get(BYTES_PER_TOKEN) or _token_bytes(context)
    if per_token is None:
        raise click.BadParameter(f"{text!r} is in bytes; say --model, or --kv-bytes-per-token")
    n_tokens = n_bytes // per_token
    if not n_tokens:
        raise click.BadParameter(f"{text!r} holds less than a token of {per_token} bytes")
    return Capacity(tokens=n_tokens)


def _token_bytes(context: click.Context) -> int | None:
    """Return the KV bytes of a token of the model that was named; None: none was.

    What reads configurations takes seconds to load, and is loaded here alone.
    """
    model, kept = context.params.get("model"), context.params.get("kv_format")
    if model is None:
        return None
    plan = import_module("prefixcache.plan")
    try:
        shape = plan.read_shape(model)
        chosen = plan.format_of(shape.number_bytes) if kept is None else plan.kv_format(kept)
    except (ModelError, ConfigError) as error:
        raise click.BadParameter(str(error)) from error
    n_bytes: int = plan.token_bytes(shape, chosen)
    return n_bytes


def _above_0(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise click.BadParameter(f"{text!r} is no number above 0")
    return int(text)
